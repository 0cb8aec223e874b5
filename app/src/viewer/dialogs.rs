//! The open and export dialogs, the command palette and the help sheet.

use super::Viewer;
use super::panels::hint;
use crate::command::Order;
use crate::data::Task;
use crate::design::space;
use crate::export::ExportFormat;
use eframe::egui::{Grid, Id, Key, Modal, RichText, ScrollArea, TextEdit, Ui};
use layerscope_diagnostics::run::MANIFEST;
use std::path::PathBuf;

/// Which dialog is open.
#[derive(Debug, Default)]
pub(super) struct Dialogs {
    open: Option<Dialog>,
    /// The system's file dialog, while it is open.
    browsing: Option<Task<Option<PathBuf>>>,
}

#[derive(Debug)]
enum Dialog {
    Open { path: String },
    Compare { path: String },
    Export { format: ExportFormat, path: String },
    Palette { typed: String, chosen: usize },
    Help,
}

impl Dialogs {
    pub(super) fn open_path(&mut self) {
        self.open = Some(Dialog::Open { path: String::new() });
    }

    pub(super) fn compare_with(&mut self) {
        self.open = Some(Dialog::Compare { path: String::new() });
    }

    pub(super) fn export(&mut self, format: ExportFormat, path: PathBuf) {
        self.open = Some(Dialog::Export { format, path: path.display().to_string() });
    }

    pub(super) fn open_palette(&mut self) {
        self.open = Some(Dialog::Palette { typed: String::new(), chosen: 0 });
    }

    pub(super) fn toggle_help(&mut self) {
        self.open = if matches!(self.open, Some(Dialog::Help)) { None } else { Some(Dialog::Help) };
    }

    /// Whether a dialog has the keyboard.
    pub(super) fn takes_keys(&self) -> bool {
        matches!(&self.open, Some(dialog) if !matches!(dialog, Dialog::Help))
    }
}

/// The result of a dialog.
enum Outcome {
    Stay,
    Close,
    Open(PathBuf),
    Compare(PathBuf),
    Export(ExportFormat, PathBuf),
    Obey(Order),
}

impl Viewer {
    pub(super) fn show_dialogs(&mut self, ui: &mut Ui) {
        if let Some(picked) = self.dialogs.browsing.as_ref().and_then(Task::poll) {
            self.dialogs.browsing = None;
            if let (Ok(Some(picked)), Some(dialog)) = (picked, &mut self.dialogs.open)
                && let Dialog::Open { path } | Dialog::Compare { path } | Dialog::Export { path, .. } = dialog
            {
                *path = picked.display().to_string();
            }
        }
        let Some(mut dialog) = self.dialogs.open.take() else { return };
        let modal = Modal::new(Id::unique("dialog")).show(ui.ctx(), |ui| match &mut dialog {
            Dialog::Open { path } => self.open_dialog(ui, path),
            Dialog::Compare { path } => self.compare_dialog(ui, path),
            Dialog::Export { format, path } => self.export_dialog(ui, *format, path),
            Dialog::Palette { typed, chosen } => palette(ui, typed, chosen),
            Dialog::Help => help(ui),
        });
        let closed = modal.should_close();
        match modal.inner {
            Outcome::Stay if !closed => {
                // The command may have opened another dialog.
                self.dialogs.open.get_or_insert(dialog);
            }
            Outcome::Stay | Outcome::Close => {}
            Outcome::Open(path) => self.open(&path),
            Outcome::Compare(path) => self.compare_with(&path),
            Outcome::Export(format, path) => self.export_to(format, path),
            Outcome::Obey(order) => self.obey(order),
        }
    }

