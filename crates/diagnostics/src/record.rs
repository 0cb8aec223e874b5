//! What one recorded prompt yields: plain data, the meaning of every figure, no computation.
//!
//! Layers ℓ = 0 … L−1, heads h = 0 … H−1 (query heads), decode steps s = 0 … N−1. Step s is the query at position
//! p−1+s of a sequence whose prompt has p tokens. Undefined values are NaN in memory and null in files.

use ndarray::{Array2, Array3};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything recorded for one prompt.
#[derive(Debug, Clone)]
pub struct PromptRecord {
    /// Unique name of the prompt within the run.
    pub prompt_id: String,
    /// Category the prompt belongs to, e.g. `retrieval`.
    pub category: String,
    /// The prompt as the user wrote it (messages joined by blank lines).
    pub text: String,
    /// Token ids of the prompt as the model saw them, chat template and BoS included; length p.
    pub prompt_tokens: Vec<u32>,
    /// How each prompt token is shown; length p.
    pub prompt_token_text: Vec<String>,
    /// The continuation: greedy, or the given answer; length N.
    pub generated: Vec<u32>,
    /// How each generated token is shown; length N.
    pub generated_token_text: Vec<String>,
    /// The continuation as text.
    pub generated_text: String,
    /// Whether the continuation was given (`"answer"`) rather than generated greedily.
    pub answer_given: bool,
    /// Attention masses and entropies of the decode queries.
    pub attention: AttentionFigures,
    /// Attention received by each prompt position, per layer.
    pub received: ReceivedFigures,
    /// Mean curvature over prompt positions 0 … p−1, degrees; length L+1, index 0 is the embedding output.
    pub curvature_prompt_deg: Vec<f64>,
    /// Mean curvature over decode positions p−1 … p−2+N, degrees; length L+1.
    pub curvature_decode_deg: Vec<f64>,
    /// Logit lens of the decode queries.
    pub lens: LensFigures,
    /// The exact cutoff frontier: one row per anchor and cutoff 1 … L.
    pub frontier: Vec<FrontierRow>,
    /// The causal layer map: one row per layer.
    pub knockout: Vec<KnockoutRow>,
    /// Mean over steps of KL(f32 weights ‖ weights as run), nats per token; `None` when the run itself is f32.
    pub native_kl: Option<f64>,
    /// Wall-clock times.
    pub timings: Timings,
}

/// Where the decode queries' attention goes; every array is `[L, H, N]`.
#[derive(Debug, Clone)]
pub struct AttentionFigures {
    /// Mass on position 0.
    pub bos_mass: Array3<f32>,
    /// Mass on positions 1 … p−2 (decode-to-prefill attention mass).
    pub prompt_mass: Array3<f32>,
    /// Mass on positions ≥ p−1.
    pub decode_mass: Array3<f32>,
    /// Entropy of the attention within the prompt, divided by ln(p−2): in \[0, 1\]; NaN where undefined.
    pub prompt_entropy: Array3<f32>,
    /// The same in nats; NaN where undefined.
    pub prompt_entropy_nats: Array3<f32>,
}

/// Attention received by prompt positions 0 … p−1 from the decode queries; arrays are `[L, p]`.
#[derive(Debug, Clone)]
pub struct ReceivedFigures {
    /// Mean over heads and steps.
    pub mean: Array2<f32>,
    /// Maximum over heads and steps.
    pub max: Array2<f32>,
}

/// Logit lens: final norm and unembedding applied to the residual stream after each block; arrays are `[L, N]`.
#[derive(Debug, Clone)]
pub struct LensFigures {
    /// KL(final ‖ lens), nats.
    pub kl: Array2<f32>,
    /// The lens's most likely token.
    pub top1: Array2<u32>,
}

/// Which prompt tokens keep their KV at every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Anchor {
    /// Position 0, whatever token that is.
    Bos,
    /// No prompt token.
    None,
}

impl Anchor {
    /// Both anchors, in the order in which they are reported.
    pub const ALL: [Self; 2] = [Self::Bos, Self::None];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bos => "bos",
            Self::None => "none",
        }
    }

    /// The anchor of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|anchor| anchor.name() == name)
    }

    /// Number of anchored prompt tokens.
    pub fn tokens(self) -> usize {
        match self {
            Self::Bos => 1,
            Self::None => 0,
        }
    }
}

/// How far next-token distributions moved from the full model's, averaged over the decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// Mean KL(full ‖ changed), nats.
    pub kl: f64,
    /// Share of steps with the same argmax, in \[0, 1\].
    pub top1: f64,
    /// Mean negative log-likelihood of the continuation, less that under the full model, nats.
    pub dnll: f64,
}

/// One cutoff of the frontier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrontierRow {
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// Prompt tokens keep KV in layers 0 … cutoff−1; 1 … L.
    pub cutoff: usize,
    /// What it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// One layer of the causal map: the prompt hidden from the decode queries at this layer alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnockoutRow {
    /// The layer.
    pub layer: usize,
    /// What hiding the prompt there costs.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// From which layer on a span of prompt tokens may vanish: what removing it costs, by the layer from which it is removed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SpanRecord {
    /// The prompt.
    #[serde(skip)]
    pub prompt_id: String,
    /// First position of the span.
    pub first: usize,
    /// One more than its last position.
    pub end: usize,
    /// Its text.
    pub text: String,
    /// One row per layer looked at, ascending; the last is that of L, which removes nothing.
    pub layers: Vec<SpanRow>,
}

/// A span removed from one layer on: its rows stop at the entrance of that layer, and no token reads them there or above.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct SpanRow {
    /// The first layer without the span, 0 … L.
    pub layer: usize,
    /// What it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Share of the decode queries' attention that goes to the span at this layer of the full model, mean over heads and
    /// steps; NaN at L.
    pub decode_mass: f64,
    /// Whether the greedy text without the span contains the answer; none where no answer was looked for.
    pub found: Option<bool>,
}

impl SpanRecord {
    /// The smallest layer looked at from which on the mean KL is within a tolerance at every layer; L, where nothing is
    /// removed, always is.
    pub fn vanishes_from(&self, tolerance: f64) -> usize {
        let within = self.layers.iter().rev().take_while(|row| row.divergence.kl <= tolerance);
        within.last().or(self.layers.last()).map_or(0, |row| row.layer)
    }
}

/// Wall-clock times of one prompt, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timings {
    /// Prompt to first token (time to first token, TTFT).
    pub prefill_s: f64,
    /// All further greedy tokens; 0 where the answer was given.
    pub decode_s: f64,
    /// The teacher-forced pass with every probe.
    pub probe_s: f64,
    /// Frontier and causal map.
    pub frontier_s: f64,
}

impl PromptRecord {
    /// Number of layers L.
    pub fn layers(&self) -> usize {
        self.attention.bos_mass.dim().0
    }

    /// Number of query heads H.
    pub fn heads(&self) -> usize {
        self.attention.bos_mass.dim().1
    }

    /// Number of decode steps N.
    pub fn steps(&self) -> usize {
        self.attention.bos_mass.dim().2
    }

    /// Number of prompt tokens p.
    pub fn prompt_len(&self) -> usize {
        self.prompt_tokens.len()
    }
}
