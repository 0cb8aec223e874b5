//! What a recommendation rests on.

use layerscope_diagnostics::record::{Anchor, FrontierRow, KnockoutRow};
use layerscope_diagnostics::run::{ModelInfo, PromptSummary, Run};
use layerscope_engine::Result;

use crate::cost::{CostModel, Workload};

/// A run, reduced to what the recommendation needs.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Layers L.
    pub layers: usize,
    /// The model's costs.
    pub cost: CostModel,
    /// The recorded prompts.
    pub prompts: Vec<PromptEvidence>,
    /// Prompts of the run that failed or are not recorded yet.
    pub not_recorded: usize,
    /// Sliding-window layers, ascending.
    pub windowed_layers: Vec<usize>,
    /// Tokens that such a layer sees.
    pub window: Option<usize>,
    /// The token at position 0, as shown, which the `bos` anchor keeps.
    pub bos: Option<String>,
}

/// One prompt's evidence. Undefined values are NaN.
#[derive(Debug, Clone)]
pub struct PromptEvidence {
    /// Unique name of the prompt within the run.
    pub id: String,
    /// Its category.
    pub category: String,
    /// Its p − 1 prefill tokens and N decode tokens.
    pub workload: Workload,
    /// The exact frontier.
    pub frontier: Vec<FrontierRow>,
    /// The causal layer map.
    pub knockout: Vec<KnockoutRow>,
    /// Mean prompt mass, length L.
    pub prompt_mass: Vec<f64>,
    /// Mean selectivity, length L.
    pub selectivity: Vec<f64>,
    /// Curvature over prompt positions, degrees, length L+1.
    pub curvature_prompt_deg: Vec<f64>,
}

impl Evidence {
    /// Reads the evidence of a run.
    ///
    /// # Errors
    /// As [`Run::prompt`].
    pub fn from_run(run: &Run) -> Result<Self> {
        let manifest = run.manifest();
        let prompts = run.prompts().map(|prompt| prompt.map(PromptEvidence::from));
        Ok(Self {
            prompts: prompts.collect::<Result<_>>()?,
            not_recorded: manifest.prompts.ids.len() - run.prompt_ids().len(),
            ..Self::without_prompts(&manifest.model, manifest.kv_element_bytes)
        })
    }

    /// The evidence of a model of which nothing has been recorded.
    pub fn without_prompts(model: &ModelInfo, kv_element_bytes: usize) -> Self {
        Self {
            layers: model.layers,
            cost: CostModel::new(model, kv_element_bytes),
            prompts: Vec::new(),
            not_recorded: 0,
            windowed_layers: model.windowed_layers.clone(),
            window: model.window,
            bos: model.bos.as_ref().map(|token| token.text.clone()),
        }
    }

    /// The anchors of which any prompt has frontier rows.
    pub(super) fn anchors(&self) -> Vec<Anchor> {
        let has = |anchor: &Anchor| {
            let mut rows = self.prompts.iter().flat_map(|prompt| &prompt.frontier);
            rows.any(|row| row.anchor == *anchor)
        };
        Anchor::ALL.into_iter().filter(has).collect()
    }
}

impl From<PromptSummary> for PromptEvidence {
    fn from(prompt: PromptSummary) -> Self {
        Self {
            id: prompt.id,
            category: prompt.category,
            workload: Workload {
                // The last prompt token is the first decode token, full depth under every policy.
                prompt_tokens: prompt.p.saturating_sub(1),
                decode_tokens: prompt.steps,
            },
            frontier: prompt.frontier,
            knockout: prompt.knockout,
            prompt_mass: prompt.layers.prompt_mass,
            selectivity: prompt.layers.selectivity,
            curvature_prompt_deg: prompt.layers.curvature_prompt_deg,
        }
    }
}
