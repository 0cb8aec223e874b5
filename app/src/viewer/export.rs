//! Exporting the view in front: as a picture, or the figures beneath it.

use super::Viewer;
use crate::data::Task;
use crate::design;
use crate::export::Drawing;
use crate::state::View;
use crate::views::generate;
use eframe::egui::{CentralPanel, Context, Frame, Theme, Vec2, vec2};
use layerscope_engine::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pixels per point of exported pictures.
const PIXELS_PER_POINT: f32 = 2.0;
/// Least size of an exported view, points.
const LEAST: Vec2 = vec2(900.0, 680.0);
/// Passes until a layout has settled.
const PASSES: usize = 4;

/// What a view is exported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Png,
    Svg,
    Csv,
}

impl Format {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Svg => "SVG",
            Self::Csv => "CSV",
        }
    }
}

impl Viewer {
    /// The name that an export is offered under.
    pub(super) fn export_name(&self, format: Format) -> PathBuf {
        let run = self.run.as_ref().and_then(|run| run.folder.file_name());
        let run = run.map_or("layerscope".into(), |name| name.to_string_lossy());
        let extension = format.name().to_lowercase();
        PathBuf::from(format!("{run}-{}.{extension}", self.state.view.name().to_lowercase()))
    }

    /// Draws the view in front anew, without the window, on a thread of its own.
    pub(super) fn export_to(&mut self, format: Format, path: PathBuf) {
        if self.state.view == View::Record {
            return self.say_error("the recording form cannot be exported; show another view first");
        }
        let (ctx, theme, size) = (self.ctx.clone(), self.ctx.theme(), self.view_size);
        // Room for every chart, however small the window is.
        let size = size.max(LEAST);
        let shared = self.shared().filter(|shared| !shared.run.prompts.is_empty());
        let shared = shared.map(|shared| super::Shared { is_picture: true, ..shared });
        let (live, mut state, mut form) = (Arc::clone(&self.live), self.state.clone(), self.form.clone());
        let model = self.model.as_ref().map_or(String::new(), |model| model.name.clone());
        let policy = self.policy().to_string();
        if shared.is_none() && state.view != View::Generate {
            return self.say_error("there is nothing to export yet; open a run first");
        }
        let work = move || {
            if format == Format::Csv {
                let (mut readout, mut actions) = (None, vec![]);
                let csv = match &shared {
                    Some(shared) if state.view != View::Generate => {
                        let scene = shared.scene(&mut state, &mut readout, &mut actions);
                        scene.figures().map(|figures| figures.to_csv())
                    }
                    _ => Some(generate::figures(&live).to_csv()),
                };
                let csv = csv.ok_or_else(|| Error::failure("the figures are still being read; try again"))?;
                return write(path, csv.as_bytes());
            }
            let quiet = Context::default();
            design::apply(&quiet);
            design::use_system_fonts(&quiet);
            quiet.set_theme(theme);
            let palette = design::palette_of(theme);
            let frame = Frame::new().fill(palette.background).inner_margin(design::space::MEDIUM);
            let margin = Vec2::splat(2.0 * design::space::MEDIUM);
            let drawing = Drawing::of(quiet, size + margin, PIXELS_PER_POINT, PASSES, |ui| {
                CentralPanel::default().frame(frame).show(ui, |ui| {
                    let (mut readout, mut actions) = (None, vec![]);
                    match &shared {
                        Some(shared) if state.view != View::Generate => {
                            shared.scene(&mut state, &mut readout, &mut actions).show(ui);
                        }
                        _ => {
                            let mut scene = generate::LiveScene {
                                form: &mut form,
                                live: &live,
                                state: &mut state,
                                policy: &policy,
                                model: &model,
                                busy: false,
                                has_prompt: false,
                                readout: &mut readout,
                            };
                            generate::show(ui, &mut scene);
                        }
                    }
                });
            });
            match format {
                Format::Svg => write(path, drawing.to_svg(palette.background).as_bytes()),
                _ => write(path, &drawing.to_png(palette.background)?),
            }
        };
        self.exporting = Some(Task::start(move || ctx.request_repaint(), work));
    }
}

fn write(path: PathBuf, bytes: &[u8]) -> Result<PathBuf> {
    std::fs::write(&path, bytes).map_err(|error| Error::io("write", &path, &error))?;
    Ok(path)
}

/// The whole window as PNG, `size` points at one pixel a point; nothing is shown on a screen.
///
/// # Errors
/// What keeps the run from being shown, the drawing from being made or the file from being written.
pub fn screenshot(launch: super::Launch, size: Vec2, pixels_per_point: f32, path: &Path) -> Result<()> {
    let ctx = Context::default();
    design::use_system_fonts(&ctx);
    let theme = launch.theme.unwrap_or(Theme::Dark);
    let mut viewer = Viewer::new(&ctx, launch, super::Remembered::default());
    ctx.set_theme(theme);
    viewer.settle()?;
    let drawing = Drawing::of(ctx, size, pixels_per_point, PASSES, |ui| viewer.frame(ui));
    write(path.to_owned(), &drawing.to_png(design::palette_of(theme).background)?).map(drop)
}
