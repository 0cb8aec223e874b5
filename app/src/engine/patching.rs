//! Patches between two recorded prompts and reports progress to the window.

use super::message::Event;
use super::worker::Task;
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use layerscope_recording::patching::{KeptPatches, PatchRequest, patch_prompts};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Patches one prompt into the run of another, `[clean, corrupted]`, and adds the map to the run folder; of a cancelled one, what is done.
///
/// # Errors
/// As [`patch_prompts`]; [`layerscope_engine::Error::Interrupted`] where nothing is done.
pub(super) fn patch(
    task: Task<'_, '_>,
    folder: PathBuf,
    prompts: &[String; 2],
    request: &PatchRequest,
    adapter: Option<&Path>,
) -> Result<()> {
    let Task { model, events, interrupt } = task;
    let adapted = adapter.map(|adapter| model.with_adapter(adapter)).transpose()?;
    let (model, run) = (adapted.as_ref().unwrap_or(model), Run::open(&folder)?);
    let ids = prompts.each_ref().map(String::as_str);
    let KeptPatches { map, kept } = patch_prompts(&run, model, ids, request, interrupt, &mut |event| {
        events.progress(Event::Patching(event));
    })?;
    events.deliver(Event::Patched { folder, map: Arc::new(map), kept });
    Ok(())
}
