//! The viewer's use of the engine.

use super::Viewer;
use crate::engine::message::{Command, LoadedModel, Under};
use crate::live::{Live, side_name};
use crate::state::View;
use crate::views::Removing;
use crate::views::generate::{self, Form};
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::{ModelSource, Policy, PromptText, Result, WeightsPrecision};
use ndarray::Array2;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(not(target_arch = "wasm32"))]
use std::time::Duration;

/// Delay of a redraw after an engine event. Drawing takes CPU time from the engine, which would distort its
/// measured times.
#[cfg(not(target_arch = "wasm32"))]
const PACE: Duration = Duration::from_millis(80);
/// The same with software rendering.
#[cfg(not(target_arch = "wasm32"))]
const PACE_IN_SOFTWARE: Duration = Duration::from_millis(500);
impl Viewer {
    pub(super) fn load(&mut self, source: ModelSource) {
        self.load_as(source, WeightsPrecision::Native);
    }

    fn load_as(&mut self, source: ModelSource, precision: WeightsPrecision) {
        self.loaded_from = Some(source.clone());
        self.send(Command::LoadModel { source, precision, device: self.launch.device });
    }

    pub(super) fn send(&mut self, command: Command) {
        // Tiles make way: they are asked for again when they are in sight and nothing else is to be done.
        self.stop_tiles();
        if let Err(error) = self.files() {
            return self.say_error(error.to_string());
        }
        #[cfg(not(target_arch = "wasm32"))]
        if self.engine.is_none() {
            let ctx = self.ctx.clone();
            let pace = if self.launch.drawn_in_software { PACE_IN_SOFTWARE } else { PACE };
            let wake = move || ctx.request_repaint_after(pace);
            self.engine = Some(crate::engine::Engine::Here(crate::engine::LocalEngine::start(wake)));
        }
        if let Some(engine) = &self.engine
            && let Err(error) = engine.send(command)
        {
            self.say_error(error.to_string());
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(engine) = &self.engine {
            // A cancel needs no space in the queue; if the engine has ended, there is nothing to stop.
            let _ = engine.send(Command::Cancel);
        }
    }

    /// The policy of the chosen kind at the cutoff.
    ///
    /// # Errors
    /// If the typed name is invalid.
    pub(super) fn policy(&self) -> Result<Policy> {
        generate::policy(&self.state.policy, self.marker())
    }

    /// Its name, or the error.
    pub(super) fn policy_name(&self) -> String {
        self.policy().map_or_else(|error| error.to_string(), |policy| policy.to_string())
    }

    /// Share of the full model's tokens that each KV head has at the current prompt's end under the chosen policy, where that is more
    /// than a cutoff, for the views that show it; `[layer, KV head]`.
    pub(super) fn kept(&self) -> Option<Array2<f64>> {
        if !matches!(self.state.view, View::Heads | View::Map) {
            return None;
        }
        let run = self.run.as_ref()?;
        let prompt = run.prompts.get(self.state.prompt)?;
        let policy = self.policy().ok().filter(|_| !generate::is_by_cutoff(&self.state.policy))?;
        (self.layers() == run.layers()).then(|| run.kept(&policy, prompt.p))
    }

    /// Cutoff, whether position 0 is an anchor, and layers.
    fn marker(&self) -> (usize, bool, usize) {
        let layers = self.model.as_ref().map_or_else(|| self.layers(), |model| model.layers);
        (self.state.cutoff.clamp(1, layers), self.state.anchor == Anchor::Bos, layers)
    }

    pub(super) fn generate(&mut self) {
        self.state.view = View::Generate;
        if self.form.prompt.trim().is_empty() || self.is_busy() {
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
        let mut names = vec![Policy::full(layers).to_string(), policy.to_string()];
        for more in &self.form.more {
            if !names.contains(more) {
                names.push(more.clone());
            }
        }
        let prompt = PromptText::Plain(self.form.prompt.clone());
        let side = |policy: String| Under { prompt: prompt.clone(), policy, adapter: None };
        let mut sides: Vec<Under> = names.into_iter().map(side).collect();
        let adapter = self.adapter.clone().filter(|_| self.form.with_adapter);
        sides.extend(adapter.map(|adapter| Under { adapter: Some(adapter), ..side(policy.to_string()) }));
        // The frontier predicts SPEED, so only SPEED measures its savings.
        let measures =
            cutoff < layers && Policy::speed(cutoff, bos, layers).is_ok_and(|speed| speed == policy);
        self.generate_sides(sides, measures.then_some(cutoff));
    }

    /// Sends the text as the next message of every side's conversation.
    pub(super) fn reply(&mut self) {
        if self.is_busy() || self.model.is_none() {
            return;
        }
        let Some(sides) = self.live.reply(self.form.prompt.trim()) else { return };
        self.form.prompt.clear();
        // Sides have prompts of their own, so that their times do not compare.
        self.generate_sides(sides, None);
    }

    fn generate_sides(&mut self, sides: Vec<Under>, cutoff: Option<usize>) {
        let name = |side: &Under| {
            let adapter = side.adapter.as_ref().and_then(|folder| folder.file_name());
            side_name(&side.policy, adapter.map(|name| name.to_string_lossy()).as_deref())
        };
        let asked = sides.iter().map(name).collect();
        self.live = Arc::new(Live { asked, under: sides.clone(), cutoff, ..Live::default() });
        let Form { max_new_tokens, .. } = self.form;
        self.send(Command::Generate { sides, max_new_tokens, sampling: self.form.sampling() });
    }

    /// Loads the run's model, if none is loaded and its path is known; returns whether one is loaded or
    /// loading.
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
                self.ask_for_model(format!(
                    "open {name} first (its GGUF file or folder): it was found neither by its name nor where it was loaded from before"
                ));
                false
            }
        }
    }

    /// The source of the run's model: the one that the user names, that of its name, or where it was loaded from before.
    pub(super) fn model_of_run(&self) -> Option<ModelSource> {
        let run = self.run.as_ref()?;
        if self.there.is_some() {
            return self.launch.model_of_runs.clone().or_else(|| run.model.clone());
        }
        let model = &run.manifest.model;
        let named = || ModelSource::find(&self.launch.models, &model.name).cloned();
        let seen = || (self.launch.seen.remembered)(&model.sha256).map(ModelSource::path);
        self.launch.model_of_runs.clone().or_else(named).or_else(seen)
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

    /// Removes tokens of the current prompt from each layer on.
    pub(super) fn remove_span(&mut self, span: Range<usize>) {
        let Some(run) = self.run.clone() else { return };
        let Some(prompt) = run.prompts.get(self.state.prompt) else { return };
        if self.removing.is_some() || !self.needs_model_of_run() {
            return;
        }
        self.removing = Some(Removing { span: span.clone(), progress: None });
        self.send(Command::RemoveSpan { folder: run.folder.clone(), prompt_id: prompt.id.clone(), span });
    }

    /// [`Self::needs_model`] for exactly the run's model in the run's precision, because the result is stored
    /// in the run.
    pub(super) fn needs_model_of_run(&mut self) -> bool {
        let Some(manifest) = self.run.as_ref().map(|run| &run.manifest) else { return false };
        let is_it = |model: &LoadedModel| {
            model.sha256 == manifest.model.sha256 && model.precision == manifest.weights
        };
        if self.model.as_ref().is_some_and(is_it) {
            return true;
        }
        match (self.model_of_run(), WeightsPrecision::from_name(&manifest.weights)) {
            (Some(source), Some(precision)) => {
                self.load_as(source, precision);
                true
            }
            // The engine rejects the same model under another name if its precision differs.
            _ => self.needs_model(),
        }
    }

    pub(super) fn record(&mut self) {
        let recording = self.recorder.prompts().map(|prompts| Command::Record {
            prompts,
            max_new_tokens: self.recorder.max_new_tokens,
            folder: PathBuf::from(self.recorder.folder.trim()),
            adapter: self.adapter.clone().filter(|_| self.recorder.with_adapter),
        });
        match recording {
            Ok(command) => self.send(command),
            Err(error) => self.say_error(error.to_string()),
        }
    }

    /// Trains an adapter for the policy at the marker's cutoff.
    pub(super) fn adapt(&mut self) {
        if !self.needs_model() {
            return;
        }
        let files = self.files();
        let training = self.policy().map(|policy| self.adapting.training(policy.to_string()));
        let (files, training) = match (files, training) {
            (Ok(files), Ok(training)) => (files, training),
            (Err(error), _) | (_, Err(error)) => return self.say_error(error.to_string()),
        };
        let adapting = self.adapting.clone();
        let command = async move {
            let prompts = match adapting.bundled_prompts() {
                Some(bundled) => bundled,
                None => files.prompts(Path::new(adapting.prompts.trim())).await?,
            };
            Ok(Command::Adapt { prompts, training, folder: PathBuf::from(adapting.folder.trim()) })
        };
        if self.there.is_some() {
            return self.prepare(command);
        }
        #[cfg(not(target_arch = "wasm32"))]
        match pollster::block_on(command) {
            Ok(command) => self.send(command),
            Err(error) => self.say_error(error.to_string()),
        }
    }

    /// The name of the adapter that can be used.
    pub(super) fn adapter_name(&self) -> Option<String> {
        Some(self.adapter.as_ref()?.file_name()?.to_string_lossy().into_owned())
    }
}
