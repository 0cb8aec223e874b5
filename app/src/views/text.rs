//! The prompt's text, each token shaded by the attention that it receives at the chosen layers, steps and heads.

use super::map::choose;
use super::{Action, Scene};
use crate::data::{Pyramid, Scale, ScaleKind, TokenFigure, exact};
use crate::design::{self, size, space};
use crate::engine::message::Pattern;
use crate::widgets::{Column, Figures, cell, token_label};
use eframe::egui::{
    Id, Label, Rect, RichText, ScrollArea, Sense, Stroke, StrokeKind, Ui, UiBuilder, WidgetInfo,
    accesskit::Role, pos2, vec2,
};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

mod flow;
mod span;

use flow::{Flow, Piece};

/// Cached data of the displayed text.
#[derive(Default)]
struct Cache {
    pieces: Option<(u64, Arc<Vec<Piece>>)>,
    flow: Flow,
    shades: Option<(u64, Arc<Shades>)>,
    /// The token selected in the last frame. If another view selects a different one, the text scrolls to it.
    selected: Option<usize>,
    /// The token where the current drag started.
    dragged_from: Option<usize>,
}

/// Attention received by each token, and its position on the scale.
struct Shades {
    values: Vec<f32>,
    positions: Vec<f32>,
    scale: Scale,
}

/// Draws the text.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    if !scene.is_picture {
        controls(ui, scene);
    }
    let cache: Arc<Mutex<Cache>> = ui
        .data_mut(|data| data.get_temp_mut_or_default::<Arc<Mutex<Cache>>>(Id::unique("text view")).clone());
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(shades) = shades(&mut cache, scene) else {
        ui.horizontal(|ui| {
            ui.spinner();
            ui.label("reading the prompt’s maps …");
        });
        return;
    };
    shade_bar(ui, scene, &shades.scale);
    ui.add_space(space::SMALL);

    let key = key(&(scene.run.folder.as_path(), scene.state.prompt, scene.run.manifest.revision));
    let pieces = match &cache.pieces {
        Some((known, pieces)) if *known == key => pieces.clone(),
        _ => {
            let pieces = Arc::new(flow::pieces(&scene.prompt().prompt_token_text));
            cache.pieces = Some((key, pieces.clone()));
            cache.flow = Flow::default();
            pieces
        }
    };
    // The panel of selected tokens is below the text.
    let panel = span::height(scene);
    let available = ui.available_rect_before_wrap();
    let below = panel
        .map(|height| Rect::from_min_max(pos2(available.left(), available.bottom() - height), available.max));
    let height = ui.fonts_mut(|fonts| fonts.row_height(&design::body())) + 7.0;
    let width = ui.available_width() - space::LARGE;
    let is_laid_out = cache.flow.lay_out(ui, &pieces, width);
    if !is_laid_out {
        // A very long prompt is laid out over several frames.
        ui.ctx().request_repaint();
    }
    let mut scroll = ScrollArea::vertical().auto_shrink(false);
    if let Some(panel) = panel {
        scroll = scroll.max_height((ui.available_height() - panel).max(height));
    }
    let elsewhere = scene.state.selection.token.filter(|token| is_laid_out && cache.selected != Some(*token));
    if let Some(line) = elsewhere.and_then(|token| cache.flow.line_of(&pieces, token)) {
        scroll = scroll.vertical_scroll_offset((line as f32 * height - ui.available_height() / 2.0).max(0.0));
    }
    let Cache { flow, dragged_from, .. } = &mut *cache;
    if !ui.input(|input| input.pointer.any_down()) {
        *dragged_from = None;
    }
    scroll.show_rows(ui, height - ui.spacing().item_spacing.y, flow.lines(), |ui, rows| {
        for index in rows {
            let (rect, response) = ui.allocate_exact_size(
                vec2(width, height - ui.spacing().item_spacing.y),
                Sense::click_and_drag(),
            );
            line(ui, scene, &pieces[flow.line(index)], rect, &response, &shades, dragged_from);
        }
    });
    if is_laid_out {
        cache.selected = scene.state.selection.token;
    }
    if let Some(below) = below {
        ui.scope_builder(UiBuilder::new().max_rect(below), |ui| span::show(ui, scene));
    }
}

