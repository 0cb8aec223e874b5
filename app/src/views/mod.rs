//! The views. Each draws data in memory and changes only the view's state; it requests work of the engine,
//! files and dialogs by an [`Action`].

pub mod adapt;
pub mod answers;
pub mod compare;
pub mod curves;
pub mod frontier;
pub mod generate;
pub mod heads;
pub mod map;
pub mod patching;
pub mod pattern;
mod picture;
pub mod policies;
pub mod reading;
pub mod record;
mod wants;

use crate::data::{DrawnPatches, PromptMaps, RunData, RunPair, TileKey, Tiles, Want};
use crate::engine::message::Pattern;
use crate::state::{View, ViewState};
use crate::widgets::{Figures, chart, count};
use eframe::egui::{ScrollArea, Ui, Vec2, vec2};
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::record::PromptSummary;
use layerscope_diagnostics::record::SpanRecord;
use layerscope_figures::Chart;
use layerscope_recording::patching::PatchRequest;
use ndarray::Array2;
use std::ops::Range;
use std::sync::Arc;
pub use wants::Sought;

/// Minimum width for three columns of charts.
const THREE_COLUMNS: f32 = 980.0;
/// Least height of a chart.
const LEAST_HEIGHT: f32 = 190.0;

/// Draws charts in up to `most` columns and moves the cutoff on a drag. Returns the clicked layer.
fn charts_in_rows(ui: &mut Ui, charts: &[Chart], most: usize, cutoff: &mut usize) -> Option<usize> {
    let columns = if ui.available_width() > THREE_COLUMNS { most } else { most.min(2) };
    let rows = charts.len().div_ceil(columns) as f32;
    let gap = ui.spacing().item_spacing;
    let width = (ui.available_width() - gap.x * columns as f32) / columns as f32 - 4.0;
    let height = ((ui.available_height() - gap.y * rows) / rows).max(LEAST_HEIGHT);
    let size = vec2(width, height);
    ScrollArea::vertical().show(ui, |ui| chart_rows(ui, charts, columns, size, Some(cutoff))).inner
}

/// Draws charts of one size in rows. Returns the clicked layer.
fn chart_rows(
    ui: &mut Ui,
    charts: &[Chart],
    columns: usize,
    size: Vec2,
    mut cutoff: Option<&mut usize>,
) -> Option<usize> {
    let mut clicked = None;
    for row in charts.chunks(columns) {
        ui.horizontal(|ui| {
            for one in row {
                clicked = clicked.or(chart(ui, one, size, cutoff.as_deref_mut()));
            }
        });
    }
    clicked
}

/// A request of a view.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Compute the attention patterns of these layers for the current prompt; needs the model.
    ReadPattern(Vec<usize>),
    /// Compute the attention pattern of the prompts that are shown, from now on; needs the model.
    ComputePattern,
    /// Compute these tiles of the current prompt's attention pattern, in this order, rather than those asked for before.
    Tiles(Vec<TileKey>),
    /// Fetch these parts of the current prompt's maps, in this order.
    Want(Vec<Want>),
    /// Choose another run to compare with.
    CompareWith,
    /// Stop comparing.
    CloseSecondRun,
    /// Remove these tokens of the current prompt from each layer on; needs the run's model.
    RemoveSpan(Range<usize>),
    /// Patch the current prompt and another, which is the corrupted one; needs the run's model.
    Patch(Box<PatchAsked>),
    /// Show a prompt of the run, by its index.
    ShowPrompt(usize),
    /// Stop the engine's work.
    Stop,
}

/// A pair of prompts, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchAsked {
    /// Ids of the clean and of the corrupted prompt.
    pub prompts: [String; 2],
    /// What is asked.
    pub request: PatchRequest,
}

/// Patches that are being computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Patching {
    /// Ids of the clean and of the corrupted prompt.
    pub prompts: [String; 2],
    /// Progress; `None` before it has started.
    pub progress: Option<PatchEvent>,
}

/// A span that is being removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Removing {
    /// Positions of the span.
    pub span: Range<usize>,
    /// Progress; `None` before it has started.
    pub progress: Option<DiffusionEvent>,
}

