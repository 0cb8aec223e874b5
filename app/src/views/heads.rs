//! Layers × heads: which heads read the prompt. A click isolates a head, a shift-click adds or removes it.

use super::map::choose;
use super::{Scene, picture};
use crate::data::{HeadFigure, Pyramid, Scale, ScaleKind, exact};
use crate::design::{self, ColourMap, Palette, size, space};
use crate::state::Selection;
use crate::widgets::{Column, CutoffLine, Direction, Figures, axis, cell, colour_bar};
use eframe::egui::{
    Align2, Label, Mesh, Rect, RichText, ScrollArea, Sense, Shape, Stroke, StrokeKind, Ui, WidgetInfo,
    accesskit::Role, pos2, vec2,
};
use layerscope_diagnostics::summary::largest;
use layerscope_figures::{ColumnRange, Map, Outline, Theme};
use ndarray::Array2;

/// Heads in the ranking.
const RANKED: usize = 12;
/// Width of the ranking.
const RANKING: f32 = 170.0;

/// Width of a head in a picture, points.
const COLUMN: f64 = 26.0;

/// Draws the grid.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    scene.state.head_figure = shown(scene);
    let figure = scene.state.head_figure;
    if !scene.is_picture {
        controls(ui, scene);
    }
    grid(ui, scene, figure);
}

/// The displayed figure: the chosen one, if the prompt has it.
fn shown(scene: &Scene<'_>) -> HeadFigure {
    let chosen = scene.state.head_figure;
    if HeadFigure::of_prompt(scene.prompt()).contains(&chosen) { chosen } else { HeadFigure::default() }
}

fn pyramid(values: &Array2<f64>) -> Pyramid {
    let (layers, heads) = values.dim();
    let flat: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    Pyramid::from_rows(&flat, layers, heads)
}

fn controls(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.horizontal_wrapped(|ui| {
        let figures = HeadFigure::of_prompt(scene.prompt());
        choose(ui, "Figure", &mut scene.state.head_figure, figures, HeadFigure::name);
        choose(ui, "Scale", &mut scene.state.share_scale, ScaleKind::ALL, ScaleKind::name);
        choose(ui, "Colours", &mut scene.state.colour_map, ColourMap::ALL, ColourMap::name);
        ui.checkbox(&mut scene.state.per_row, "Per layer")
            .on_hover_text("Give each layer a scale of its own");
        let chosen = scene.state.selection.heads.len();
        if chosen > 0 && ui.button(format!("Clear {chosen} selected")).clicked() {
            scene.state.selection.heads.clear();
        }
        ui.weak("click isolates, shift-click toggles");
    });
}