fn controls(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.horizontal_wrapped(|ui| {
        choose(ui, "Figure", &mut scene.state.token_figure, TokenFigure::ALL, TokenFigure::name);
        choose(ui, "Scale", &mut scene.state.text_scale, ScaleKind::ALL, ScaleKind::name);
        ui.checkbox(&mut scene.state.leave_out_bos, "Leave out BoS");
        layers(ui, scene);
        let selection = &scene.state.selection;
        let finer = !selection.heads.is_empty() || !selection.steps.is_empty();
        if finer {
            let lacking = lacking(scene);
            if lacking.is_empty() {
                ui.weak(format!(
                    "{} heads, {} steps",
                    count(selection.heads.len()),
                    count(selection.steps.len())
                ));
            } else if scene.model_is_loaded {
                if ui.button("Read these heads and steps").clicked() {
                    scene.actions.push(Action::ReadPattern(lacking));
                }
            } else {
                ui.weak("open the model to shade by single heads and steps; shown: all heads and steps");
            }
        }
        if !scene.state.selection.is_empty() && ui.button("Clear selection").clicked() {
            scene.state.selection = Default::default();
        }
    });
}

fn count(number: usize) -> String {
    if number == 0 { "all".into() } else { number.to_string() }
}

/// The layers of the shades, with buttons to step through them.
fn layers(ui: &mut Ui, scene: &mut Scene<'_>) {
    let last = scene.run.layers() - 1;
    let selection = &mut scene.state.selection.layers;
    let text = match selection.len() {
        0 => "all layers".to_owned(),
        1 => format!("layer {}", selection.first().copied().unwrap_or(0)),
        number => format!("{number} layers"),
    };
    let only = (selection.len() == 1).then(|| selection.first().copied()).flatten();
    if ui.button("‹").on_hover_text("Previous layer").clicked() {
        *selection = [only.map_or(last, |layer| layer.saturating_sub(1))].into();
    }
    ui.label(text);
    if ui.button("›").on_hover_text("Next layer").clicked() {
        *selection = [only.map_or(0, |layer| (layer + 1).min(last))].into();
    }
    if !selection.is_empty() && ui.small_button("all").on_hover_text("All layers").clicked() {
        selection.clear();
    }
}

/// The layers whose patterns the selection needs and that are not read yet.
fn lacking(scene: &Scene<'_>) -> Vec<usize> {
    let needed = pattern_layers(scene);
    needed.into_iter().filter(|layer| !scene.patterns.iter().any(|p| p.layer == *layer)).collect()
}

/// The layers of the selected heads and steps.
fn pattern_layers(scene: &Scene<'_>) -> Vec<usize> {
    let selection = &scene.state.selection;
    if !selection.layers.is_empty() {
        return selection.layers.iter().copied().collect();
    }
    let of_heads: std::collections::BTreeSet<usize> =
        selection.heads.iter().map(|(layer, _)| *layer).collect();
    if of_heads.is_empty() { (0..scene.run.layers()).collect() } else { of_heads.into_iter().collect() }
}

/// Whether single heads or steps are selected and their patterns are read.
fn is_finer(scene: &Scene<'_>) -> bool {
    let selection = &scene.state.selection;
    (!selection.heads.is_empty() || !selection.steps.is_empty()) && lacking(scene).is_empty()
}

/// Attention received by each token for the selection.
fn values(scene: &Scene<'_>, pyramid: &Pyramid) -> Vec<f32> {
    if is_finer(scene) { of_patterns(scene, pyramid.columns()) } else { of_layers(scene, pyramid) }
}

