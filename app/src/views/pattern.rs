//! The attention pattern: queries × keys of a layer and head, at any zoom; all heads of a layer, and of all layers, side by side. Computed
//! from the model as it comes into sight; of the generated rows the run itself has the strongest positions.

use super::map::choose;
use super::{Action, Scene, Sought};
use crate::data::{CellFigure, MapKey, PromptMaps, Scale, ScaleKind, Sight, StepFigure, Want, exact};
use crate::design::{self, ColourMap, size, space};
use crate::state::{OverHeads, PatternLayout, PatternRows, Window};
use crate::widgets::{colour_bar_with_stripes, token_label};
use eframe::egui::{
    ComboBox, Label, Rect, RichText, Sense, Ui, UiBuilder, WidgetInfo, accesskit::Role, vec2,
};
use layerscope_diagnostics::record::PromptSummary;
use layerscope_engine::PatternHeads;
use layerscope_figures::{Cells, Pyramid, UNSEEN};

mod export;
mod image;
mod multiples;
mod plot;

pub use export::{figures, picture};

/// What is shown of which layer and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    /// The layer.
    pub(super) layer: usize,
    /// The heads.
    pub(super) heads: PatternHeads,
}

impl Subject {
    /// The layer and head that are selected; of several the first, of none the layer that reads the prompt most.
    pub(super) fn of(scene: &Scene<'_>) -> Self {
        let (selection, layers, heads) = (&scene.state.selection, scene.run.layers(), scene.run.heads());
        let over = match scene.state.pattern.over {
            OverHeads::Mean => PatternHeads::Mean,
            OverHeads::Max => PatternHeads::Max,
        };
        let head = selection.heads.iter().copied().find(|&(layer, head)| layer < layers && head < heads);
        if let Some((layer, head)) = head {
            return Self { layer, heads: PatternHeads::One(head) };
        }
        let layer = selection.layers.iter().copied().find(|&layer| layer < layers);
        let layer = layer.unwrap_or_else(|| reads_most(scene.prompt()));
        Self { layer, heads: over }
    }

    /// Its name.
    pub(super) fn name(self) -> String {
        match self.heads {
            PatternHeads::One(head) => format!("layer {}, head {head}", self.layer),
            PatternHeads::Mean => format!("layer {}, mean over heads", self.layer),
            PatternHeads::Max => format!("layer {}, largest of the heads", self.layer),
        }
    }
}

/// The layer of the largest prompt mass.
fn reads_most(prompt: &PromptSummary) -> usize {
    let mass = prompt.layers.prompt_mass.iter().copied().enumerate();
    mass.filter(|(_, mass)| !mass.is_nan()).max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(layer, _)| layer)
}

/// Rows and keys of a prompt's text, and the position of its first decode row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Rows, and keys.
    pub(super) all: usize,
    /// The prompt's last token.
    pub(super) boundary: usize,
}

impl Extent {
    pub(super) fn of(prompt: &PromptSummary) -> Self {
        let boundary = prompt.p.saturating_sub(1);
        Self { all: boundary + prompt.steps.max(1), boundary }
    }

    /// Queries that are shown where the view is not zoomed.
    pub(super) fn queries(self, rows: PatternRows) -> Window {
        let start = if rows == PatternRows::Generated { self.boundary as f64 } else { 0.0 };
        Window { start, end: self.all as f64 }
    }

    pub(super) fn keys(self) -> Window {
        Window::all(self.all)
    }
}

/// Where the cells come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The model.
    Tiles,
    /// The run's record of the strongest positions.
    Record,
}

pub(super) fn source(scene: &Scene<'_>) -> Source {
    match scene.tiles.is_on || !scene.tiles.tiles.is_empty() {
        true => Source::Tiles,
        false => Source::Record,
    }
}

/// Queries and keys in sight.
pub(super) fn windows(scene: &Scene<'_>) -> [Window; 2] {
    let extent = Extent::of(scene.prompt());
    let state = &scene.state.pattern;
    let whole = extent.queries(state.rows);
    let queries = state.queries.unwrap_or(whole).within(extent.all);
    // Of generated rows alone, none of the prompt comes into sight.
    let start = queries.start.max(whole.start);
    let queries = Window { start, end: queries.end.max(start + 1.0) };
    [queries, state.keys.unwrap_or(extent.keys()).within(extent.all)]
}

