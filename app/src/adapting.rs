//! The state of a training, and the form for the next one.

use crate::engine::message::{Event, Training};
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_engine::{AdapterTraining, HeldOutFigures};
use std::path::PathBuf;
use std::time::Duration;
use web_time::Instant;

/// The training form and the training's progress.
#[derive(Debug, Clone, Default)]
pub struct Adapting {
    /// Path of the prompt file.
    pub prompts: String,
    /// Prompts that are taken where no path is given.
    pub bundled: Option<PromptFile>,
    /// Minutes of training.
    pub minutes: f64,
    /// Rank of the adapter.
    pub rank: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Decode rows of each prompt.
    pub max_new_tokens: usize,
    /// The adapter's folder.
    pub folder: String,
    /// The current or last training.
    pub progress: Option<Progress>,
}

/// Progress of a training.
#[derive(Debug, Clone)]
pub struct Progress {
    /// What it does.
    pub stage: Stage,
    /// The policy that it trains for.
    pub policy: String,
    /// Its cutoff, where that is all it is.
    pub cutoff: Option<usize>,
    /// Prompts trained on, and held out.
    pub prompts: [usize; 2],
    /// The loss of each step, `(step, nats)`.
    pub losses: Vec<(usize, f64)>,
    /// Measurements on held-out prompts, the first without the adapter unless an earlier training goes on.
    pub held_out: Vec<Measurement>,
    /// Prompts that were left out, with the reason.
    pub left_out: Vec<(String, String)>,
    /// What it took and changed, at the end.
    pub outcome: Option<AdapterTraining>,
    done: f64,
    resumed_at: f64,
    started: Instant,
}

/// What a training does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Runs prompts through the full model.
    Preparing {
        /// Prompts done.
        done: usize,
        /// Prompts in all.
        all: usize,
    },
    /// Trains.
    Training,
    /// It ended, by itself or because the user stopped it.
    Ended {
        /// Whether the user stopped it.
        cancelled: bool,
    },
}

/// A measurement on held-out prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// After so many steps.
    pub step: usize,
    /// Under the policy.
    pub figures: HeldOutFigures,
    /// Mean KL at some cutoffs, `(cutoff, nats)`, ascending.
    pub frontier: Vec<(usize, f64)>,
}

impl Adapting {
    /// A form with the defaults.
    pub fn new() -> Self {
        Self {
            minutes: 5.0,
            rank: 16,
            learning_rate: 1e-3,
            max_new_tokens: 32,
            folder: "adapter".into(),
            ..Self::default()
        }
    }

    /// The bundled prompts, where they are to be taken; else those of the file are.
    pub fn bundled_prompts(&self) -> Option<PromptFile> {
        self.bundled.clone().filter(|_| self.prompts.trim().is_empty())
    }

    /// How to train for a policy.
    pub fn training(&self, policy: String) -> Training {
        Training {
            policy,
            minutes: self.minutes,
            rank: self.rank,
            learning_rate: self.learning_rate,
            max_new_tokens: self.max_new_tokens,
        }
    }

    /// Handles an event of the engine. Returns the adapter's folder when a training ends.
    pub fn take(&mut self, event: &Event) -> Option<PathBuf> {
        if let Event::PromptsPrepared { done, all } = event {
            let stage = Stage::Preparing { done: *done, all: *all };
            match &mut self.progress {
                Some(progress) if matches!(progress.stage, Stage::Preparing { .. }) => progress.stage = stage,
                _ => self.progress = Some(Progress::new(stage)),
            }
        }
        if let (Event::TrainingStarted { .. }, None | Some(Progress { stage: Stage::Ended { .. }, .. })) =
            (event, &self.progress)
        {
            self.progress = Some(Progress::new(Stage::Training));
        }
        let progress = self.progress.as_mut()?;
        match event {
            Event::PromptLeftOut { id, reason } => progress.left_out.push((id.clone(), reason.clone())),
            Event::TrainingStarted { policy, cutoff, trained, held_out, .. } => {
                (progress.stage, progress.started) = (Stage::Training, Instant::now());
                progress.policy.clone_from(policy);
                (progress.cutoff, progress.prompts) = (*cutoff, [*trained, *held_out]);
            }
            Event::TrainingStep { step, loss, done } => {
                if progress.losses.is_empty() {
                    (progress.resumed_at, progress.started) = (*done, Instant::now());
                }
                progress.losses.push((*step, *loss));
                progress.done = *done;
            }
            Event::HeldOut { step, figures, frontier } => progress.held_out.push(Measurement {
                step: *step,
                figures: *figures,
                frontier: frontier.clone(),
            }),
            Event::TrainingEnded { folder, training, cancelled } => {
                progress.stage = Stage::Ended { cancelled: *cancelled };
                progress.outcome = Some(training.clone());
                return Some(folder.clone());
            }
            Event::Idle if !matches!(progress.stage, Stage::Ended { .. }) => {
                progress.stage = Stage::Ended { cancelled: true };
            }
            _ => {}
        }
        None
    }
}

