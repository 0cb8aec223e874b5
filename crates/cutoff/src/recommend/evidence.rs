//! What a recommendation rests on.

use crate::cost::{CostModel, Workload};
use layerscope_diagnostics::record::{Anchor, PromptSummary};
use layerscope_diagnostics::run::{Manifest, ModelInfo};

/// A run's manifest and recorded prompts, from which everything that the recommendation needs follows.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Model, settings, and which prompts there are.
    pub manifest: &'a Manifest,
    /// The recorded prompts; their tokens are not looked at.
    pub prompts: &'a [PromptSummary],
}

impl<'a> Evidence<'a> {
    /// The model's name and numbers.
    pub fn model(self) -> &'a ModelInfo {
        &self.manifest.model
    }

    /// Layers L.
    pub fn layers(self) -> usize {
        self.model().layers
    }

    /// The model's costs.
    pub fn cost(self) -> CostModel {
        CostModel::new(self.model(), self.manifest.kv_element_bytes)
    }

    /// What each prompt and its continuation ask of the model.
    pub fn workloads(self) -> Vec<Workload> {
        self.prompts.iter().map(|prompt| Workload::new(prompt.p, prompt.steps)).collect()
    }

    /// Prompts of the run that failed or are not recorded yet.
    pub fn not_recorded(self) -> usize {
        self.manifest.prompts.ids.len().saturating_sub(self.prompts.len())
    }

    /// The anchors of which any prompt has frontier rows.
    pub(super) fn anchors(self) -> Vec<Anchor> {
        let has = |anchor: &Anchor| {
            let mut rows = self.prompts.iter().flat_map(|prompt| &prompt.frontier);
            rows.any(|row| row.anchor == *anchor)
        };
        Anchor::ALL.into_iter().filter(has).collect()
    }
}