/// The cells in sight, from the model or from the record.
pub(super) fn cells(scene: &Scene<'_>, sight: &Sight, figure: CellFigure) -> Option<Cells> {
    match source(scene) {
        Source::Tiles => Some(sight.cells(&scene.tiles.tiles, figure)),
        Source::Record => sight.recorded(scene.maps?, scene.prompt().p),
    }
}

/// What the view needs of maps and what is not there yet.
pub(super) fn wants(scene: &Scene<'_>, maps: &PromptMaps) -> Vec<Want> {
    if source(scene) == Source::Tiles {
        return vec![];
    }
    let bos = StepFigure::BosMass;
    let parts = maps.steps(bos).lacking_columns(0..maps.steps(bos).columns());
    let parts = parts.into_iter().map(|part| Want::Part(MapKey::Steps(bos), part));
    parts.chain(maps.lacking_reads()).collect()
}

/// Whether what the run recorded is still to come.
pub(super) fn is_coming(scene: &Scene<'_>) -> bool {
    source(scene) == Source::Record && scene.maps.is_none_or(|maps| !maps.lacking_reads().is_empty())
}

/// Colours fitted to cells; without position 0, if that is left out and others are in sight.
pub(super) fn scale<'a>(scene: &Scene<'_>, all: impl Iterator<Item = &'a Cells>) -> Scale {
    let leaves_out = scene.state.leave_out_bos;
    let mut known = vec![];
    for cells in all {
        let skipped = usize::from(leaves_out && cells.first[1] == 0 && cells.columns > 1);
        let lines = cells.values.chunks_exact(cells.columns.max(1));
        known.extend(lines.flat_map(|line| &line[skipped.min(line.len())..]).filter(|x| x.is_finite()));
    }
    Scale::fit(scene.state.pattern.scale, &Pyramid::from_rows(&known, 1, known.len()), false, false)
}

/// What the colours measure.
pub(super) fn unit(subject: Subject) -> &'static str {
    match subject.heads {
        PatternHeads::One(_) => "share of the query's attention, largest in a cell",
        PatternHeads::Mean => "share of attention, mean over heads, largest in a cell",
        PatternHeads::Max => "share of attention, largest of the heads and in a cell",
    }
}

/// What stripes mean.
pub(super) fn stripes(scene: &Scene<'_>) -> &'static str {
    match source(scene) {
        Source::Record => "not recorded",
        Source::Tiles if scene.state.pattern.under_policy => "does not exist",
        Source::Tiles => "not read",
    }
}

/// What is to be said about the record.
pub(super) const RECORD: &str = "strongest positions only, as the run recorded them";

/// Draws the view.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    if !scene.is_picture {
        controls(ui, scene);
    }
    scene.want(&Sought::PICTURE);
    if is_coming(scene) {
        ui.horizontal(|ui| {
            ui.spinner();
            ui.label("reading the prompt’s maps …");
        });
        return;
    }
    match scene.state.pattern.layout {
        PatternLayout::One => one(ui, scene),
        PatternLayout::Heads | PatternLayout::Layers => multiples::show(ui, scene),
    }
}

fn one(ui: &mut Ui, scene: &mut Scene<'_>) {
    let subject = Subject::of(scene);
    let whole = ui.available_rect_before_wrap();
    let place = plot::Place::new(Rect::from_min_max(whole.min + vec2(0.0, LEGEND), whole.max), scene);
    let sight =
        Sight::new(subject.layer, subject.heads, windows(scene), [place.grid.height(), place.grid.width()]);
    if source(scene) == Source::Tiles && !scene.is_picture {
        let lacking = sight.tiles().into_iter().filter(|key| !scene.tiles.tiles.has(key)).collect();
        scene.actions.push(Action::Tiles(lacking));
    }
    let Some(shown) = image::Shown::of(ui, scene, &sight) else {
        return not_recorded(ui, scene);
    };
    legend(ui, scene, &shown.scale, unit(subject), &subject.name());
    ui.allocate_rect(ui.available_rect_before_wrap(), Sense::hover());
    plot::show(ui, scene, &place, &sight, &shown);
    let nothing = source(scene) == Source::Record && scene.state.pattern.rows == PatternRows::Text;
    if (nothing || scene.tiles.reading.is_some()) && !scene.is_picture {
        invite(ui, scene, place.grid);
    }
}

