//! The output of `layerscope show RUN --json`.

use layerscope_engine::Result;
use serde::Serialize;

use super::manifest::Manifest;
use super::reader::Run;
use crate::patching::PatchReport;
use crate::record::{Divergence, FrontierRow, KnockoutRow, PolicyRecord, PromptSummary, SpanRecord};

/// A run as one JSON object. Undefined numbers are NaN, which serde_json writes as null.
#[derive(Debug, Clone, Serialize)]
pub struct ShowReport {
    /// The run's manifest.
    pub manifest: Manifest,
    /// The recorded prompts, in the order of the prompt file.
    pub prompts: Vec<ShowPrompt>,
    /// Maps of activation patches between them; omitted if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<PatchReport>,
}

/// One prompt of a [`ShowReport`]. Per-layer figures are means over heads and decode steps.
#[derive(Debug, Clone, Serialize)]
pub struct ShowPrompt {
    /// Unique name of the prompt within the run.
    pub id: String,
    /// Its category.
    pub category: String,
    /// Prompt tokens p.
    pub p: usize,
    /// Token ids of the prompt, length p.
    pub prompt_tokens: Vec<u32>,
    /// Token ids of the continuation, length N.
    pub generated: Vec<u32>,
    /// Mass on position 0, length L.
    pub bos_mass: Vec<f64>,
    /// Mass on positions 1 … p−2, length L.
    pub prompt_mass: Vec<f64>,
    /// Mass on positions ≥ p−1, length L.
    pub decode_mass: Vec<f64>,
    /// Entropy within the prompt over ln(p−2), length L.
    pub prompt_entropy: Vec<f64>,
    /// Prompt mass per head, L lists of length H.
    pub prompt_mass_by_head: Vec<Vec<f64>>,
    /// Curvature over prompt positions, degrees, length L+1.
    pub curvature_prompt_deg: Vec<f64>,
    /// The exact cutoff frontier.
    pub frontier: Vec<FrontierRow>,
    /// Attention knockout.
    pub knockout: Vec<KnockoutRow>,
    /// Removed spans; omitted if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanRecord>,
    /// The prompt under policies; omitted if it was recorded under none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<ShowPolicy>,
}

/// A prompt under a policy: what the policy costs, and attention by layer, means over heads and steps.
#[derive(Debug, Clone, Serialize)]
pub struct ShowPolicy {
    /// Name of the policy.
    pub policy: String,
    /// How far next-token distributions move from the full model's.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Mass on position 0, length L.
    pub bos_mass: Vec<f64>,
    /// Mass on positions 1 … p−2, length L.
    pub prompt_mass: Vec<f64>,
    /// Mass on positions ≥ p−1, length L.
    pub decode_mass: Vec<f64>,
    /// Entropy within the prompt over ln(p−2), length L.
    pub prompt_entropy: Vec<f64>,
}

impl From<PolicyRecord> for ShowPolicy {
    fn from(record: PolicyRecord) -> Self {
        let attention = &record.attention;
        Self {
            bos_mass: PolicyRecord::by_layer(&attention.bos_mass),
            prompt_mass: PolicyRecord::by_layer(&attention.prompt_mass),
            decode_mass: PolicyRecord::by_layer(&attention.decode_mass),
            prompt_entropy: PolicyRecord::by_layer(&attention.prompt_entropy),
            policy: record.policy,
            divergence: record.divergence,
        }
    }
}

impl From<PromptSummary> for ShowPrompt {
    fn from(prompt: PromptSummary) -> Self {
        let by_head = prompt.heads.prompt_mass.outer_iter();
        Self {
            prompt_mass_by_head: by_head.map(|layer| layer.to_vec()).collect(),
            id: prompt.id,
            category: prompt.category,
            p: prompt.p,
            prompt_tokens: prompt.prompt_tokens,
            generated: prompt.generated,
            bos_mass: prompt.layers.bos_mass,
            prompt_mass: prompt.layers.prompt_mass,
            decode_mass: prompt.layers.decode_mass,
            prompt_entropy: prompt.layers.prompt_entropy,
            curvature_prompt_deg: prompt.layers.curvature_prompt_deg,
            frontier: prompt.frontier,
            knockout: prompt.knockout,
            spans: vec![],
            policies: vec![],
        }
    }
}

impl ShowReport {
    /// Reads all prompts of the run.
    pub(super) fn of(run: &Run) -> Result<Self> {
        let mut prompts =
            run.prompts().map(|prompt| prompt.map(ShowPrompt::from)).collect::<Result<Vec<_>>>()?;
        for span in run.spans()? {
            if let Some(prompt) = prompts.iter_mut().find(|prompt| prompt.id == span.prompt_id) {
                prompt.spans.push(span);
            }
        }
        for record in run.policies()? {
            if let Some(prompt) = prompts.iter_mut().find(|prompt| prompt.id == record.prompt_id) {
                prompt.policies.push(record.into());
            }
        }
        let patches = run.patches()?.into_iter().map(PatchReport::from).collect();
        Ok(Self { manifest: run.manifest().clone(), prompts, patches })
    }
}