    fn open_dialog(&mut self, ui: &mut Ui, path: &mut String) -> Outcome {
        ui.set_width(520.0);
        ui.heading("Open a run folder, a model or a prompt file");
        let label = ui.label(self.path_label("Path"));
        let entered = path_field(ui, path, label.id);
        let mut outcome = Outcome::Stay;
        ui.horizontal(|ui| {
            let ready = !path.trim().is_empty();
            let open = ui.add_enabled(ready, eframe::egui::Button::new("Open")).clicked();
            if ready && (open || entered) {
                outcome = Outcome::Open(PathBuf::from(path.trim()));
            }
            #[cfg(not(target_arch = "wasm32"))]
            let is_here = self.there.is_none();
            #[cfg(not(target_arch = "wasm32"))]
            if is_here && ui.button("Browse for a folder …").clicked() {
                self.browse(ui, rfd::AsyncFileDialog::new().pick_folder());
            }
            #[cfg(not(target_arch = "wasm32"))]
            if is_here && ui.button("Browse for a file …").clicked() {
                let dialog = rfd::AsyncFileDialog::new()
                    .add_filter("Models and prompts", &["gguf", "jsonl", "json"])
                    .pick_file();
                self.browse(ui, dialog);
            }
            if ui.button("Cancel").clicked() {
                outcome = Outcome::Close;
            }
        });
        if !self.recent.is_empty() {
            ui.separator();
            ui.weak("Recent");
            for recent in &self.recent {
                if ui.link(recent.display().to_string()).clicked() {
                    outcome = Outcome::Open(recent.clone());
                }
            }
        }
        if !self.launch.models.is_empty() {
            ui.separator();
            ui.weak("Models found");
            let mut chosen = None;
            for source in &self.launch.models {
                if ui.link(&source.name).clicked() {
                    chosen = Some(source.clone());
                }
            }
            if let Some(source) = chosen {
                self.open_model(source);
                outcome = Outcome::Close;
            }
        }
        outcome
    }

    fn compare_dialog(&mut self, ui: &mut Ui, path: &mut String) -> Outcome {
        ui.set_width(520.0);
        ui.heading("Compare with another run");
        let label = ui.label(self.path_label("Run folder"));
        let entered = path_field(ui, path, label.id);
        let mut outcome = Outcome::Stay;
        ui.horizontal(|ui| {
            let ready = !path.trim().is_empty();
            let compare = ui.add_enabled(ready, eframe::egui::Button::new("Compare")).clicked();
            if ready && (compare || entered) {
                outcome = Outcome::Compare(PathBuf::from(path.trim()));
            }
            #[cfg(not(target_arch = "wasm32"))]
            if self.there.is_none() && ui.button("Browse …").clicked() {
                self.browse(ui, rfd::AsyncFileDialog::new().pick_folder());
            }
            if ui.button("Cancel").clicked() {
                outcome = Outcome::Close;
            }
        });
        // Those of another machine are not looked at here.
        let is_run = |recent: &&PathBuf| self.there.is_some() || recent.join(MANIFEST).is_file();
        let runs = self.recent.iter().filter(is_run);
        let mut runs = runs.peekable();
        if runs.peek().is_some() {
            ui.separator();
            ui.weak("Recent");
        }
        for run in runs {
            if ui.link(run.display().to_string()).clicked() {
                outcome = Outcome::Compare(run.clone());
            }
        }
        outcome
    }

    /// Says which machine a path is of, where that is another.
    fn path_label(&self, what: &str) -> String {
        self.there.as_ref().map_or_else(|| what.to_owned(), |there| format!("{what} on {}", there.host()))
    }