impl Progress {
    fn new(stage: Stage) -> Self {
        Self {
            stage,
            policy: String::new(),
            cutoff: None,
            prompts: [0, 0],
            losses: vec![],
            held_out: vec![],
            left_out: vec![],
            outcome: None,
            done: 0.0,
            resumed_at: 0.0,
            started: Instant::now(),
        }
    }

    /// Share of the current stage that is done, in \[0, 1\].
    pub fn share(&self) -> f32 {
        match self.stage {
            Stage::Preparing { done, all } => done as f32 / all.max(1) as f32,
            Stage::Training => self.done as f32,
            Stage::Ended { .. } => 1.0,
        }
    }

    /// Estimated remaining time of the current stage; `None` before there is a rate.
    pub fn left(&self) -> Option<Duration> {
        let done = match self.stage {
            Stage::Preparing { .. } => f64::from(self.share()),
            Stage::Training => self.done - self.resumed_at,
            Stage::Ended { .. } => return None,
        };
        let left = 1.0 - f64::from(self.share());
        (done > 0.01).then(|| self.started.elapsed().mul_f64(left / done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, done: f64) -> Event {
        Event::TrainingStep { step, loss: 1.0 / step as f64, done }
    }

    #[test]
    fn a_training_is_followed_from_its_prompts_to_its_end() {
        let mut adapting = Adapting::new();
        assert_eq!(adapting.take(&Event::Idle), None);
        adapting.take(&Event::PromptsPrepared { done: 1, all: 4 });
        adapting.take(&Event::PromptLeftOut { id: "a".into(), reason: "is too short".into() });
        adapting.take(&Event::PromptsPrepared { done: 3, all: 4 });
        let progress = adapting.progress.as_ref().expect("a training");
        assert_eq!((progress.share(), progress.left_out.len()), (0.75, 1));
        let policy = "speed:5+bos".to_owned();
        adapting.take(&Event::TrainingStarted {
            policy,
            cutoff: Some(5),
            trained: 2,
            held_out: 1,
            resumed: 0,
        });
        adapting.take(&step(1, 0.25));
        adapting.take(&step(2, 0.5));
        let progress = adapting.progress.as_ref().expect("a training");
        assert_eq!((progress.losses.as_slice(), progress.share()), (&[(1, 1.0), (2, 0.5)][..], 0.5));
        assert!(progress.left().is_some());
        let figures = HeldOutFigures::default();
        let training = AdapterTraining {
            steps: 2,
            tokens: 8,
            rows: 8,
            seconds: 1.0,
            prompts: 2,
            held_out: 1,
            before: figures,
            after: figures,
            full_depth: None,
        };
        let ended = Event::TrainingEnded { folder: "adapter".into(), training, cancelled: true };
        assert_eq!(adapting.take(&ended), Some("adapter".into()));
        adapting.take(&Event::Idle);
        let progress = adapting.progress.as_ref().expect("a training");
        assert_eq!(progress.stage, Stage::Ended { cancelled: true });
        // Another begins anew.
        adapting.take(&Event::PromptsPrepared { done: 1, all: 9 });
        assert!(adapting.progress.as_ref().is_some_and(|progress| progress.losses.is_empty()));
    }
}
