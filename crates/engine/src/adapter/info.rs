//! What the formats of adapters have no word for: which rows one acts on, what it was made for, and how it was trained.

use super::AdapterRows;
use serde::{Deserialize, Serialize};

/// What an adapter was made for; `layerscope.json` in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// The rows it acts on.
    pub rows: AdapterRows,
    /// The policy it was trained under.
    pub policy: String,
    /// Name of the model.
    pub model: String,
    /// SHA-256 of the model, as in a run's manifest.
    pub model_sha256: String,
    /// Name of the prompt file.
    pub prompts: String,
    /// SHA-256 of the prompt file.
    pub prompts_sha256: String,
    /// Version of layerscope that made it.
    pub layerscope: String,
    /// How it was trained, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<AdapterTraining>,
}

/// What the training of an adapter took, and what it changed on prompts that were held out of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterTraining {
    /// Steps that were made.
    pub steps: usize,
    /// Decode rows that were trained on.
    pub tokens: usize,
    /// Rows that ran forward and backward, prompt rows among them where those are trained, too.
    pub rows: usize,
    /// Seconds, without preparing the prompts.
    pub seconds: f64,
    /// Prompts that it was trained on.
    pub prompts: usize,
    /// Prompts that were held out.
    pub held_out: usize,
    /// Held-out figures without the adapter, under the policy.
    pub before: HeldOutFigures,
    /// The same with it.
    pub after: HeldOutFigures,
    /// The same with it at full depth: what it does to the full model. Not measured after an interrupt.
    pub full_depth: Option<HeldOutFigures>,
}

/// Means over the decode rows of prompts, against the full model without the adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldOutFigures {
    /// KL divergence from the full model, nats.
    pub kl: f64,
    /// Share of rows with the full model's top token.
    pub top1: f64,
    /// Share of answers of which every token is the top token, along the answer; `None` where no prompt has an answer.
    pub answers: Option<f64>,
}