    fn export_dialog(&mut self, ui: &mut Ui, format: ExportFormat, path: &mut String) -> Outcome {
        ui.set_width(520.0);
        ui.heading(format!("Export as {}", format.name()));
        let label = ui.label(if self.there.is_some() { "File on this machine" } else { "File" });
        let entered = path_field(ui, path, label.id);
        let mut outcome = Outcome::Stay;
        ui.horizontal(|ui| {
            if ui.button("Export").clicked() || entered {
                outcome = Outcome::Export(format, PathBuf::from(path.trim()));
            }
            #[cfg(not(target_arch = "wasm32"))]
            if ui.button("Browse …").clicked() {
                let name = std::path::Path::new(path.as_str())
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                self.browse(ui, rfd::AsyncFileDialog::new().set_file_name(name).save_file());
            }
            if ui.button("Cancel").clicked() {
                outcome = Outcome::Close;
            }
        });
        outcome
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn browse(&mut self, ui: &Ui, dialog: impl Future<Output = Option<rfd::FileHandle>> + Send + 'static) {
        let ctx = ui.ctx().clone();
        let wait = move || Ok(pollster::block_on(dialog).map(|handle| handle.path().to_owned()));
        self.dialogs.browsing = Some(Task::start(move || ctx.request_repaint(), wait));
    }
}

/// A path field; returns whether Enter was pressed.
fn path_field(ui: &mut Ui, path: &mut String, label: Id) -> bool {
    let field = ui.add(TextEdit::singleline(path).desired_width(f32::INFINITY)).labelled_by(label);
    // Checked first: a field that gets the focus back has not lost it.
    let entered = field.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
    if !ui.ctx().text_edit_focused() {
        field.request_focus();
    }
    ui.add_space(space::SMALL);
    entered
}

fn palette(ui: &mut Ui, typed: &mut String, chosen: &mut usize) -> Outcome {
    ui.set_width(460.0);
    let label = ui.label(RichText::new("Commands").strong());
    let field = ui.add(TextEdit::singleline(typed).hint_text("type to search").desired_width(f32::INFINITY));
    let field = field.labelled_by(label.id);
    field.request_focus();
    let matching: Vec<Order> = Order::all().filter(|order| order.matches(typed)).collect();
    let pressed = |key| ui.input(|input| input.key_pressed(key));
    if pressed(Key::ArrowDown) {
        *chosen += 1;
    }
    if pressed(Key::ArrowUp) {
        *chosen = chosen.saturating_sub(1);
    }
    *chosen = (*chosen).min(matching.len().saturating_sub(1));
    let mut outcome = Outcome::Stay;
    if pressed(Key::Enter)
        && let Some(order) = matching.get(*chosen)
    {
        outcome = Outcome::Obey(*order);
    }
    ScrollArea::vertical().max_height(360.0).min_scrolled_height(360.0).auto_shrink([false, true]).show(
        ui,
        |ui| {
            Grid::new("palette").num_columns(2).min_col_width(300.0).show(ui, |ui| {
                for (index, order) in matching.iter().enumerate() {
                    if ui.selectable_label(index == *chosen, order.name()).clicked() {
                        outcome = Outcome::Obey(*order);
                    }
                    ui.weak(hint(ui, *order));
                    ui.end_row();
                }
            });
        },
    );
    outcome
}

fn help(ui: &mut Ui) -> Outcome {
    ui.set_width(560.0);
    ui.heading("Keyboard and mouse");
    let mut outcome = Outcome::Stay;
    ScrollArea::vertical().max_height(440.0).min_scrolled_height(440.0).show(ui, |ui| {
        Grid::new("help").num_columns(2).striped(true).min_col_width(150.0).show(ui, |ui| {
            for (keys, meaning) in [
                ("scroll", "zoom the map at the pointer"),
                ("drag", "pan the map; on the orange line: move the cutoff"),
                ("click", "select a layer with a token, step or head; again: select nothing"),
                ("Shift click", "add to the selection or take away from it"),
                ("double click", "show the whole prompt"),
                ("drop", "open a run, a model or prompts; with Shift: compare with that run"),
                ("Tab", "reach every control, the map and the cutoff's line among them"),
                ("arrows", "move the cutoff's line, or pan the map, where they have the focus"),
                ("arrows", "in Reading: walk along the text, and through the layers"),
                ("+  −  Home", "zoom the map, or show all of it, where it has the focus"),
            ] {
                ui.label(RichText::new(keys).monospace());
                ui.label(meaning);
                ui.end_row();
            }
            for order in Order::all() {
                ui.label(RichText::new(hint(ui, order)).monospace());
                ui.label(order.name());
                ui.end_row();
            }
        });
    });
    if ui.button("Close").clicked() {
        outcome = Outcome::Close;
    }
    outcome
}