/// Height of the colour bar with its captions.
pub(super) const LEGEND: f32 = 40.0;

/// The colour bar, and beside it what it measures.
pub(super) fn legend(ui: &mut Ui, scene: &Scene<'_>, scale: &Scale, unit: &str, name: &str) {
    let place = Rect::from_min_size(ui.available_rect_before_wrap().min, vec2(ui.available_width(), LEGEND));
    ui.scope_builder(UiBuilder::new().max_rect(place), |ui| {
        ui.horizontal_top(|ui| {
            ui.add_space(size::AXIS);
            let width = (ui.available_width() * 0.4).clamp(190.0, 420.0);
            let stripes = stripes(scene);
            colour_bar_with_stripes(ui, scale, scene.state.colour_map, unit, width, stripes);
            let under = match scene.state.pattern.under_policy {
                true => format!(" under {}", scene.tiles.policy),
                false => String::new(),
            };
            let record = match source(scene) {
                Source::Record => format!("{RECORD} · "),
                Source::Tiles => String::new(),
            };
            let text = format!("{record}{name}{under} · {unit}");
            ui.add(Label::new(RichText::new(&text).weak()).truncate()).on_hover_text(text);
        });
    });
}

fn controls(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.horizontal_wrapped(|ui| {
        for layout in PatternLayout::ALL {
            let label = ui.selectable_label(scene.state.pattern.layout == layout, layout.name());
            if label.on_hover_text(layout.description()).clicked() {
                scene.state.pattern.layout = layout;
            }
        }
        ui.separator();
        let rows = &mut scene.state.pattern.rows;
        for (one, name, about) in [
            (
                PatternRows::Generated,
                "Generated rows",
                "What the prompt’s last token and the generated ones read",
            ),
            (PatternRows::Text, "Whole text", "Every query of the text"),
        ] {
            if ui.selectable_label(*rows == one, name).on_hover_text(about).clicked() {
                *rows = one;
                scene.state.pattern.queries = None;
            }
        }
        ui.separator();
        choose_subject(ui, scene);
        choose(ui, "Scale", &mut scene.state.pattern.scale, ScaleKind::ALL, ScaleKind::name);
        choose(ui, "Colours", &mut scene.state.colour_map, ColourMap::ALL, ColourMap::name);
        ui.checkbox(&mut scene.state.leave_out_bos, "Leave out BoS").on_hover_text(
            "Fit the colours without position 0: it takes most of the attention at most layers",
        );
        if scene.tiles.is_on {
            ui.checkbox(&mut scene.state.pattern.under_policy, "Under the policy").on_hover_text(
                "Read the text under the chosen policy and cutoff; what does not exist there is striped",
            );
        } else if scene.model_is_loaded && ui.button("Compute from the model").on_hover_text(ABOUT).clicked()
        {
            scene.actions.push(Action::ComputePattern);
        }
    });
    ui.add_space(space::SMALL);
}

const ABOUT: &str = "Run this text once and compute what is in sight, exactly, at every zoom";

/// Layer and head: those of the selection.
fn choose_subject(ui: &mut Ui, scene: &mut Scene<'_>) {
    let (layers, heads, subject) = (scene.run.layers(), scene.run.heads(), Subject::of(scene));
    let mut chosen = subject;
    if scene.state.pattern.layout != PatternLayout::Layers {
        let name = format!("Layer {}", subject.layer);
        let menu =
            ComboBox::from_id_salt("pattern layer").selected_text(&name).width(84.0).show_ui(ui, |ui| {
                for layer in 0..layers {
                    ui.selectable_value(&mut chosen.layer, layer, format!("Layer {layer}"));
                }
            });
        menu.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, &name));
    }
    if scene.state.pattern.layout == PatternLayout::One {
        let name = |heads: PatternHeads| match heads {
            PatternHeads::One(head) => format!("Head {head}"),
            PatternHeads::Mean => "Mean of heads".into(),
            PatternHeads::Max => "Largest head".into(),
        };
        let shown = name(subject.heads);
        let menu =
            ComboBox::from_id_salt("pattern head").selected_text(&shown).width(112.0).show_ui(ui, |ui| {
                let all = (0..heads).map(PatternHeads::One);
                for one in [PatternHeads::Mean, PatternHeads::Max].into_iter().chain(all) {
                    ui.selectable_value(&mut chosen.heads, one, name(one));
                }
            });
        menu.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, format!("Heads: {shown}")));
    }
    if chosen != subject {
        select(scene, chosen);
    }
}

