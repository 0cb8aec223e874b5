//! The window's state: open runs, running work and the current view.

mod budget_card;
mod comparing;
mod cutoff_panel;
mod dialogs;
mod engine;
mod export;
mod fetching;
mod files;
mod frame;
mod panels;
mod patching;
mod pattern;
mod progress;
mod remote;
#[cfg(test)]
mod tests;

use crate::adapting::Adapting;
use crate::command::Order;
use crate::data::{DrawnPatches, Found, PromptMaps, RunData, Task, look};
use crate::engine::Engine;
use crate::engine::message::{Command, LoadedModel, Pattern};
use crate::live::Live;
use crate::recorder::Recorder;
use crate::state::{History, Selection, View, ViewState};
use crate::views::frontier::LiveSavings;
use crate::views::generate::Form;
use crate::views::{Action, Patching, Removing, Scene, SharedTiles};
use comparing::{Compared, Second};
use dialogs::Dialogs;
use eframe::egui::{Context, Theme, ViewportCommand};
#[cfg(not(target_arch = "wasm32"))]
pub use export::screenshot;
use fetching::Fetching;
use files::Files;
use layerscope_cutoff::recommend::{Options, Recommendation};
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_diagnostics::record::SpanRecord;
use layerscope_engine::{DeviceChoice, ModelFiles, ModelSource};
use ndarray::Array2;
use pattern::Tiling;
pub use remote::Host;
use remote::There;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length of the list of recent runs and models.
const RECENT: usize = 10;

/// Options of a window.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What to open.
    pub open: Open,
    /// Models that can be loaded by name: built-in models and models on this disk.
    pub models: Vec<ModelSource>,
    /// The model of runs, where the user names one.
    pub model_of_runs: Option<ModelSource>,
    /// What this machine knows of models that it has loaded.
    pub seen: SeenModels,
    /// Default folder of recordings.
    pub runs_folder: PathBuf,
    /// The initial view; the saved one by default.
    pub view: Option<View>,
    /// Light or dark; the saved theme by default.
    pub theme: Option<Theme>,
    /// Whether rendering is in software; the window then redraws rarely while the engine works.
    pub drawn_in_software: bool,
    /// The device of models.
    pub device: DeviceChoice,
    /// The machine of run folders, models and engine, where that is another.
    pub host: Option<Host>,
}

/// Where models of a SHA-256 were loaded from.
#[derive(Debug, Clone, Copy)]
pub struct SeenModels {
    /// Keeps it.
    pub remember: fn(&str, &Path),
    /// Tells it.
    pub remembered: fn(&str) -> Option<PathBuf>,
}

impl Default for SeenModels {
    /// Nothing is known, and nothing kept.
    fn default() -> Self {
        Self { remember: |_, _| {}, remembered: |_| None }
    }
}

/// What to open.
#[derive(Debug, Clone)]
pub enum Open {
    /// A run folder, a model or a prompt file.
    Path(PathBuf),
    /// A model.
    Model(ModelSource),
    /// Nothing yet.
    Nothing,
    /// A built-in model and prompts, recorded at start.
    Demo {
        /// The model.
        model: ModelSource,
        /// The prompts.
        prompts: PromptFile,
        /// Prompts for adapters.
        lessons: PromptFile,
        /// Decode steps of each prompt.
        max_new_tokens: usize,
        /// The run folder.
        folder: PathBuf,
    },
}

/// The state saved between sessions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Remembered {
    /// The view.
    pub state: ViewState,
    /// Recent runs and models, latest first.
    pub recent: Vec<PathBuf>,
    /// Light or dark, if the user chose.
    pub dark: Option<bool>,
}

