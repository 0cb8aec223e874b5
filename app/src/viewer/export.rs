//! Exports the current view as a picture or as data, and the run as a report.

use super::files::Files;
use super::{Shared, Viewer};
use crate::adapting::Progress;
use crate::data::Task;
use crate::design;
use crate::export::{Drawing, ExportFormat, png};
use crate::live::Live;
use crate::state::{View, ViewState};
use crate::views::Sought;
use crate::views::adapt;
use crate::views::generate::{self, Form, LiveScene};
use eframe::egui::{CentralPanel, Context, Frame, Theme, Ui, Vec2, vec2};
use layerscope_engine::{Error, Result};
use layerscope_report::{File, ReportFormat};
#[cfg(not(target_arch = "wasm32"))]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

/// Pixels per point of exported pictures.
const PIXELS_PER_POINT: f32 = 2.0;
/// Minimum size of an exported part of the window, points.
const LEAST: Vec2 = vec2(900.0, 680.0);
/// Rows of a table in a picture, at most.
const ROWS: usize = 512;
/// Passes until a layout has settled.
const PASSES: usize = 4;

impl Viewer {
    /// The suggested file name.
    pub(super) fn export_name(&self, format: ExportFormat) -> PathBuf {
        let run = self.run.as_ref().and_then(|run| run.folder.file_name());
        let run = run.map_or("layerscope".into(), |name| name.to_string_lossy());
        let what = match format {
            ExportFormat::Report(_) => "report".into(),
            _ => self.state.view.name().to_lowercase(),
        };
        PathBuf::from(format!("{run}-{what}.{}", format.extension()))
    }

    /// Draws the current view off screen in a background thread, or writes a report of the run and of the
    /// second run, with the current tolerance and anchor.
    pub(super) fn export_to(&mut self, format: ExportFormat, path: PathBuf) {
        if let ExportFormat::Report(format) = format {
            return self.export_report(format, path);
        }
        let content = match (self.state.view, self.shared()) {
            (View::Record, _) => {
                return self.say_error("the recording form cannot be exported; show another view first");
            }
            (View::Generate, _) => Content::Live {
                live: Arc::clone(&self.live),
                form: self.form.clone(),
                policy: self.policy_name(),
                model: self.model.as_ref().map_or(String::new(), |model| model.name.clone()),
            },
            (View::Adapt, _) => match &self.adapting.progress {
                Some(progress) if !progress.held_out.is_empty() => Content::Adapting {
                    progress: Box::new(progress.clone()),
                    layers: self.layers(),
                    tolerance: self.state.tolerance,
                },
                _ => return self.say_error("nothing is trained yet; train an adapter first"),
            },
            (_, Some(shared)) if !shared.run.prompts.is_empty() => {
                Content::Run(Shared { is_picture: true, ..shared })
            }
            _ => return self.say_error("there is nothing to export yet; open a run first"),
        };
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => return self.say_error(error.to_string()),
        };
        // Large enough for all content, independent of the window.
        let size = self.view_size.max(LEAST);
        let mut subject = Subject { content, state: self.state.clone(), theme: self.ctx.theme(), size };
        let ctx = self.ctx.clone();
        let work = async move {
            subject.complete(&files, format).await?;
            save(File { path, bytes: subject.file(format)? })
        };
        self.exporting = Some(Task::run(move || ctx.request_repaint(), work));
    }

    fn export_report(&mut self, format: ReportFormat, path: PathBuf) {
        let Some(run) = self.run.as_ref().filter(|run| !run.prompts.is_empty()) else {
            return self.say_error("there is nothing to report on yet; open a run first");
        };
        let second = self.second_run().map(|second| second.folder.clone());
        let folders: Vec<PathBuf> = std::iter::once(run.folder.clone()).chain(second).collect();
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => return self.say_error(error.to_string()),
        };
        let options = self.state.options();
        let ctx = self.ctx.clone();
        let work = async move {
            // The extension must match the format.
            let path = if ReportFormat::of(&path).ok() == Some(format) {
                path
            } else {
                path.with_added_extension(format.extension())
            };
            for file in files.report(folders, options, &path).await? {
                save(file)?;
            }
            Ok(path)
        };
        self.exporting = Some(Task::run(move || ctx.request_repaint(), work));
    }
}

/// The content of an export.
struct Subject {
    content: Content,
    state: ViewState,
    theme: Theme,
    size: Vec2,
}

enum Content {
    Run(Shared),
    Live { live: Arc<Live>, form: Form, policy: String, model: String },
    Adapting { progress: Box<Progress>, layers: usize, tolerance: f64 },
}

impl Subject {
    /// Fetches what the file needs and what has not come yet.
    async fn complete(&mut self, files: &Files, format: ExportFormat) -> Result<()> {
        let Content::Run(shared) = &mut self.content else { return Ok(()) };
        let (mut readout, mut actions) = (None, vec![]);
        let look = match format {
            ExportFormat::Csv => Sought::Whole,
            // As many rows as a picture shows.
            _ if self.state.as_table => Sought::Table(0..ROWS),
            _ => Sought::PICTURE,
        };
        let wants = shared.scene(&mut self.state, &mut readout, &mut actions).wants(&look);
        let prompt = shared.run.prompts.get(self.state.prompt).map(|prompt| prompt.id.clone());
        if let (Some(maps), Some(id)) = (&mut shared.maps, prompt)
            && !wants.is_empty()
        {
            files.complete(&shared.run, Arc::make_mut(maps), &id, wants).await?;
        }
        Ok(())
    }

