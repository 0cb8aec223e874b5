//! Removes a span of a recorded prompt and reports progress to the window.

use super::message::Event;
use super::worker::Task;
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use layerscope_recording::spans::{SpanRequest, SpanTokens, remove_span};
use std::ops::Range;
use std::path::PathBuf;

/// Removes a span from each layer on, and writes the result to the run folder.
///
/// # Errors
/// As [`remove_span`]; [`layerscope_engine::Error::Interrupted`].
pub(super) fn remove(task: Task<'_, '_>, folder: PathBuf, prompt_id: &str, span: Range<usize>) -> Result<()> {
    let Task { model, events, interrupt } = task;
    let request = SpanRequest { prompt_id, tokens: SpanTokens::At(span), answer: None, layers: None };
    let run = Run::open(&folder)?;
    let record = remove_span(&run, model, &request, interrupt, &mut |event| {
        events.progress(Event::RemovingSpan(event));
    })?;
    events.deliver(Event::SpanRemoved { folder, record });
    Ok(())
}
