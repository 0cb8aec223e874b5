//! The window: what is open, what is going on, and which view is in front.

mod cutoff_panel;
mod dialogs;
mod export;
mod frame;
mod panels;

use crate::command::Order;
use crate::data::{PromptMaps, RunData, Task};
use crate::engine::Engine;
use crate::engine::message::{Command, Event, LoadedModel, Pattern};
use crate::live::{Live, policy_name};
use crate::recorder::Recorder;
use crate::state::{History, Selection, View, ViewState};
use crate::views::frontier::Measured;
use crate::views::generate::Form;
use crate::views::{Action, Scene};
use dialogs::Dialogs;
use eframe::egui::{Context, Theme, ViewportCommand};
pub use export::screenshot;
use layerscope_cutoff::recommend::Recommendation;
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::run::MANIFEST;
use layerscope_engine::{ModelSource, PromptText, Result, WeightsPrecision};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Maps of recently shown prompts are kept up to so many bytes.
const MAPS_KEPT: usize = 512 << 20;
/// How soon the window is drawn after the engine said something. Not at once: drawing takes time from an engine on the
/// same processor, and the times that it measures are to be its own.
const PACE: Duration = Duration::from_millis(80);
/// The same where the processor also does the work of a graphics card.
const PACE_IN_SOFTWARE: Duration = Duration::from_millis(500);
/// Runs and models in the list of recent ones.
const RECENT: usize = 10;

/// What a window opens with.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What is opened.
    pub open: Open,
    /// Models that can be loaded by name: those that come with the program and those that were found.
    pub models: Vec<(String, ModelSource)>,
    /// Folder that recordings go to unless the user names another.
    pub runs_folder: PathBuf,
    /// The view in front; the remembered one, if none.
    pub view: Option<View>,
    /// Light or dark; the remembered one, if none.
    pub theme: Option<Theme>,
    /// Whether the processor also does the work of a graphics card; then it is drawn seldom while the engine works.
    pub drawn_in_software: bool,
}

/// What is opened.
#[derive(Debug, Clone)]
pub enum Open {
    /// A run folder, a model or a prompt file.
    Path(PathBuf),
    /// A model and prompts that come with the program, recorded on the spot.
    Demo {
        /// The model.
        model: ModelSource,
        /// The prompts.
        prompts: PromptFile,
        /// Decode steps of each prompt.
        max_new_tokens: usize,
        /// The run folder.
        folder: PathBuf,
    },
}

/// What is remembered between sessions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// The view.
    pub state: ViewState,
    /// Recent runs and models, latest first.
    pub recent: Vec<PathBuf>,
    /// Light or dark, where the user chose.
    pub dark: Option<bool>,
}

/// The viewer.
pub struct Viewer {
    ctx: Context,
    state: ViewState,
    history: History<ViewState>,
    launch: Launch,
    recent: Vec<PathBuf>,
    dark: Option<bool>,
    run: Option<Arc<RunData>>,
    opening: Option<(PathBuf, Task<RunData>)>,
    /// The latest last.
    maps: Vec<Arc<PromptMaps>>,
    reading: Option<(usize, Task<PromptMaps>)>,
    recommendation: Option<Recommended>,
    recommending: Option<Task<Recommended>>,
    /// Whether the marker goes to the recommendation as soon as there is one.
    follow_recommendation: bool,
    engine: Option<Engine>,
    model: Option<LoadedModel>,
    /// What the engine does, for the status line.
    doing: Option<String>,
    live: Arc<Live>,
    form: Form,
    recorder: Recorder,
    patterns: Arc<Vec<Pattern>>,
    reading_pattern_of: Option<usize>,
    measured: Vec<Measured>,
    notices: Vec<Notice>,
    dialogs: Dialogs,
    readout: Option<String>,
    exporting: Option<Task<PathBuf>>,
    view_size: eframe::egui::Vec2,
}

/// A recommendation, or why there is none, with what was asked.
#[derive(Debug)]
struct Recommended {
    tolerance: f64,
    anchor: Anchor,
    outcome: std::result::Result<Recommendation, String>,
}

/// A sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Notice {
    text: String,
    is_error: bool,
}

