//! Checks that a model is the one of a run.

use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Model, Result};

/// Rejects a model other than the recorded one.
///
/// # Errors
/// [`Error::Input`] if the weights, their precision or the adapter differ.
pub(crate) fn check(run: &Run, model: &Model) -> Result<()> {
    let manifest = run.manifest();
    let adapters = [
        manifest.model.adapter.as_ref().map(|adapter| &adapter.sha256),
        model.adapter.as_ref().map(|adapter| &adapter.sha256),
    ];
    let is_same = model.sha256() == manifest.model.sha256 && model.precision.name() == manifest.weights;
    if is_same && adapters[0] == adapters[1] {
        return Ok(());
    }
    if is_same {
        let (with, mend) = match &manifest.model.adapter {
            Some(adapter) => (format!("with the adapter {}", adapter.name), "give the model the same one"),
            None => ("without an adapter".to_owned(), "leave it out"),
        };
        return Err(Error::input(format!("{} was recorded {with}; {mend}", run.folder().display())));
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