/// The tiles of the current prompt's attention pattern.
#[derive(Debug, Clone, Default)]
pub struct SharedTiles {
    /// Those that are computed.
    pub tiles: Arc<Tiles>,
    /// Whether they are computed as they come into sight.
    pub is_on: bool,
    /// Rows of the text that have run, and all, while it runs.
    pub reading: Option<[usize; 2]>,
    /// Name of the policy that the text is read under.
    pub policy: String,
}

/// The data that the views of a run draw.
pub struct Scene<'a> {
    /// The view's state.
    pub state: &'a mut ViewState,
    /// The run.
    pub run: &'a RunData,
    /// The maps of the current prompt, once they are read.
    pub maps: Option<&'a PromptMaps>,
    /// Attention patterns of the current prompt that were read, by layer.
    pub patterns: &'a [Pattern],
    /// Tiles of the current prompt's attention pattern.
    pub tiles: &'a SharedTiles,
    /// The removed spans of the run's prompts.
    pub spans: &'a [SpanRecord],
    /// The span that is being removed.
    pub removing: Option<&'a Removing>,
    /// The maps of activation patches between prompts, or why they cannot be read.
    pub patches: Result<&'a [DrawnPatches], &'a str>,
    /// The patches that are being computed.
    pub patching: Option<&'a Patching>,
    /// Savings of cutoffs measured by live generation.
    pub measured: &'a [frontier::LiveSavings],
    /// Share of the full model's tokens that each KV head has at the prompt's end under the chosen policy, where that is more than a
    /// cutoff; `[layer, KV head]`.
    pub kept: Option<&'a Array2<f64>>,
    /// The run that is compared with.
    pub second: Option<&'a RunData>,
    /// The comparison, or why there is none; `None` until it is computed.
    pub compared: Option<&'a std::result::Result<RunPair, String>>,
    /// Whether a model for patterns is available.
    pub model_is_loaded: bool,
    /// Whether it is drawn for export, with a caption instead of controls.
    pub is_picture: bool,
    /// Status line text for the pointer's position.
    pub readout: &'a mut Option<String>,
    /// The requests of the views.
    pub actions: &'a mut Vec<Action>,
}

impl Scene<'_> {
    /// The current prompt.
    pub fn prompt(&self) -> &PromptSummary {
        &self.run.prompts[self.state.prompt.min(self.run.prompts.len() - 1)]
    }

    /// Draws the current view. The run has at least one prompt.
    pub fn show(&mut self, ui: &mut Ui) {
        if self.is_picture {
            ui.weak(self.caption());
        }
        let rows = match self.state.as_table {
            true => self.figures().map(|figures| crate::widgets::figures_table(ui, &figures)),
            false => None,
        };
        if let Some(rows) = rows {
            return self.want(&Sought::Table(rows));
        }
        match self.state.view {
            View::Map => map::show(ui, self),
            View::Pattern => pattern::show(ui, self),
            View::Reading => reading::show(ui, self),
            View::Curves => curves::show(ui, self),
            View::Heads => heads::show(ui, self),
            View::Frontier => frontier::show(ui, self),
            View::Patching => patching::show(ui, self),
            View::Compare => compare::show(ui, self),
            View::Generate | View::Record | View::Adapt => {}
        }
    }

    /// Asks for what the current view needs and what is not there yet.
    fn want(&mut self, look: &Sought) {
        let wants = self.wants(look);
        if !wants.is_empty() {
            self.actions.push(Action::Want(wants));
        }
    }

    /// The caption of an exported picture.
    fn caption(&self) -> String {
        let (prompt, model) = (self.prompt(), &self.run.manifest.model.name);
        let of = match self.state.view {
            View::Curves | View::Frontier | View::Compare => count(self.run.prompts.len(), "prompt"),
            _ => format!("prompt {} ({}), {} tokens", prompt.id, prompt.category, prompt.p),
        };
        let version = &self.run.manifest.layerscope;
        format!("{model}, {of}, {} weights; layerscope {version}", self.run.manifest.weights)
    }

    /// The current view's data as a table.
    pub fn figures(&self) -> Option<Figures<'_>> {
        match self.state.view {
            View::Map => map::figures(self),
            View::Pattern => pattern::figures(self),
            View::Reading => reading::figures(self),
            View::Curves => Some(curves::figures(self)),
            View::Heads => Some(heads::figures(self)),
            View::Frontier => frontier::figures(self),
            View::Patching => patching::figures(self),
            View::Compare => compare::figures(self),
            View::Generate | View::Record | View::Adapt => None,
        }
    }
}