fn shades(cache: &mut Cache, scene: &Scene<'_>) -> Option<Arc<Shades>> {
    let maps = scene.maps?;
    let state = &scene.state;
    let pyramid = maps.tokens(state.token_figure);
    let selection = &state.selection;
    let finer = is_finer(scene);
    let key = key(&(
        pyramid.id(),
        &selection.layers,
        finer.then_some((&selection.heads, &selection.steps, scene.patterns.len())),
        state.text_scale.name(),
        state.leave_out_bos,
    ));
    if let Some((known, shades)) = &cache.shades
        && *known == key
    {
        return Some(shades.clone());
    }
    let values = values(scene, pyramid);
    let row = Pyramid::from_rows(&values, 1, values.len());
    let scale = Scale::fit(state.text_scale, &row, false, state.leave_out_bos);
    let positions = values.iter().map(|value| scale.position(0, *value)).collect();
    let shades = Arc::new(Shades { values, positions, scale });
    cache.shades = Some((key, shades.clone()));
    Some(shades)
}

/// The mean over the selected layers or all; for maxima, the maximum.
fn of_layers(scene: &Scene<'_>, pyramid: &Pyramid) -> Vec<f32> {
    let layers = &scene.state.selection.layers;
    let chosen: Vec<usize> = match layers.is_empty() {
        true => (0..pyramid.rows()).collect(),
        false => layers.iter().copied().filter(|layer| *layer < pyramid.rows()).collect(),
    };
    let of = |column: usize| {
        let values = pyramid.column(column);
        let values = chosen.iter().map(|layer| values[*layer]);
        match scene.state.token_figure {
            TokenFigure::ReceivedMax => values.fold(f32::NAN, f32::max),
            TokenFigure::ReceivedMean => values.sum::<f32>() / chosen.len() as f32,
        }
    };
    (0..pyramid.columns()).map(of).collect()
}

/// The same over the selected heads and steps of the layers whose patterns are read.
fn of_patterns(scene: &Scene<'_>, positions: usize) -> Vec<f32> {
    let selection = &scene.state.selection;
    let layers = pattern_layers(scene);
    let mut values = vec![0.0_f32; positions];
    let mut rows = 0_usize;
    for pattern in scene.patterns.iter().filter(|pattern| layers.contains(&pattern.layer)) {
        for head in 0..pattern.heads {
            let chosen = selection.heads.is_empty() || selection.heads.contains(&(pattern.layer, head));
            for step in (0..pattern.steps).filter(|_| chosen) {
                if selection.steps.is_empty() || selection.steps.contains(&step) {
                    add(&mut values, row(pattern, head, step), scene.state.token_figure);
                    rows += 1;
                }
            }
        }
    }
    if scene.state.token_figure == TokenFigure::ReceivedMean && rows > 0 {
        values.iter_mut().for_each(|value| *value /= rows as f32);
    }
    values
}

fn row(pattern: &Pattern, head: usize, step: usize) -> &[f32] {
    let start = (head * pattern.steps + step) * pattern.positions;
    pattern.values.get(start..start + pattern.positions).unwrap_or(&[])
}

fn add(values: &mut [f32], row: &[f32], figure: TokenFigure) {
    for (value, &one) in values.iter_mut().zip(row) {
        match figure {
            TokenFigure::ReceivedMean => *value += one,
            TokenFigure::ReceivedMax => *value = value.max(one),
        }
    }
}

/// The legend of the shades.
fn shade_bar(ui: &mut Ui, scene: &Scene<'_>, scale: &Scale) {
    let palette = design::palette(ui);
    ui.horizontal_top(|ui| {
        let width = 320.0_f32.min(ui.available_width() * 0.5);
        let (rect, response) = ui.allocate_exact_size(vec2(width, 30.0), Sense::hover());
        let bar = Rect::from_min_size(rect.min, vec2(width, size::COLOUR_BAR));
        let steps = 32;
        for step in 0..steps {
            let share = step as f32 / steps as f32;
            let width = bar.width() / steps as f32;
            let part = Rect::from_min_size(
                pos2(bar.left() + share * bar.width(), bar.top()),
                vec2(width + 0.5, bar.height()),
            );
            ui.painter().rect_filled(part, 0.0, shade(ui, share));
        }
        crate::widgets::axis::foot(ui.painter(), palette, bar, scale.ticks());
        let name = scene.state.token_figure.description();
        response.widget_info(|| WidgetInfo::labeled(Role::Image, true, format!("Shades: {name}")));
        ui.add_space(space::MEDIUM);
        ui.add(Label::new(RichText::new(name).weak()).truncate());
    });
}