/// The viewer.
pub struct Viewer {
    ctx: Context,
    state: ViewState,
    history: History<ViewState>,
    launch: Launch,
    recent: Vec<PathBuf>,
    /// Of a window on another machine: those of this one, to be remembered.
    recent_here: Option<Vec<PathBuf>>,
    dark: Option<bool>,
    run: Option<Arc<RunData>>,
    opening: Option<(PathBuf, Task<RunData>)>,
    /// Latest last.
    maps: Vec<Arc<PromptMaps>>,
    reading: Option<(usize, Task<PromptMaps>)>,
    recommendation: Option<Recommended>,
    recommending: Option<Task<Recommended>>,
    second: Second,
    /// Whether to move the cutoff to the recommendation as soon as there is one.
    follow_recommendation: bool,
    engine: Option<Engine>,
    there: Option<There>,
    fetching: Fetching,
    model: Option<LoadedModel>,
    /// Where the model that was asked for last comes from.
    loaded_from: Option<ModelSource>,
    /// The engine's current work, for the status line.
    doing: Option<String>,
    live: Arc<Live>,
    form: Form,
    recorder: Recorder,
    adapting: Adapting,
    /// The adapter of the loaded model that was trained or opened last.
    adapter: Option<PathBuf>,
    patterns: Arc<Vec<Pattern>>,
    reading_pattern_of: Option<usize>,
    tiling: Tiling,
    /// Removed spans of the run's prompts: those in the run, and those measured since.
    spans: Arc<Vec<SpanRecord>>,
    removing: Option<Removing>,
    /// Maps of activation patches: those in the run, and those computed since, or why they cannot be read.
    patches: Arc<std::result::Result<Vec<DrawnPatches>, String>>,
    patching: Option<Patching>,
    measured: Vec<LiveSavings>,
    notices: Vec<Notice>,
    dialogs: Dialogs,
    readout: Option<String>,
    exporting: Option<Task<PathBuf>>,
    view_size: eframe::egui::Vec2,
}

/// A recommendation, or why there is none, with its settings.
#[derive(Debug)]
struct Recommended {
    options: Options,
    outcome: std::result::Result<Recommendation, String>,
}

/// A message for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Notice {
    text: String,
    is_error: bool,
    /// Whether a model mends it, so that it goes once one is loaded.
    asks_for_model: bool,
}

impl Viewer {
    /// Creates a viewer in a context, and sets the context's themes and type sizes.
    pub fn new(ctx: &Context, launch: Launch, remembered: Remembered) -> Self {
        crate::design::apply(ctx);
        let mut state = remembered.state;
        (state.prompt, state.selection) = (0, Selection::default());
        (state.token_window, state.step_window) = (None, None);
        state.pattern.leave_prompt();
        if state.view == View::Compare {
            // Does not reopen the second run.
            state.view = View::Map;
        }
        let dark = launch.theme.map(|theme| theme == Theme::Dark).or(remembered.dark);
        if let Some(dark) = dark {
            ctx.set_theme(if dark { Theme::Dark } else { Theme::Light });
        }
        let (recent, recent_here) = match &launch.host {
            None => (remembered.recent, None),
            Some(_) => (vec![], Some(remembered.recent)),
        };
        let mut viewer = Self {
            ctx: ctx.clone(),
            state,
            history: History::default(),
            recent,
            recent_here,
            dark,
            run: None,
            opening: None,
            maps: vec![],
            reading: None,
            recommendation: None,
            recommending: None,
            second: Second::default(),
            follow_recommendation: false,
            engine: None,
            there: launch.host.clone().map(|host| There::new(host, launch.open.clone(), ctx)),
            fetching: Fetching::default(),
            model: None,
            loaded_from: None,
            doing: None,
            live: Arc::default(),
            form: Form::default(),
            recorder: Recorder::new(),
            adapting: Adapting::new(),
            adapter: None,
            patterns: Arc::default(),
            reading_pattern_of: None,
            tiling: Tiling::default(),
            spans: Arc::default(),
            removing: None,
            patches: Arc::new(Ok(vec![])),
            patching: None,
            measured: vec![],
            notices: vec![],
            dialogs: Dialogs::default(),
            readout: None,
            exporting: None,
            view_size: eframe::egui::vec2(1_000.0, 640.0),
            launch,
        };
        if viewer.there.is_none() {
            viewer.open_first(viewer.launch.open.clone());
        }
        if let Some(view) = viewer.launch.view {
            viewer.state.view = view;
        }
        viewer
    }

    /// Opens what the window was started with.
    fn open_first(&mut self, open: Open) {
        match open {
            Open::Path(path) => self.open(&path),
            Open::Model(source) => self.open_model(source),
            Open::Nothing => {}
            Open::Demo { model, prompts, lessons, max_new_tokens, folder } => {
                self.adapting.folder = folder.with_file_name("demo-adapter").display().to_string();
                (self.adapting.bundled, self.adapting.minutes) = (Some(lessons), 1.0);
                self.load(model);
                self.send(Command::Record { prompts, max_new_tokens, folder, adapter: None });
            }
        }
    }

