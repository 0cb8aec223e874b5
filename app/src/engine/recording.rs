//! Records a run and reports progress to the window.

use super::message::{Event, RecordingStage};
use super::worker::Task;
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_engine::{Error, Result};
use layerscope_recording::{Recorded, RecordingEvent};
use std::path::{Path, PathBuf};

/// Records prompts into a folder.
///
/// # Errors
/// Errors of the run; errors of single prompts are events.
pub(super) fn record(
    task: Task<'_, '_>,
    prompts: &PromptFile,
    max_new_tokens: usize,
    folder: PathBuf,
    adapter: Option<&Path>,
) -> Result<()> {
    let Task { model, events, interrupt } = task;
    let adapted = adapter.map(|adapter| model.with_adapter(adapter)).transpose()?;
    let model = adapted.as_ref().unwrap_or(model);
    // If a cancel makes `send` fail, the recording stops too.
    let send = |event| {
        let _ = events.send(event, interrupt);
    };
    let mut all_tokens = 0;
    let recorded = layerscope_recording::record(
        model,
        prompts,
        Recorded { ahead: true, ..Recorded::steps(max_new_tokens) },
        &folder,
        &[],
        interrupt,
        &mut |event| match event {
            RecordingEvent::Resumed { done, all } => send(Event::RecordingStarted { done, all }),
            RecordingEvent::Started { id, tokens } => {
                all_tokens = tokens;
                send(Event::PromptStarted { id: id.to_owned(), tokens });
            }
            RecordingEvent::Tokens(done) => {
                events.progress(progress(RecordingStage::Tokens { done, all: all_tokens }));
            }
            RecordingEvent::FrontierLayers { done, all } => {
                events.progress(progress(RecordingStage::Frontier { done, all }));
            }
            RecordingEvent::Texts { done, all } => {
                events.progress(progress(RecordingStage::Texts { done, all }));
            }
            RecordingEvent::LargestCutoffs { done, all } => {
                events.progress(progress(RecordingStage::LargestCutoffs { done, all }));
            }
            RecordingEvent::Recommended(ahead) => send(Event::Recommended { headline: ahead.headline() }),
            RecordingEvent::Finished(record) => send(Event::PromptFinished { id: record.summary.id.clone() }),
            RecordingEvent::Failed { id, reason } => {
                send(Event::PromptFailed { id: id.to_owned(), reason: reason.to_owned() });
            }
        },
    );
    let cancelled = match recorded {
        Ok(_) => false,
        Err(Error::Interrupted) => true,
        Err(error) => return Err(error),
    };
    events.deliver(Event::RecordingEnded { folder, cancelled });
    Ok(())
}

/// The frontier costs about as much as the recorded run before it, so each counts half; texts follow where an answer is expected.
fn progress(stage: RecordingStage) -> Event {
    let share = match stage {
        RecordingStage::Tokens { done, all } => half(done, all),
        RecordingStage::LargestCutoffs { .. } => 0.5,
        RecordingStage::Frontier { done, all } => 0.5 + half(done, all),
        RecordingStage::Texts { done, all } => 0.5 + half(done, all),
    };
    Event::PromptProgress { share, stage }
}

fn half(done: usize, all: usize) -> f32 {
    0.5 * done.min(all) as f32 / all.max(1) as f32
}