fn grid(ui: &mut Ui, scene: &mut Scene<'_>, figure: HeadFigure) {
    let Some(values) = figure.values(scene.prompt()) else { return };
    let (layers, heads) = values.dim();
    let pyramid = pyramid(&values);
    let scale = Scale::fit(scene.state.share_scale, &pyramid, scene.state.per_row, false);
    ui.horizontal_top(|ui| {
        ui.add_space(size::AXIS);
        let name = format!("{}, {}, mean over decode steps of this prompt", figure.name(), figure.unit());
        let width = (ui.available_width() - space::LARGE).min(420.0);
        colour_bar(ui, &scale, scene.state.colour_map, &name, width);
        let unit = RichText::new(format!("{}, {}", figure.name(), figure.unit())).weak();
        ui.add(Label::new(unit).truncate());
    });
    let area = ui.available_rect_before_wrap();
    ui.allocate_rect(area, Sense::hover());
    let ranking = if area.width() > 560.0 { RANKING } else { 0.0 };
    let grid = Rect::from_min_max(
        pos2(area.left() + size::AXIS, area.top() + space::SMALL),
        pos2(area.right() - ranking - space::LARGE, area.bottom() - 38.0),
    );
    let response = ui.interact(grid, ui.scope_id().with("heads"), Sense::click());
    response.widget_info(|| {
        let label = format!("Head grid: {}, {layers} layers by {heads} heads", figure.name());
        WidgetInfo::labeled(Role::Canvas, true, label)
    });
    let palette = design::palette(ui);
    let cell_of = |layer: usize, head: usize| {
        let (width, height) = (grid.width() / heads as f32, grid.height() / layers as f32);
        let corner = grid.min + vec2(head as f32 * width, layer as f32 * height);
        let gap = if width > 6.0 && height > 6.0 { 1.0 } else { 0.0 };
        Rect::from_min_size(corner, vec2(width - gap, height - gap))
    };
    let painter = ui.painter();
    let mut mesh = Mesh::default();
    let colours = scene.state.colour_map.colours();
    for ((layer, head), value) in values.indexed_iter() {
        let position = scale.position(layer, *value as f32);
        let colour = if position.is_nan() {
            palette.undefined[head % 2]
        } else {
            design::colour32(colours[(position * 255.0) as usize])
        };
        mesh.add_colored_rect(cell_of(layer, head), colour);
    }
    painter.add(Shape::mesh(mesh));
    if let Some(kept) = scene.kept {
        for layer in 0..layers {
            for head in 0..heads {
                let share = kept.get([layer, kv_head_of(scene, head)]).copied().unwrap_or(1.0);
                painter.rect_filled(cell_of(layer, head), 0.0, design::veil(palette, 1.0 - share));
            }
        }
    }
    axis::layers(painter, palette, grid, layers);
    let step = axis::step(f64::from(grid.width()) / heads as f64, 26.0);
    let ticks = (0..heads).step_by(step).map(|head| ((head as f32 + 0.5) / heads as f32, head.to_string()));
    axis::foot(painter, palette, grid, ticks);
    let below = pos2(grid.center().x, grid.bottom() + 20.0);
    painter.text(below, Align2::CENTER_TOP, "query head", design::caption(), palette.weak_text);
    for (layer, head) in scene.state.selection.heads.iter().filter(|(l, h)| *l < layers && *h < heads) {
        frame(ui, palette, cell_of(*layer, *head));
    }
    for &layer in scene.state.selection.layers.iter().filter(|layer| **layer < layers) {
        frame(ui, palette, cell_of(layer, 0).union(cell_of(layer, heads - 1)));
    }
    if let Some(pointer) = response.hover_pos() {
        let at = (pointer - grid.min) / grid.size() * vec2(heads as f32, layers as f32);
        let (layer, head) = ((at.y as usize).min(layers - 1), (at.x as usize).min(heads - 1));
        let text = describe(scene, &values, layer, head);
        *scene.readout = Some(text.replace('\n', "  ·  "));
        let extend = ui.input(|input| input.modifiers.shift);
        if response.clicked() {
            Selection::pick(&mut scene.state.selection.heads, (layer, head), extend);
        }
        response.on_hover_text_at_pointer(text);
    }
    let line = CutoffLine { area: grid, direction: Direction::Down, layers };
    let mut cutoff = scene.state.cutoff;
    line.show(ui, "heads", &mut cutoff);
    line.handle(ui, cutoff);
    scene.state.cutoff = cutoff;
    if ranking > 0.0 {
        let place = Rect::from_min_max(pos2(area.right() - ranking, grid.top()), area.max);
        ui.scope_builder(eframe::egui::UiBuilder::new().max_rect(place), |ui| rank(ui, scene, &values));
    }
}

fn frame(ui: &Ui, palette: &Palette, cell: Rect) {
    ui.painter().rect_stroke(cell, 1.0, Stroke::new(3.0, palette.halo), StrokeKind::Outside);
    ui.painter().rect_stroke(cell, 1.0, Stroke::new(1.5, palette.selection), StrokeKind::Outside);
}

