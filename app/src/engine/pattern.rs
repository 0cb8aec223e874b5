//! Attention patterns of a recorded prompt, computed on demand: those of a whole run would be too large to
//! store.

use super::message::{Event, Pattern};
use super::worker::Task;
use layerscope_engine::{Error, HookPoint, Hooks, Policy, Result, Session, Site, check_interrupt};
use ndarray::Axis;

/// Computes patterns, and keeps the KV of the last prompt, because users view its layers one by one.
#[derive(Default)]
pub(super) struct PatternReader {
    last: Option<Prefilled>,
}

/// A prefilled prompt, with capacity for `steps` decode rows.
struct Prefilled {
    prompt: Vec<u32>,
    steps: usize,
    session: Session,
}

impl PatternReader {
    /// Sends the pattern of each layer.
    ///
    /// # Errors
    /// [`Error::Input`] on layers or tokens that the model does not have; [`Error::Interrupted`].
    pub(super) fn read(
        &mut self,
        task: Task<'_, '_>,
        prompt: Vec<u32>,
        continuation: &[u32],
        layers: &[usize],
    ) -> Result<()> {
        check(task, &prompt, continuation, layers)?;
        let steps = continuation.len();
        // Taken out, so that an error leaves no partial state.
        let mut prefilled = match self.last.take().filter(|last| last.prompt == prompt && last.steps == steps)
        {
            Some(last) => last,
            None => prefill(task, prompt, steps)?,
        };
        // All decode rows in one pass, as in recording: the last prompt token and all generated tokens except
        // the last.
        let positions = prefilled.prompt.len();
        let boundary = positions - 1;
        let rows: Vec<u32> =
            prefilled.prompt[boundary..].iter().chain(&continuation[..steps - 1]).copied().collect();
        let heads = task.model.config().heads;
        let mut hooks = Hooks::none();
        for &layer in layers {
            hooks.add(HookPoint { layer, site: Site::Pattern }, move |_, pattern| {
                check_interrupt(task.interrupt)?;
                // Under the full policy every position is stored, so key j is position j.
                let values = pattern.slice_axis(Axis(2), (..positions).into()).iter().copied().collect();
                let pattern = Pattern { layer, heads, steps, positions, values };
                task.events.send(Event::Pattern(pattern), task.interrupt)?;
                Ok(None)
            });
        }
        prefilled.session.truncate(boundary)?;
        prefilled.session.teacher_forced(&rows, &mut hooks, &mut vec![])?;
        self.last = Some(prefilled);
        Ok(())
    }
}

fn prefill(task: Task<'_, '_>, prompt: Vec<u32>, steps: usize) -> Result<Prefilled> {
    let decoder = &task.model.decoder;
    let all = prompt.len();
    let mut session = Session::new(decoder, Policy::full(decoder.config().layers), all, steps)?;
    session.prefill(&prompt, &mut Hooks::none(), task.interrupt, &mut |done| {
        task.events.progress(Event::ReadingPattern { done, all });
    })?;
    Ok(Prefilled { prompt, steps, session })
}

fn check(task: Task<'_, '_>, prompt: &[u32], continuation: &[u32], layers: &[usize]) -> Result<()> {
    let config = task.model.config();
    if prompt.is_empty() || continuation.is_empty() {
        return Err(Error::input("an attention pattern needs a prompt and a continuation; record one first"));
    }
    if let Some(layer) = layers.iter().find(|&&layer| layer >= config.layers) {
        return Err(Error::input(format!(
            "layer {layer} is not between 0 and {}; open the model that the run was recorded with",
            config.layers - 1
        )));
    }
    if let Some(id) = prompt.iter().chain(continuation).find(|&&id| id as usize >= config.vocab) {
        return Err(Error::input(format!(
            "the model has no token {id}; open the model that the run was recorded with"
        )));
    }
    Ok(())
}
