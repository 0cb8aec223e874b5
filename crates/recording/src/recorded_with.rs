//! Checks that a model is the one of a run.

use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Model, Result};

/// Rejects a model other than the recorded one.
///
/// # Errors
/// [`Error::Input`] if the weights or their precision differ.
pub(crate) fn check(run: &Run, model: &Model) -> Result<()> {
    let manifest = run.manifest();
    let adapters = [
        manifest.model.adapter.as_ref().map(|adapter| &adapter.sha256),
        model.adapter.as_ref().map(|adapter| &adapter.sha256),
    ];
    let is_same = model.sha256 == manifest.model.sha256 && adapters[0] == adapters[1];
    if is_same && model.precision.name() == manifest.weights {
        return Ok(());
    }
    Err(Error::input(format!(
        "{} was recorded with {} and --weights {}, not with this {} and --weights {}; continue its prompts with the same",
        run.folder().display(),
        manifest.model.name,
        manifest.weights,
        model.name,
        model.precision.name()
    )))
}
