//! Trains an adapter and reports progress to the window.

use super::message::{Event, Training};
use super::worker::Task;
use layerscope_adapt::Settings;
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_engine::{Error, Policy, Result};
use std::path::PathBuf;

/// Steps between measurements on held-out prompts.
const EVALUATE_EVERY: usize = 25;

/// Trains an adapter into a folder.
///
/// # Errors
/// As [`layerscope_adapt::adapt`]; [`Error::Input`] on a policy that no adapter is trained for.
pub(super) fn adapt(
    task: Task<'_, '_>,
    prompts: &PromptFile,
    training: &Training,
    folder: PathBuf,
) -> Result<()> {
    let Task { model, events, interrupt } = task;
    if model.adapter.is_some() {
        return Err(Error::input(format!(
            "{} has an adapter already; open the model without one to train another",
            model.name
        )));
    }
    let policy = Policy::parse_for(&training.policy, model.config())?;
    let name = policy.to_string();
    let cutoff = policy.visibility().map(|visibility| visibility.cutoff);
    let settings = Settings {
        rank: Some(training.rank),
        alpha: 2.0 * training.rank as f64,
        learning_rate: training.learning_rate,
        minutes: Some(training.minutes),
        steps: usize::MAX,
        max_new_tokens: training.max_new_tokens,
        evaluate_every: EVALUATE_EVERY,
        with_frontier: true,
        ..Settings::new(policy)
    };
    // If a cancel makes `send` fail, the training stops, too.
    let send = |event| {
        let _ = events.send(event, interrupt);
    };
    let observe = &mut |event: layerscope_adapt::Event<'_>| match event {
        layerscope_adapt::Event::Preparing { .. } => {}
        layerscope_adapt::Event::Prepared { done, all } => {
            events.progress(Event::PromptsPrepared { done, all })
        }
        layerscope_adapt::Event::LeftOut { id, reason } => {
            send(Event::PromptLeftOut { id: id.to_owned(), reason });
        }
        layerscope_adapt::Event::Started { trained, held_out, resumed, .. } => {
            send(Event::TrainingStarted { policy: name.clone(), cutoff, trained, held_out, resumed });
        }
        layerscope_adapt::Event::Step { step, loss, done } => {
            events.progress(Event::TrainingStep { step, loss, done });
        }
        layerscope_adapt::Event::Evaluated { step, figures, frontier } => {
            send(Event::HeldOut { step, figures, frontier });
        }
    };
    let outcome = layerscope_adapt::adapt(model, prompts, &settings, &folder, interrupt, observe)?;
    let ended = Event::TrainingEnded { folder, training: outcome.training, cancelled: outcome.interrupted };
    events.deliver(ended);
    Ok(())
}
