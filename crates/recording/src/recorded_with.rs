//! Whether a model is the one that a run was recorded with.

use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Model, Result};

/// Refuses a model whose figures would differ from the recorded ones.
///
/// # Errors
/// [`Error::Input`] where the weights or their precision are others.
pub(crate) fn check(run: &Run, model: &Model) -> Result<()> {
    let manifest = run.manifest();
    if model.sha256 == manifest.model.sha256 && model.precision.name() == manifest.weights {
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