    /// The state to save.
    pub fn remembered(&self) -> Remembered {
        let recent = self.recent_here.as_ref().unwrap_or(&self.recent).clone();
        Remembered { state: self.state.clone(), recent, dark: self.dark }
    }

    /// The view's state.
    pub fn state(&self) -> &ViewState {
        &self.state
    }

    /// The run that is open.
    pub fn run(&self) -> Option<&RunData> {
        self.run.as_deref()
    }

    /// The live generation.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// The training.
    pub fn adapting(&self) -> &Adapting {
        &self.adapting
    }

    /// Prompts done in the current or last recording.
    pub fn recorded(&self) -> usize {
        self.recorder.progress.as_ref().map_or(0, |progress| progress.done)
    }

    /// The error messages in the window.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        let told = self.notices.iter().filter(|notice| notice.is_error).map(|notice| notice.text.as_str());
        self.connection_lost().into_iter().chain(told)
    }

    /// Whether something is being read, recorded or generated.
    pub fn is_waiting(&self) -> bool {
        self.opening.is_some()
            || self.reading.is_some()
            || self.recommending.is_some()
            || self.exporting.is_some()
            || self.second.is_waiting()
            || self.engine.as_ref().is_some_and(Engine::is_busy)
            || self.tiling.is_waiting()
            || self.fetching.is_waiting()
            || self.there.as_ref().is_some_and(There::is_waiting)
    }

    /// Opens whatever is at a path, of the window's machine: a run folder, a model or a prompt file.
    pub fn open(&mut self, path: &Path) {
        match self.files() {
            Ok(Files::Here) => self.open_found(path, look(path), None),
            Ok(Files::There(link)) => self.look_there(link, path),
            Err(error) => self.say_error(error.to_string()),
        }
    }

    fn open_found(&mut self, path: &Path, found: Found, model: Option<ModelSource>) {
        let folder = match found {
            Found::Model => return self.open_model(model.unwrap_or_else(|| ModelSource::path(path))),
            Found::Adapter => {
                self.adapter = Some(path.to_owned());
                return self.say(format!("{} is ready for Generate and Record", path.display()), false);
            }
            Found::Prompts => return self.load_prompts(path),
            Found::Other => {
                return self.say_error(format!(
                    "{} is no run folder, model (.gguf) or prompt file (.jsonl); choose one of these",
                    path.display()
                ));
            }
            Found::Run(folder) => folder,
            Found::Nothing => path.to_owned(),
        };
        if self.state.view == View::Record {
            self.state.view = View::Map;
        }
        self.open_run(&folder);
    }

    fn open_run(&mut self, folder: &Path) {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => return self.say_error(error.to_string()),
        };
        let (ctx, folder) = (self.ctx.clone(), folder.to_owned());
        let read = folder.clone();
        let task = Task::run(move || ctx.request_repaint(), async move { files.run(&read).await });
        self.opening = Some((folder, task));
    }

    fn open_model(&mut self, source: ModelSource) {
        if let ModelFiles::Path(path) = &source.files {
            self.remember(path);
        }
        // A name may be `owner/name:Q4_K_M`.
        let name = source.name.rsplit('/').next().unwrap_or_default().replace(':', "-");
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        let beside =
            |what: &str| self.launch.runs_folder.join(format!("{stem}-{what}")).display().to_string();
        (self.recorder.folder, self.adapting.folder) = (beside("run"), beside("adapter"));
        self.load(source);
        if self.run.is_none() && self.state.view != View::Adapt {
            self.state.view = View::Record;
        }
    }

    fn load_prompts(&mut self, path: &Path) {
        if self.state.view == View::Adapt && self.there.is_some() {
            // It is read once it is needed.
            self.adapting.prompts = path.display().to_string();
            return;
        }
        match self.files() {
            Ok(Files::Here) => {}
            Ok(there) => return self.load_prompts_there(there, path),
            Err(error) => return self.say_error(error.to_string()),
        }
        // Parsed as prompts first, so that an invalid file does not replace the typed text.
        match files::prompt_text(path) {
            Ok(_) if self.state.view == View::Adapt => self.adapting.prompts = path.display().to_string(),
            Ok(text) => {
                self.recorder.text = text;
                self.state.view = View::Record;
            }
            Err(error) => self.say_error(error.to_string()),
        }
    }

    fn remember(&mut self, path: &Path) {
        let path = match self.there {
            None => path.canonicalize().unwrap_or(path.to_owned()),
            Some(_) => path.to_owned(),
        };
        self.recent.retain(|known| *known != path);
        self.recent.insert(0, path);
        self.recent.truncate(RECENT);
    }

    fn say_error(&mut self, text: impl Into<String>) {
        self.say(text, true);
    }

    fn say(&mut self, text: impl Into<String>, is_error: bool) {
        self.notice(Notice { text: text.into(), is_error, asks_for_model: false });
    }

    /// An error until a model is loaded.
    fn ask_for_model(&mut self, text: String) {
        self.notice(Notice { text, is_error: true, asks_for_model: true });
    }

    fn notice(&mut self, notice: Notice) {
        const KEPT: usize = 3;
        self.notices.retain(|known| *known != notice);
        self.notices.push(notice);
        if self.notices.len() > KEPT {
            self.notices.remove(0);
        }
    }

    /// Runs a command from key, palette or menu.
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
            Order::Compare => self.dialogs.compare_with(),
            Order::Reconnect => self.reconnect(),
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
            Order::WholePrompt => {
                (self.state.token_window, self.state.step_window) = (None, None);
                (self.state.pattern.queries, self.state.pattern.keys) = (None, None);
                self.state.patching.window = None;
            }
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
            Order::RemoveSpan => {
                if let Some(span) = self.state.selection.tokens() {
                    self.state.view = View::Reading;
                    self.remove_span(span);
                }
            }
            Order::Patch => {
                self.state.view = View::Patching;
                self.patch_chosen();
            }
            Order::Generate => self.generate(),
            Order::Stop => self.stop(),
            Order::Export(format) => self.dialogs.export(format, self.export_name(format)),
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
            (self.state.selection.token, self.state.selection.span) = (None, None);
            self.state.selection.steps.clear();
            (self.state.token_window, self.state.step_window) = (None, None);
            self.state.pattern.leave_prompt();
            self.state.patching.window = None;
            self.patterns = Arc::default();
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ReadPattern(layers) => self.read_pattern(layers),
            Action::ComputePattern => self.compute_pattern(),
            Action::Tiles(keys) => self.want_tiles(keys),
            Action::Want(wants) => self.fetching.want(wants),
            Action::CompareWith => self.obey(Order::Compare),
            Action::CloseSecondRun => self.close_second_run(),
            Action::RemoveSpan(span) => self.remove_span(span),
            Action::Patch(asked) => self.patch(*asked),
            Action::ShowPrompt(prompt) => self.show_prompt(prompt),
            Action::Stop => self.stop(),
        }
    }
}

/// The data of a run's views, shared with threads that export them.
#[derive(Clone)]
struct Shared {
    run: Arc<RunData>,
    maps: Option<Arc<PromptMaps>>,
    patterns: Arc<Vec<Pattern>>,
    tiles: SharedTiles,
    spans: Arc<Vec<SpanRecord>>,
    removing: Option<Removing>,
    patches: Arc<std::result::Result<Vec<DrawnPatches>, String>>,
    patching: Option<Patching>,
    measured: Vec<LiveSavings>,
    kept: Option<Array2<f64>>,
    second: Option<Arc<RunData>>,
    compared: Option<Arc<Compared>>,
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
            tiles: &self.tiles,
            spans: &self.spans,
            removing: self.removing.as_ref(),
            patches: self.patches.as_ref().as_deref().map_err(String::as_str),
            patching: self.patching.as_ref(),
            measured: &self.measured,
            kept: self.kept.as_ref(),
            second: self.second.as_deref(),
            compared: self.compared.as_ref().map(|compared| &compared.outcome),
            model_is_loaded: self.model_is_loaded,
            is_picture: self.is_picture,
            readout,
            actions,
        }
    }
}