    /// The file's bytes.
    fn file(&mut self, format: ExportFormat) -> Result<Vec<u8>> {
        if format == ExportFormat::Csv {
            return self.csv().map(String::into_bytes);
        }
        let background = design::palette_of(self.theme).background;
        match (self.figure()?, format) {
            (Some(svg), ExportFormat::Svg) => Ok(svg.into_bytes()),
            (Some(svg), _) => png(&svg, PIXELS_PER_POINT),
            (None, ExportFormat::Svg) => Ok(self.drawing().to_svg(background).into_bytes()),
            (None, _) => self.drawing().to_png(background),
        }
    }

    fn csv(&mut self) -> Result<String> {
        match &self.content {
            Content::Live { live, .. } => Ok(generate::figures(live).to_csv()),
            Content::Adapting { progress, .. } => Ok(adapt::figures(progress).to_csv()),
            Content::Run(shared) => {
                let (mut readout, mut actions) = (None, vec![]);
                let scene = shared.scene(&mut self.state, &mut readout, &mut actions);
                let figures = scene.figures().map(|figures| figures.to_csv());
                figures.ok_or_else(|| Error::failure("the figures are still being read; try again"))
            }
        }
    }

    /// The view drawn by the figures crate, if it has figures.
    fn figure(&mut self) -> Result<Option<String>> {
        let Content::Run(shared) = &self.content else { return Ok(None) };
        let (mut readout, mut actions) = (None, vec![]);
        let scene = shared.scene(&mut self.state, &mut readout, &mut actions);
        scene.picture(design::figure_theme(self.theme))
    }

    /// The view drawn by egui.
    fn drawing(&mut self) -> Drawing {
        let quiet = Context::default();
        design::apply(&quiet);
        #[cfg(not(target_arch = "wasm32"))]
        design::use_system_fonts(&quiet);
        quiet.set_theme(self.theme);
        let background = design::palette_of(self.theme).background;
        let frame = Frame::new().fill(background).inner_margin(design::space::MEDIUM);
        let size = self.size + Vec2::splat(2.0 * design::space::MEDIUM);
        Drawing::of(quiet, size, PIXELS_PER_POINT, PASSES, |ui| {
            CentralPanel::default().frame(frame).show(ui, |ui| self.show(ui));
        })
    }

    fn show(&mut self, ui: &mut Ui) {
        let (state, mut readout, mut actions) = (&mut self.state, None, vec![]);
        match &mut self.content {
            Content::Run(shared) => shared.scene(state, &mut readout, &mut actions).show(ui),
            Content::Live { live, form, policy, model } => {
                let readout = &mut readout;
                let (adapter, busy, has_prompt, chats) = (None, false, false, false);
                let mut scene =
                    LiveScene { form, live, state, policy, model, adapter, busy, has_prompt, chats, readout };
                generate::show(ui, &mut scene);
            }
            Content::Adapting { progress, layers, tolerance } => {
                adapt::picture(ui, progress, *layers, *tolerance)
            }
        }
    }
}

/// Writes a file; its path.
#[cfg(not(target_arch = "wasm32"))]
fn save(file: File) -> Result<PathBuf> {
    let path = file.path.clone();
    layerscope_report::write(&[file])?;
    Ok(path)
}

/// Gives a file to the browser, which keeps it where its user wants; its name.
#[cfg(target_arch = "wasm32")]
fn save(file: File) -> Result<PathBuf> {
    let name = PathBuf::from(file.path.file_name().unwrap_or_default());
    crate::web::download(&name.to_string_lossy(), &file.bytes)?;
    Ok(name)
}

/// The whole window as PNG, `size` points at one pixel a point; nothing is shown on a screen.
///
/// # Errors
/// If the run cannot be shown, drawing fails or the file cannot be written.
#[cfg(not(target_arch = "wasm32"))]
pub fn screenshot(launch: super::Launch, size: Vec2, pixels_per_point: f32, path: &Path) -> Result<()> {
    let ctx = Context::default();
    design::use_system_fonts(&ctx);
    let theme = launch.theme.unwrap_or(Theme::Dark);
    let mut viewer = Viewer::new(&ctx, launch, super::Remembered::default());
    ctx.set_theme(theme);
    viewer.settle()?;
    let mut drawing = Drawing::of(ctx, size, pixels_per_point, PASSES, |ui| viewer.frame(ui));
    // A frame may have wanted more.
    while viewer.is_waiting() {
        viewer.settle()?;
        drawing.go_on(PASSES, |ui| viewer.frame(ui));
    }
    let bytes = drawing.to_png(design::palette_of(theme).background)?;
    save(File { path: path.to_owned(), bytes }).map(drop)
}