impl Viewer {
    /// A viewer in a context; the context is given its themes and type sizes.
    pub fn new(ctx: &Context, launch: Launch, remembered: Remembered) -> Self {
        crate::design::apply(ctx);
        let mut state = remembered.state;
        (state.prompt, state.selection) = (0, Selection::default());
        (state.token_window, state.step_window) = (None, None);
        let dark = launch.theme.map(|theme| theme == Theme::Dark).or(remembered.dark);
        if let Some(dark) = dark {
            ctx.set_theme(if dark { Theme::Dark } else { Theme::Light });
        }
        let mut viewer = Self {
            ctx: ctx.clone(),
            state,
            history: History::default(),
            recent: remembered.recent,
            dark,
            run: None,
            opening: None,
            maps: vec![],
            reading: None,
            recommendation: None,
            recommending: None,
            follow_recommendation: false,
            engine: None,
            model: None,
            doing: None,
            live: Arc::default(),
            form: Form::default(),
            recorder: Recorder::new(),
            patterns: Arc::default(),
            reading_pattern_of: None,
            measured: vec![],
            notices: vec![],
            dialogs: Dialogs::default(),
            readout: None,
            exporting: None,
            view_size: eframe::egui::vec2(1_000.0, 640.0),
            launch,
        };
        match viewer.launch.open.clone() {
            Open::Path(path) => viewer.open(&path),
            Open::Demo { model, prompts, max_new_tokens, folder } => {
                viewer.load(model);
                viewer.send(Command::Record { prompts, max_new_tokens, folder });
            }
        }
        if let Some(view) = viewer.launch.view {
            viewer.state.view = view;
        }
        viewer
    }

    /// What is to be remembered.
    pub fn remembered(&self) -> Remembered {
        Remembered { state: self.state.clone(), recent: self.recent.clone(), dark: self.dark }
    }

    /// The view's state.
    pub fn state(&self) -> &ViewState {
        &self.state
    }

    /// The run that is open.
    pub fn run(&self) -> Option<&RunData> {
        self.run.as_deref()
    }

    /// What was generated live.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Prompts done in the recording that runs or ran last.
    pub fn recorded(&self) -> usize {
        self.recorder.progress.as_ref().map_or(0, |progress| progress.done)
    }

