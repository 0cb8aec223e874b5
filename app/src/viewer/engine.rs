//! What the viewer has the engine do.

use super::Viewer;
use crate::engine::Engine;
use crate::engine::message::{Command, LoadedModel};
use crate::live::Live;
use crate::state::View;
use crate::views::{Removing, generate};
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::{ModelSource, Policy, PromptText, Result, WeightsPrecision};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How soon the window is drawn after the engine said something. Not at once: drawing takes time from an engine on the
/// same processor, and the times that it measures are to be its own.
const PACE: Duration = Duration::from_millis(80);
/// The same where the processor also does the work of a graphics card.
const PACE_IN_SOFTWARE: Duration = Duration::from_millis(500);
impl Viewer {
    pub(super) fn load(&mut self, source: ModelSource) {
        let device = self.launch.device;
        self.send(Command::LoadModel { source, precision: WeightsPrecision::Native, device });
    }

    pub(super) fn send(&mut self, command: Command) {
        let ctx = self.ctx.clone();
        let pace = if self.launch.drawn_in_software { PACE_IN_SOFTWARE } else { PACE };
        let wake = move || ctx.request_repaint_after(pace);
        let engine = self.engine.get_or_insert_with(|| Engine::start(wake));
        if let Err(error) = engine.send(command) {
            self.say_error(error.to_string());
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(engine) = &self.engine {
            // Cancelling cannot fail for want of room; an engine that is gone has nothing to stop.
            let _ = engine.send(Command::Cancel);
        }
    }

    /// The policy that the marker stands for, of the kind that the user chose.
    ///
    /// # Errors
    /// What is wrong with a name that the user typed.
    pub(super) fn policy(&self) -> Result<Policy> {
        generate::policy(&self.state.policy, self.marker())
    }

    /// Its name, or what is wrong with it.
    pub(super) fn policy_name(&self) -> String {
        self.policy().map_or_else(|error| error.to_string(), |policy| policy.to_string())
    }

    /// Cutoff, whether position 0 is an anchor, and layers.
    fn marker(&self) -> (usize, bool, usize) {
        let layers = self.model.as_ref().map_or_else(|| self.layers(), |model| model.layers);
        (self.state.cutoff.clamp(1, layers), self.state.anchor == Anchor::Bos, layers)
    }

    pub(super) fn generate(&mut self) {
        self.state.view = View::Generate;
        if self.form.prompt.trim().is_empty() || self.engine.as_ref().is_some_and(Engine::is_busy) {
            return;
        }
        if !self.needs_model() {
            return;
        }
        let (cutoff, bos, layers) = self.marker();
        let policy = match self.policy() {
            Ok(policy) => policy,
            Err(error) => return self.say_error(error.to_string()),
        };
        let command = Command::Generate {
            prompt: PromptText::Plain(self.form.prompt.clone()),
            policies: vec![Policy::full(layers).to_string(), policy.to_string()],
            max_new_tokens: self.form.max_new_tokens,
        };
        // What the frontier predicts is SPEED's: nothing else measures it.
        let measures =
            cutoff < layers && Policy::speed(cutoff, bos, layers).is_ok_and(|speed| speed == policy);
        self.live = Arc::new(Live { cutoff: measures.then_some(cutoff), ..Live::default() });
        self.send(command);
    }

    /// Loads the run's model, if none is loaded and it is known where it is; whether one is there or comes.
    pub(super) fn needs_model(&mut self) -> bool {
        if self.model.is_some() {
            return true;
        }
        match self.model_of_run() {
            Some(source) => {
                self.load(source);
                true
            }
            None => {
                let name = self.run.as_ref().map_or("a model", |run| run.manifest.model.name.as_str());
                self.say_error(format!(
                    "open {name} first (its GGUF file or folder): it was not found by its name"
                ));
                false
            }
        }
    }

    /// Where the run's model is, by its name.
    pub(super) fn model_of_run(&self) -> Option<ModelSource> {
        let name = &self.run.as_ref()?.manifest.model.name;
        ModelSource::find(&self.launch.models, name).cloned()
    }

    pub(super) fn read_pattern(&mut self, layers: Vec<usize>) {
        let Some(run) = self.run.clone() else { return };
        let Some(prompt) = run.prompts.get(self.state.prompt) else { return };
        if !self.needs_model() {
            return;
        }
        self.reading_pattern_of = Some(self.state.prompt);
        self.send(Command::ReadPattern {
            prompt_tokens: prompt.prompt_tokens.clone(),
            continuation: prompt.generated.clone(),
            layers,
        });
    }

    /// Asks from which layer on tokens of the prompt in front may vanish.
    pub(super) fn remove_span(&mut self, span: Range<usize>) {
        let Some(run) = self.run.clone() else { return };
        let Some(prompt) = run.prompts.get(self.state.prompt) else { return };
        if self.removing.is_some() || !self.needs_model_of_run() {
            return;
        }
        self.removing = Some(Removing { span: span.clone(), progress: None });
        self.send(Command::RemoveSpan { folder: run.folder.clone(), prompt_id: prompt.id.clone(), span });
    }

    /// [`Self::needs_model`], where it must be the run's own in the run's precision: what is kept beside the run's figures is
    /// computed as they were.
    fn needs_model_of_run(&mut self) -> bool {
        let Some(manifest) = self.run.as_ref().map(|run| &run.manifest) else { return false };
        let is_it = |model: &LoadedModel| {
            model.sha256 == manifest.model.sha256 && model.precision == manifest.weights
        };
        if self.model.as_ref().is_some_and(is_it) {
            return true;
        }
        match (self.model_of_run(), WeightsPrecision::from_name(&manifest.weights)) {
            (Some(source), Some(precision)) => {
                let device = self.launch.device;
                self.send(Command::LoadModel { source, precision, device });
                true
            }
            // A model of the same bytes under another name is refused with a sentence, if it is in another precision.
            _ => self.needs_model(),
        }
    }

    pub(super) fn record(&mut self) {
        let recording = self.recorder.prompts().map(|prompts| Command::Record {
            prompts,
            max_new_tokens: self.recorder.max_new_tokens,
            folder: PathBuf::from(self.recorder.folder.trim()),
        });
        match recording {
            Ok(command) => self.send(command),
            Err(error) => self.say_error(error.to_string()),
        }
    }
}
