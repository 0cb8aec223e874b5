//! Removing a span of a recorded prompt, told to the window.

use super::message::Event;
use super::worker::Task;
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use layerscope_recording::spans::{Asked, Span, ask};
use std::ops::Range;
use std::path::PathBuf;

/// Removes a span from each layer on, and keeps what comes of it in the run folder.
///
/// # Errors
/// Whatever [`ask`] refuses; [`layerscope_engine::Error::Interrupted`].
pub(super) fn remove(task: Task<'_, '_>, folder: PathBuf, prompt_id: &str, span: Range<usize>) -> Result<()> {
    let Task { model, events, interrupt } = task;
    let asked = Asked { prompt_id, span: Span::Tokens(span), answer: None, layers: None };
    let run = Run::open(&folder)?;
    let record = ask(&run, model, &asked, interrupt, &mut |event| {
        events.progress(Event::RemovingSpan(event));
    })?;
    events.deliver(Event::SpanRemoved { folder, record });
    Ok(())
}