    /// The sentences in the window that are errors.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        self.notices.iter().filter(|notice| notice.is_error).map(|notice| notice.text.as_str())
    }

    /// Whether something is being read, recorded or generated.
    pub fn is_waiting(&self) -> bool {
        self.opening.is_some()
            || self.reading.is_some()
            || self.recommending.is_some()
            || self.exporting.is_some()
            || self.engine.as_ref().is_some_and(Engine::is_busy)
    }

    /// Opens whatever is at a path: a run folder, a model or a prompt file.
    pub fn open(&mut self, path: &Path) {
        let is = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        if path.file_name().is_some_and(|name| name == MANIFEST) {
            return self.open_run(path.parent().unwrap_or(Path::new(".")));
        }
        if path.join("config.json").is_file() || is("gguf") {
            return self.open_model(path);
        }
        if is("jsonl") {
            return self.load_prompts(path);
        }
        if self.state.view == View::Record {
            self.state.view = View::Map;
        }
        self.open_run(path);
    }

    fn open_run(&mut self, folder: &Path) {
        let (ctx, folder) = (self.ctx.clone(), folder.to_owned());
        let read = folder.clone();
        let task = Task::start(move || ctx.request_repaint(), move || RunData::read(&read));
        self.opening = Some((folder, task));
    }

    fn open_model(&mut self, path: &Path) {
        self.load(ModelSource::Path(path.to_owned()));
        self.remember(path);
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        self.recorder.folder = self.launch.runs_folder.join(format!("{name}-run")).display().to_string();
        if self.run.is_none() {
            self.state.view = View::Record;
        }
    }

    fn load_prompts(&mut self, path: &Path) {
        // Read as prompts first, so that a wrong file is refused before it replaces what was typed.
        let text = read_prompts(path).and_then(|_| {
            std::fs::read_to_string(path).map_err(|e| layerscope_engine::Error::io("read", path, &e))
        });
        match text {
            Ok(text) => {
                self.recorder.text = text;
                self.state.view = View::Record;
            }
            Err(error) => self.say_error(error.to_string()),
        }
    }

    fn remember(&mut self, path: &Path) {
        let path = path.canonicalize().unwrap_or(path.to_owned());
        self.recent.retain(|known| *known != path);
        self.recent.insert(0, path);
        self.recent.truncate(RECENT);
    }

    fn load(&mut self, source: ModelSource) {
        self.send(Command::LoadModel { source, precision: WeightsPrecision::Native });
    }

    fn send(&mut self, command: Command) {
        let ctx = self.ctx.clone();
        let pace = if self.launch.drawn_in_software { PACE_IN_SOFTWARE } else { PACE };
        let wake = move || ctx.request_repaint_after(pace);
        let engine = self.engine.get_or_insert_with(|| Engine::start(wake));
        if let Err(error) = engine.send(command) {
            self.say_error(error.to_string());
        }
    }

    fn say_error(&mut self, text: impl Into<String>) {
        self.say(text, true);
    }

    fn say(&mut self, text: impl Into<String>, is_error: bool) {
        const KEPT: usize = 3;
        let notice = Notice { text: text.into(), is_error };
        self.notices.retain(|known| *known != notice);
        self.notices.push(notice);
        if self.notices.len() > KEPT {
            self.notices.remove(0);
        }
    }

    /// Takes in whatever was finished since the last frame.
    pub fn progress(&mut self) {
        self.take_opened();
        self.take_maps();
        self.take_recommendation();
        if let Some(exported) = self.exporting.as_ref().and_then(Task::poll) {
            self.exporting = None;
            match exported {
                Ok(path) => self.say(format!("Exported {}", path.display()), false),
                Err(error) => self.say_error(error.to_string()),
            }
        }
        // A bounded number, so that a flood of tokens does not hold up a frame.
        const EVENTS_PER_FRAME: usize = 64;
        for _ in 0..EVENTS_PER_FRAME {
            let Some(event) = self.engine.as_ref().and_then(Engine::try_event) else { return };
            self.take_event(event);
        }
        self.ctx.request_repaint();
    }

    fn take_opened(&mut self) {
        let Some((folder, task)) = &self.opening else { return };
        let Some(read) = task.poll() else { return };
        let folder = folder.clone();
        self.opening = None;
        let run = match read {
            Ok(run) => run,
            Err(error) => return self.say_error(error.to_string()),
        };
        let again = self.run.as_ref().is_some_and(|known| known.folder == run.folder);
        self.notices.retain(|notice| !notice.is_error);
        (self.maps, self.reading, self.recommendation) = (vec![], None, None);
        self.patterns = Arc::default();
        if !again {
            let state = &mut self.state;
            (state.prompt, state.selection) = (0, Selection::default());
            (state.token_window, state.step_window) = (None, None);
            state.cutoff = run.layers();
            self.measured.clear();
            self.history.clear();
            self.follow_recommendation = true;
        }
        self.state.prompt = self.state.prompt.min(run.prompts.len().saturating_sub(1));
        if run.frontier(self.state.anchor).is_none()
            && let Some(recorded) = run.frontiers.first()
        {
            self.state.anchor = recorded.anchor;
        }
        let unfinished = run.manifest.prompts.ids.len() - run.prompts.len();
        if unfinished > 0 {
            let all = run.manifest.prompts.ids.len();
            self.say(format!("{unfinished} of {all} prompts of this run are not recorded"), false);
        }
        self.run = Some(Arc::new(run));
        self.remember(&folder);
    }

    /// Reads the maps of the prompt in front, if they are not there.
    fn take_maps(&mut self) {
        if let Some((_, task)) = &self.reading
            && let Some(read) = task.poll()
        {
            self.reading = None;
            match read {
                Ok(maps) => {
                    self.maps.push(Arc::new(maps));
                    let mut held: usize = self.maps.iter().map(|maps| maps.bytes()).sum();
                    while held > MAPS_KEPT && self.maps.len() > 1 {
                        held -= self.maps.remove(0).bytes();
                    }
                }
                Err(error) => {
                    let broken = PromptMaps::empty(self.state.prompt);
                    self.maps.push(Arc::new(broken));
                    self.say_error(error.to_string());
                }
            }
        }
        let Some(run) = self.run.clone() else { return };
        let prompt = self.state.prompt;
        if let Some(index) = self.maps.iter().position(|maps| maps.prompt == prompt) {
            let latest = self.maps.remove(index);
            self.maps.push(latest);
        } else if self.reading.is_none()
            && let Some(summary) = run.prompts.get(prompt)
        {
            let (ctx, id) = (self.ctx.clone(), summary.id.clone());
            let task = Task::start(
                move || ctx.request_repaint(),
                move || PromptMaps::read(&run.folder, prompt, &id),
            );
            self.reading = Some((prompt, task));
        }
    }

    fn take_recommendation(&mut self) {
        if let Some(found) = self.recommending.as_ref().and_then(Task::poll) {
            self.recommending = None;
            self.recommendation = found.ok();
            let cut = self.recommendation.as_ref().and_then(|found| found.outcome.as_ref().ok());
            if let Some(cut) = cut.filter(|_| self.follow_recommendation) {
                self.state.cutoff = cut.l_cut;
                self.follow_recommendation = false;
            }
        }
        let Some(run) = self.run.clone() else { return };
        let (tolerance, anchor) = (self.state.tolerance, self.state.anchor);
        let known = self.recommendation.as_ref();
        let asked = known.is_some_and(|known| known.tolerance == tolerance && known.anchor == anchor);
        if !asked && self.recommending.is_none() {
            let ctx = self.ctx.clone();
            let work = move || {
                let outcome = run.recommend(tolerance, anchor).map_err(|error| error.to_string());
                Ok(Recommended { tolerance, anchor, outcome })
            };
            self.recommending = Some(Task::start(move || ctx.request_repaint(), work));
        }
    }

    fn take_event(&mut self, event: Event) {
        let layers = self.model.as_ref().map_or(0, |model| model.layers);
        Arc::make_mut(&mut self.live).take(&event, layers);
        let recorded = self.recorder.take(&event);
        match event {
            Event::Loading { done, all } => self.doing = Some(format!("loading layer {done} of {all}")),
            Event::Loaded(model) => {
                if let Some(run) = &self.run
                    && run.manifest.model.sha256 != model.sha256
                {
                    let text =
                        format!("{} is not the model of this run ({})", model.name, run.manifest.model.name);
                    self.say(text, false);
                }
                if self.run.is_none() {
                    // Without figures there is no better guess than three quarters.
                    self.state.cutoff = self.state.cutoff.min((model.layers * 3).div_ceil(4)).max(1);
                }
                self.model = Some(model);
            }
            Event::RecordingStarted { .. } | Event::PromptStarted { .. } => {
                self.doing = Some("recording".into());
            }
            Event::RecordingEnded { .. } => {
                if let Some(folder) = recorded {
                    if self.state.view == View::Record {
                        self.state.view = View::Map;
                    }
                    self.open_run(&folder);
                }
            }
            Event::GenerationStarted { policy, .. } => self.doing = Some(format!("generating, {policy}")),
            Event::GenerationEnded { .. } => {
                if let Some(measured) = self.live.measured() {
                    self.measured.retain(|known| known.cutoff != measured.cutoff);
                    self.measured.push(measured);
                }
            }
            Event::ReadingPattern { done, all } => {
                self.doing = Some(format!("reading attention, {done} of {all} tokens"));
            }
            // What was asked about a prompt that is no longer in front comes too late.
            Event::Pattern(pattern) if self.reading_pattern_of == Some(self.state.prompt) => {
                let patterns = Arc::make_mut(&mut self.patterns);
                patterns.retain(|known| known.layer != pattern.layer);
                patterns.push(pattern);
            }
            Event::Failed(sentence) => self.say_error(sentence),
            Event::Idle => self.doing = None,
            _ => {}
        }
    }

    /// Does what was ordered by key, palette or menu.
    pub fn obey(&mut self, order: Order) {
        let prompts = self.run.as_ref().map_or(0, |run| run.prompts.len());
        let layers = self.layers();
        match order {
            Order::Open => self.dialogs.open_path(),
            Order::Reload => {
                if let Some(run) = self.run.clone() {
                    self.open_run(&run.folder);
                }
            }
            Order::Show(view) => self.state.view = view,
            Order::NextPrompt => self.show_prompt((self.state.prompt + 1).min(prompts.saturating_sub(1))),
            Order::PreviousPrompt => self.show_prompt(self.state.prompt.saturating_sub(1)),
            Order::Deeper => self.state.cutoff = (self.state.cutoff + 1).min(layers),
            Order::Shallower => self.state.cutoff = self.state.cutoff.saturating_sub(1).max(1),
            Order::Recommended => {
                if let Some(Ok(cut)) = self.recommendation.as_ref().map(|found| &found.outcome) {
                    self.state.cutoff = cut.l_cut;
                }
            }
            Order::WholePrompt => (self.state.token_window, self.state.step_window) = (None, None),
            Order::LeaveOutBos => self.state.leave_out_bos = !self.state.leave_out_bos,
            Order::ByCategory => self.state.by_category = !self.state.by_category,
            Order::Table => self.state.as_table = !self.state.as_table,
            Order::ClearSelection => self.state.selection = Selection::default(),
            Order::Undo => {
                if let Some(earlier) = self.history.undo() {
                    self.state = earlier;
                }
            }
            Order::Redo => {
                if let Some(later) = self.history.redo() {
                    self.state = later;
                }
            }
            Order::Generate => self.generate(),
            Order::Stop => self.stop(),
            Order::ExportPng => {
                self.dialogs.export(export::Format::Png, self.export_name(export::Format::Png))
            }
            Order::ExportSvg => {
                self.dialogs.export(export::Format::Svg, self.export_name(export::Format::Svg))
            }
            Order::ExportCsv => {
                self.dialogs.export(export::Format::Csv, self.export_name(export::Format::Csv))
            }
            Order::Theme => {
                let dark = self.ctx.theme() != Theme::Dark;
                self.dark = Some(dark);
                self.ctx.set_theme(if dark { Theme::Dark } else { Theme::Light });
            }
            Order::Palette => self.dialogs.open_palette(),
            Order::Help => self.dialogs.toggle_help(),
            Order::Quit => self.ctx.send_viewport_cmd(ViewportCommand::Close),
        }
    }

    /// Layers of the run's model, or of the loaded one.
    fn layers(&self) -> usize {
        let of_run = self.run.as_ref().map(|run| run.layers());
        of_run.or(self.model.as_ref().map(|model| model.layers)).unwrap_or(1)
    }

    fn show_prompt(&mut self, prompt: usize) {
        if prompt != self.state.prompt {
            self.state.prompt = prompt;
            self.state.selection.token = None;
            self.state.selection.steps.clear();
            (self.state.token_window, self.state.step_window) = (None, None);
            self.patterns = Arc::default();
        }
    }

    fn stop(&mut self) {
        if let Some(engine) = &self.engine {
            // Cancelling cannot fail for want of room; an engine that is gone has nothing to stop.
            let _ = engine.send(Command::Cancel);
        }
    }

    /// The policy of the marker.
    fn policy(&self) -> String {
        let layers = self.model.as_ref().map_or_else(|| self.layers(), |model| model.layers);
        policy_name(self.state.cutoff.clamp(1, layers), self.state.anchor == Anchor::Bos, layers)
    }

    fn generate(&mut self) {
        self.state.view = View::Generate;
        if self.form.prompt.trim().is_empty() || self.engine.as_ref().is_some_and(Engine::is_busy) {
            return;
        }
        if !self.needs_model() {
            return;
        }
        let command = Command::Generate {
            prompt: PromptText::Plain(self.form.prompt.clone()),
            policies: vec!["full".into(), self.policy()],
            max_new_tokens: self.form.max_new_tokens,
        };
        self.live = Arc::default();
        self.send(command);
    }

    /// Loads the run's model, if none is loaded and it is known where it is; whether one is there or comes.
    fn needs_model(&mut self) -> bool {
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
    fn model_of_run(&self) -> Option<ModelSource> {
        let name = &self.run.as_ref()?.manifest.model.name;
        let found = self.launch.models.iter().find(|(known, _)| known == name);
        found.map(|(_, source)| source.clone())
    }

    fn read_pattern(&mut self, layers: Vec<usize>) {
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

    fn record(&mut self) {
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

    fn act(&mut self, action: Action) {
        match action {
            Action::ReadPattern(layers) => self.read_pattern(layers),
        }
    }

    /// Waits until nothing is being read or done any more, e.g. before a picture is taken.
    ///
    /// # Errors
    /// The first error that the window shows.
    pub fn settle(&mut self) -> Result<()> {
        loop {
            self.progress();
            if let Some(error) = self.errors().next() {
                return Err(layerscope_engine::Error::input(error));
            }
            if !self.is_waiting() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn maps_in_front(&self) -> Option<Arc<PromptMaps>> {
        self.maps.iter().find(|maps| maps.prompt == self.state.prompt).cloned()
    }
}

/// What a view of a run is drawn from, shared with threads that draw pictures of it.
#[derive(Clone)]
struct Shared {
    run: Arc<RunData>,
    maps: Option<Arc<PromptMaps>>,
    patterns: Arc<Vec<Pattern>>,
    measured: Vec<Measured>,
    model_is_loaded: bool,
    is_picture: bool,
}

impl Shared {
    fn scene<'a>(
        &'a self,
        state: &'a mut ViewState,
        readout: &'a mut Option<String>,
        actions: &'a mut Vec<Action>,
    ) -> Scene<'a> {
        Scene {
            state,
            run: &self.run,
            maps: self.maps.as_deref(),
            patterns: &self.patterns,
            measured: &self.measured,
            model_is_loaded: self.model_is_loaded,
            is_picture: self.is_picture,
            readout,
            actions,
        }
    }
}