fn describe(scene: &Scene<'_>, values: &Array2<f64>, layer: usize, head: usize) -> String {
    let figure = scene.state.head_figure;
    let value = values.get([layer, head]).copied().unwrap_or(f64::NAN);
    let kv_head = kv_head_of(scene, head);
    let named = match figure {
        HeadFigure::Attention(_) if scene.kept.is_none() => String::new(),
        _ => format!(" (KV head {kv_head})"),
    };
    let kept = scene.kept.and_then(|kept| kept.get([layer, kv_head])).map_or(String::new(), |share| {
        format!("\nkeeps {:.0} % of its prompt tokens under {}", 100.0 * share, scene.state.policy)
    });
    format!(
        "layer {layer}, head {head}{named}\n{}: {} {}{kept}",
        figure.name(),
        exact(value as f32),
        figure.unit()
    )
}

/// The KV head that a query head reads.
fn kv_head_of(scene: &Scene<'_>, head: usize) -> usize {
    let model = &scene.run.manifest.model;
    head / (model.heads / model.kv_heads.max(1)).max(1)
}

/// The heads with the largest values.
fn rank(ui: &mut Ui, scene: &mut Scene<'_>, values: &Array2<f64>) {
    ui.label(RichText::new(format!("Largest {}", scene.state.head_figure.name().to_lowercase())).strong());
    ScrollArea::vertical().show(ui, |ui| {
        for index in largest(values.iter().copied(), RANKED) {
            let (layer, head) = (index / values.ncols(), index % values.ncols());
            let value = values[[layer, head]];
            let chosen = scene.state.selection.heads.contains(&(layer, head));
            let text = RichText::new(format!("L{layer:<3} H{head:<3} {value:.3}")).monospace();
            if ui
                .selectable_label(chosen, text)
                .on_hover_text(format!("layer {layer}, head {head}"))
                .clicked()
            {
                let extend = ui.input(|input| input.modifiers.shift);
                Selection::pick(&mut scene.state.selection.heads, (layer, head), extend);
            }
        }
    });
}

/// The grid for export, with frames around the selection; `None` if the run lacks the figure.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Option<String> {
    let figure = shown(scene);
    let pyramid = pyramid(&figure.values(scene.prompt())?);
    let scale = Scale::fit(scene.state.share_scale, &pyramid, scene.state.per_row, false);
    let map = Map {
        title: format!("{} of each head", figure.name()),
        unit: format!("{}, mean over decode steps", figure.unit()),
        description: format!("{}: {}, by layer and query head", figure.name(), figure.unit()),
        values: &pyramid,
        scale: &scale,
        colours: scene.state.colour_map,
        span: ColumnRange { start: 0.0, end: pyramid.columns() as f64 },
        without_first: false,
        column_name: "query head".into(),
        column_texts: &[],
        cutoff: Some(scene.state.cutoff),
    };
    let selection = &scene.state.selection;
    let layers = selection.layers.iter().map(|layer| Outline::Row(*layer));
    let heads = selection.heads.iter().map(|(layer, head)| Outline::Cell(*layer, *head));
    let outlines: Vec<Outline> = layers.chain(heads).collect();
    let mut caption = scene.caption();
    if scene.state.per_row {
        caption.push_str("; each layer on its own scale");
    }
    Some(picture::map(&map, &outlines, COLUMN, &caption, theme))
}

/// One row per layer and head.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Figures<'a> {
    let mut columns = vec![Column::new("layer", ""), Column::new("head", "")];
    let shown = HeadFigure::of_prompt(scene.prompt());
    columns.extend(shown.iter().map(|figure| Column::new(figure.name(), figure.unit())));
    let values: Vec<_> = shown.iter().filter_map(|figure| figure.values(scene.prompt())).collect();
    let heads = scene.run.heads();
    Figures {
        columns,
        rows: scene.run.layers() * heads,
        row: Box::new(move |row| {
            let at = [row / heads, row % heads];
            let value = |values: &Array2<f64>| values.get(at).copied().unwrap_or(f64::NAN);
            let figures = values.iter().map(|values| cell(value(values)));
            at.iter().map(usize::to_string).chain(figures).collect()
        }),
    }
}
