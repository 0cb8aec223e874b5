//! Maps of activation patches, as they are drawn.

use layerscope_diagnostics::patching::{PatchMap, StrongPatch};
use layerscope_report::PatchFigure;
use std::sync::Arc;

/// Patches of [`DrawnPatches::strongest`].
const STRONGEST: usize = 24;

/// A map with its figure.
#[derive(Debug, Clone)]
pub struct DrawnPatches {
    /// The map.
    pub map: Arc<PatchMap>,
    /// Its figure, with a row for each layer of the model.
    pub figure: Arc<PatchFigure>,
    /// Its question in a line, by which it is known.
    pub question: String,
    /// The patches farthest from the run that is patched, strongest first.
    pub strongest: Vec<StrongPatch>,
}

impl DrawnPatches {
    /// The map of a model of so many layers.
    pub fn new(map: Arc<PatchMap>, layers: usize) -> Self {
        let strongest = map.strongest().into_iter().take(STRONGEST);
        Self {
            strongest: strongest.filter_map(|at| map.patch(at)).collect(),
            figure: Arc::new(PatchFigure::of(&map, layers)),
            question: map.question(layers),
            map,
        }
    }
}