/// Selects a layer and its heads, in every view.
pub(super) fn select(scene: &mut Scene<'_>, subject: Subject) {
    let selection = &mut scene.state.selection;
    selection.layers = [subject.layer].into();
    selection.heads.clear();
    match subject.heads {
        PatternHeads::One(head) => selection.heads = [(subject.layer, head)].into(),
        PatternHeads::Mean => scene.state.pattern.over = OverHeads::Mean,
        PatternHeads::Max => scene.state.pattern.over = OverHeads::Max,
    }
}

/// In place of cells that nothing is known of: how to get them, or how far that is.
fn invite(ui: &mut Ui, scene: &mut Scene<'_>, area: Rect) {
    let palette = design::palette(ui);
    let card = Rect::from_center_size(area.center(), vec2(area.width().min(340.0), 96.0));
    ui.scope_builder(UiBuilder::new().max_rect(card), |ui| {
        ui.vertical_centered(|ui| {
            design::card(palette).show(ui, |ui| {
                if let Some([done, all]) = scene.tiles.reading {
                    ui.label(format!("Running the text: {done} of {all} tokens"));
                    ui.add(
                        eframe::egui::ProgressBar::new(done as f32 / all.max(1) as f32).desired_width(280.0),
                    );
                } else if scene.model_is_loaded {
                    ui.label("The run keeps generated rows alone; the model has the others.");
                    if ui.button("Compute the whole text").on_hover_text(ABOUT).clicked() {
                        scene.actions.push(Action::ComputePattern);
                    }
                } else {
                    ui.label("The run keeps generated rows alone. Open its model to see the others.");
                }
            });
        });
    });
}

/// Where a run was recorded before the strongest positions were kept.
fn not_recorded(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.vertical_centered(|ui| {
        ui.add_space(ui.available_height() / 3.0);
        ui.label("This run was recorded before attention was kept token by token.");
        if scene.model_is_loaded {
            if ui.button("Compute from the model").on_hover_text(ABOUT).clicked() {
                scene.actions.push(Action::ComputePattern);
            }
        } else {
            ui.weak("Open its model to compute the pattern.");
        }
    });
}

/// The text of a position: a token of the prompt, or a generated one.
pub(super) fn token_at(prompt: &PromptSummary, position: usize) -> Option<&str> {
    let generated = || prompt.generated_token_text.get(position.checked_sub(prompt.p)?);
    prompt.prompt_token_text.get(position).or_else(generated).map(String::as_str)
}

/// The texts of all positions.
pub(super) fn texts(prompt: &PromptSummary) -> Vec<String> {
    prompt.prompt_token_text.iter().chain(&prompt.generated_token_text).cloned().collect()
}

/// A query or key, or a run of them, in words.
pub(super) fn named(prompt: &PromptSummary, what: &str, first: usize, count: usize, all: usize) -> String {
    let last = (first + count).min(all).saturating_sub(1);
    if last > first {
        return format!("{what}s {first}–{last}");
    }
    let token = token_at(prompt, first).map_or(String::new(), |token| format!(": “{}”", token_label(token)));
    format!("{what} {first}{token}")
}

/// A cell's value in words.
pub(super) fn valued(scene: &Scene<'_>, value: f32) -> String {
    if value == UNSEEN {
        "after the query".into()
    } else if value.is_nan() {
        stripes(scene).into()
    } else if value == 0.0 && source(scene) == Source::Record {
        "weaker than what is recorded".into()
    } else {
        exact(value)
    }
}
