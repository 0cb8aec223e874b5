//! What a recommendation is based on.

use super::FrontierPoint;
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

    /// The first prompt with an undefined next-token distribution, as a sentence that names the model and where it begins.
    pub(super) fn undefined(self) -> Option<String> {
        let failed = self.manifest.prompts.failed.iter().find(|failed| failed.undefined);
        let failed = failed.map(|failed| (&failed.id, failed.reason.clone()));
        let recorded = self.prompts.iter().filter_map(|prompt| {
            let row = prompt.frontier.iter().filter(|row| !row.divergence.kl.is_finite()).max_by_key(|row| row.cutoff)?;
            let sentence = format!(
                "the next-token distribution is undefined (NaN or infinite) without the prompt's KV from layer {} on; the weights \
                 are damaged, fetch the model again",
                row.cutoff
            );
            Some((&prompt.id, sentence))
        });
        let (id, reason) = failed.into_iter().chain(recorded).next()?;
        Some(format!(
            "no recommendation from a run of {} with undefined figures: prompt `{id}`: {reason}",
            self.model().name
        ))
    }

    /// The cutoff that the run's adapter was made for, where that is one with this anchor.
    pub(super) fn adapted_to(self, anchor: Anchor) -> Option<usize> {
        let made_for = self.model().adapter.as_ref()?.policy.as_ref()?;
        let layers = self.layers();
        let policy = |cutoff| FrontierPoint { cutoff, anchor }.policy(layers).ok();
        (1..=layers).find(|&cutoff| policy(cutoff).is_some_and(|policy| policy.to_string() == *made_for))
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
