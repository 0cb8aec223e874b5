//! A map of activation patches in a few numbers: both runs without a patch, and the strongest patches.

use super::{PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt};
use schemars::JsonSchema;
use serde::Serialize;

/// Patches of a [`PatchReport`].
const STRONGEST: usize = 10;

/// A map in a few numbers.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PatchReport {
    /// The clean prompt.
    pub clean: UnpatchedRun,
    /// The corrupted prompt.
    pub corrupted: UnpatchedRun,
    /// What is replaced.
    pub site: PatchSite,
    /// In which run.
    pub direction: PatchDirection,
    /// What the effect is measured by.
    pub metric: PatchMetric,
    /// The answer.
    pub answer: PatchToken,
    /// The wrong answer.
    pub wrong: PatchToken,
    /// Cells of the map.
    pub cells: usize,
    /// Those that are computed.
    pub done: usize,
    /// The patches farthest from the run that is patched, strongest first; at most 10.
    pub strongest: Vec<StrongPatch>,
    /// The map; whole in the run's `patches.parquet`.
    #[serde(skip)]
    pub map: PatchMap,
}

/// A prompt's run without a patch.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct UnpatchedRun {
    /// Unique name of the prompt within the run folder.
    pub prompt_id: String,
    /// The most likely next token.
    pub next: PatchToken,
    /// Its figures.
    #[serde(flatten)]
    pub figures: PatchFigures,
}

/// A cell of a map.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StrongPatch {
    /// The layer.
    pub layer: usize,
    /// The position; null for heads.
    pub position: Option<usize>,
    /// The head; null for other sites.
    pub head: Option<usize>,
    /// The clean prompt's token at the position; null for heads.
    pub clean_token: Option<String>,
    /// The corrupted prompt's.
    pub corrupted_token: Option<String>,
    /// The metric on the scale on which the corrupted run is 0 and the clean run is 1.
    pub effect: f64,
    /// The figures of the patched run.
    #[serde(flatten)]
    pub figures: PatchFigures,
}

impl From<PatchMap> for PatchReport {
    fn from(map: PatchMap) -> Self {
        let unpatched = |of: &PatchedPrompt| UnpatchedRun {
            prompt_id: of.id.clone(),
            next: of.next.clone(),
            figures: of.figures,
        };
        Self {
            clean: unpatched(&map.clean),
            corrupted: unpatched(&map.corrupted),
            site: map.site,
            direction: map.direction,
            metric: map.metric,
            answer: map.answer.clone(),
            wrong: map.wrong.clone(),
            cells: map.cells.len(),
            done: map.done(),
            strongest: map.strongest().into_iter().take(STRONGEST).filter_map(|at| map.patch(at)).collect(),
            map,
        }
    }
}

impl PatchMap {
    /// The patch of a row and a column, by their places in the map; `None` where it is not computed.
    pub fn patch(&self, (row, at): (usize, usize)) -> Option<StrongPatch> {
        let (layer, column, figures) = (*self.layers.get(row)?, *self.columns.get(at)?, self.cell(row, at)?);
        let is_head = self.site == PatchSite::Head;
        let token =
            |of: &PatchedPrompt| of.tokens.get(column).map(|token| token.text.clone()).filter(|_| !is_head);
        Some(StrongPatch {
            layer,
            position: (!is_head).then_some(column),
            head: is_head.then_some(column),
            clean_token: token(&self.clean),
            corrupted_token: token(&self.corrupted),
            effect: self.effect(figures),
            figures,
        })
    }
}
