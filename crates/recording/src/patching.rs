//! Patching between two recorded prompts of a run.

use crate::recorded_with;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Model, Result};

/// Token ids of two recorded prompts, for the model that the run was recorded with.
///
/// # Errors
/// [`layerscope_engine::Error::Input`] if the model or its precision is not the run's, or there is no such prompt.
pub fn recorded_pair(run: &Run, model: &Model, ids: [&str; 2]) -> Result<[Vec<u32>; 2]> {
    recorded_with::check(run, model)?;
    let [clean, corrupted] = ids.map(|id| run.prompt(id).map(|prompt| prompt.prompt_tokens));
    Ok([clean?, corrupted?])
}