fn shade(ui: &Ui, position: f32) -> eframe::egui::Color32 {
    design::faded(design::palette(ui).shade, position)
}

/// Draws one line: shades behind a single text layout, so that joined scripts stay joined.
fn line(
    ui: &mut Ui,
    scene: &mut Scene<'_>,
    pieces: &[Piece],
    rect: Rect,
    response: &eframe::egui::Response,
    shades: &Shades,
    dragged_from: &mut Option<usize>,
) {
    let palette = design::palette(ui);
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let galley = ui.painter().layout_no_wrap(text.clone(), design::body(), palette.text);
    let edges = flow::edges(&galley, pieces);
    let (mut hovered, mut under_pointer, mut pressed) = (None, None, None);
    let (pointer, origin) = ui.input(|input| (input.pointer.interact_pos(), input.pointer.press_origin()));
    let selected = scene.state.selection.tokens().unwrap_or(0..0);
    for (piece, edge) in pieces.iter().zip(&edges) {
        let width = (edge.1 - edge.0) / piece.tokens.len() as f32;
        for (index, token) in piece.tokens.clone().enumerate() {
            let left = rect.left() + edge.0 + index as f32 * width;
            let cell =
                Rect::from_x_y_ranges(left..=left + width.max(1.0), rect.y_range()).shrink2(vec2(0.0, 1.0));
            let left_out = token == 0 && scene.state.leave_out_bos;
            let position = shades.positions.get(token).copied().unwrap_or(f32::NAN);
            if position.is_nan() || left_out {
                ui.painter().rect_filled(cell, 2.0, design::faded(palette.undefined[1], 0.4));
            } else {
                ui.painter().rect_filled(cell, 2.0, shade(ui, position));
            }
            if selected.contains(&token) {
                if selected.len() == 1 {
                    ui.painter().rect_stroke(
                        cell,
                        2.0,
                        Stroke::new(1.5, palette.cutoff),
                        StrokeKind::Outside,
                    );
                }
                span::mark(ui, cell);
            }
            if pointer.is_some_and(|pointer| cell.contains(pointer)) {
                under_pointer = Some(token);
            }
            if origin.is_some_and(|origin| cell.contains(origin)) {
                pressed = Some(token);
            }
            if response.hover_pos().is_some_and(|pointer| cell.contains(pointer)) {
                hovered = Some(token);
                ui.painter().rect_stroke(cell, 2.0, Stroke::new(1.0, palette.selection), StrokeKind::Outside);
            }
        }
    }
    if response.drag_started() {
        *dragged_from = pressed;
    }
    // The line where the drag began captures the pointer, so every line checks its position.
    if let (Some(from), Some(to)) = (*dragged_from, under_pointer) {
        scene.state.selection.select_tokens(from.min(to)..from.max(to) + 1);
    }
    ui.painter().galley(rect.min + vec2(0.0, 2.0), galley, palette.text);
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, &text));
    if let Some(token) = hovered {
        let label =
            scene.prompt().prompt_token_text.get(token).map_or(String::new(), |token| token_label(token));
        let value = exact(shades.values.get(token).copied().unwrap_or(f32::NAN));
        let text = format!("position {token}: “{label}”\n{}: {value}", scene.state.token_figure.name());
        *scene.readout = Some(text.replace('\n', "  ·  "));
        if response.clicked() {
            let selection = &mut scene.state.selection;
            if ui.input(|input| input.modifiers.shift) {
                selection.extend_to(token);
            } else {
                selection.pick_token(token);
            }
        }
        response.clone().on_hover_text_at_pointer(text);
    }
}

fn key(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// One row per token.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let pyramid = scene.maps?.tokens(scene.state.token_figure);
    let values = values(scene, pyramid);
    let tokens = &scene.prompt().prompt_token_text;
    Some(Figures {
        columns: vec![
            Column::new("position", ""),
            Column::new("token", ""),
            Column::new(scene.state.token_figure.name(), "share"),
        ],
        rows: values.len(),
        row: Box::new(move |row| {
            let token = tokens.get(row).map_or(String::new(), |token| token_label(token));
            vec![row.to_string(), token, cell(f64::from(values[row]))]
        }),
    })
}
