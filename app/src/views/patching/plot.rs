//! The map of patches, with the cell under the pointer, what is selected, and the strongest patches beside it.

use super::super::Scene;
use super::super::map::{LABELLED_COLUMN, OVERVIEW, interact, overview_strip, token_below};
use super::describe;
use crate::data::{DrawnPatches, ScaleKind};
use crate::design::{self, ColourMap, Palette, size, space};
use crate::state::{Selection, ViewState, Window};
use crate::widgets::{
    CutoffLine, Direction, HeatMap, HeatMapImage, axis, colour_bar_with_stripes, token_label,
};
use eframe::egui::{
    Align2, Painter, Rect, Response, RichText, ScrollArea, Sense, Stroke, StrokeKind, Ui, UiBuilder,
    WidgetInfo, accesskit::Role, pos2,
};
use layerscope_diagnostics::patching::PatchSite;
use layerscope_report::PatchFigure;

/// Width of the list of strongest patches, and the least width of the view that has room for it.
const RANKING: [f32; 2] = [236.0, 700.0];
/// Room below the map for tokens of both prompts, and where there are none.
const FOOT: [f32; 2] = [118.0, 38.0];
/// Characters of a token, or of both, that are shown.
const SHORT: usize = 12;

/// The columns in sight.
pub(super) fn window(state: &ViewState, figure: &PatchFigure) -> Window {
    let (columns, span) = (figure.values.columns(), figure.span());
    let patched = Window { start: span.start, end: span.end };
    state.patching.window.unwrap_or(patched).within(columns)
}

pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>, drawn: &DrawnPatches) {
    let figure = &*drawn.figure;
    let (layers, columns) = (figure.values.rows(), figure.values.columns());
    let is_head = drawn.map.site == PatchSite::Head;
    let heat = HeatMap {
        values: &figure.values,
        scale: ScaleKind::Linear,
        colours: ColourMap::RedBlue,
        per_row: false,
        without_first: false,
        limit: Some(figure.scale.value_at(1.0)),
    };
    ui.label(RichText::new(capital(&figure.unit)).weak());
    ui.horizontal_top(|ui| {
        ui.add_space(size::AXIS);
        let width = (ui.available_width() - space::LARGE).min(420.0);
        colour_bar_with_stripes(ui, &figure.scale, heat.colours, &figure.unit, width, "not patched");
    });
    let area = ui.available_rect_before_wrap();
    ui.allocate_rect(area, Sense::hover());
    let ranking = if area.width() >= RANKING[1] { RANKING[0] } else { 0.0 };
    let window_before = window(scene.state, figure);
    let left = area.left() + size::AXIS;
    let right = area.right() - ranking - space::MEDIUM;
    let column_width = (right - left) / window_before.width() as f32;
    let foot = if !is_head && column_width >= LABELLED_COLUMN { FOOT[0] } else { FOOT[1] };
    let id = ui.scope_id().with("patches image");
    let mut shown = window_before;
    let mut top = area.top();
    if !is_head && columns > 8 {
        let strip = Rect::from_min_max(pos2(left, top), pos2(right, top + OVERVIEW));
        shown = overview_strip(ui, strip, &HeatMapImage::of(ui, id.with("overview")), &heat, shown);
        top = strip.bottom() + space::SMALL;
    }
    let rows = Rect::from_min_max(pos2(left, top), pos2(right, (area.bottom() - foot).max(top + 60.0)));
    let (response, shown) = interact(ui, rows, shown, columns);
    HeatMapImage::of(ui, id).paint(ui, ui.painter(), rows, &heat, shown);
    let (palette, painter) = (design::palette(ui), ui.painter().clone());
    axis::layers(&painter, palette, rows, layers);
    column_axis(&painter, palette, rows, shown, drawn);
    painter.rect_stroke(rows, 0.0, Stroke::new(1.0, palette.line), StrokeKind::Outside);
    let places = Places { rows, window: shown, layers };
    frames(&painter, palette, scene, places, is_head);
    point(ui, scene, &response, drawn, places);
    let line = CutoffLine { area: rows, direction: Direction::Down, layers };
    let mut cutoff = scene.state.cutoff;
    line.show(ui, "patching", &mut cutoff);
    line.handle(ui, cutoff);
    scene.state.cutoff = cutoff;
    if shown != window_before {
        scene.state.patching.window = (shown != Window::all(columns)).then_some(shown);
    }
    if ranking > 0.0 {
        let beside = Rect::from_min_max(pos2(right + space::LARGE, area.top()), area.max);
        ui.scope_builder(UiBuilder::new().max_rect(beside), |ui| rank(ui, scene, drawn));
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// Where cells are.
#[derive(Clone, Copy)]
struct Places {
    rows: Rect,
    window: Window,
    layers: usize,
}

impl Places {
    fn x(self, column: f64) -> f32 {
        let Self { rows, window, .. } = self;
        rows.left() + ((column - window.start) / window.width()) as f32 * rows.width()
    }

    fn y(self, layer: usize) -> f32 {
        self.rows.top() + layer as f32 * self.rows.height() / self.layers.max(1) as f32
    }

    fn of(self, layers: std::ops::Range<usize>, columns: Option<usize>) -> Rect {
        let across = columns.map_or([self.rows.left(), self.rows.right()], |column| {
            let [left, right] = [column, column + 1].map(|column| self.x(column as f64));
            // The frame of a column thinner than a pixel must be visible.
            let (middle, half) = ((left + right) / 2.0, ((right - left) / 2.0).max(1.5));
            [middle - half, middle + half]
        });
        Rect::from_min_max(pos2(across[0], self.y(layers.start)), pos2(across[1], self.y(layers.end)))
    }
}

/// Numbers of columns, and tokens of both prompts where there is room.
fn column_axis(painter: &Painter, palette: &Palette, rows: Rect, window: Window, drawn: &DrawnPatches) {
    let figure = &*drawn.figure;
    let (first, last) = (window.start.floor().max(0.0) as usize, window.end.ceil() as usize);
    let share = |column: f64| ((column - window.start) / window.width()) as f32;
    let width = rows.width() / window.width() as f32;
    let step = axis::step(f64::from(width), if drawn.map.site == PatchSite::Head { 26.0 } else { 46.0 });
    let ticks = (first.next_multiple_of(step)..last).step_by(step);
    axis::foot(painter, palette, rows, ticks.map(|column| (share(column as f64 + 0.5), column.to_string())));
    let has_tokens = !figure.texts.is_empty() && width >= LABELLED_COLUMN;
    if has_tokens {
        for (column, token) in figure.texts.iter().enumerate().take(last).skip(first) {
            let x = rows.left() + share(column as f64 + 0.5) * rows.width();
            if rows.x_range().contains(x) {
                token_below(painter, palette, pos2(x, rows.bottom() + 20.0), token.trim(), (width, SHORT));
            }
        }
    }
    let (name, below) = match drawn.map.site {
        PatchSite::Head => ("query head", 20.0),
        _ if has_tokens => ("position, with its token: clean, or clean|corrupted", 100.0),
        _ => ("position", 20.0),
    };
    let at = pos2(rows.center().x, rows.bottom() + below);
    painter.text(at, Align2::CENTER_TOP, name, design::caption(), palette.weak_text);
}

/// Frames around the selected layers, and the selected token or heads.
fn frames(painter: &Painter, palette: &Palette, scene: &Scene<'_>, places: Places, is_head: bool) {
    let outline = |rect: Rect| {
        let rect = rect.intersect(places.rows);
        if rect.is_positive() {
            painter.rect_stroke(rect, 0.0, Stroke::new(3.0, palette.halo), StrokeKind::Outside);
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, palette.selection), StrokeKind::Outside);
        }
    };
    let selection = &scene.state.selection;
    for &layer in selection.layers.iter().filter(|layer| **layer < places.layers) {
        outline(places.of(layer..layer + 1, None));
    }
    if is_head {
        for &(layer, head) in selection.heads.iter().filter(|(layer, _)| *layer < places.layers) {
            outline(places.of(layer..layer + 1, Some(head)));
        }
    } else if let Some(token) = selection.token {
        outline(places.of(0..places.layers, Some(token)));
    }
}

/// The cell under the pointer: shown in the status line and in a tooltip, selected by a click.
fn point(ui: &Ui, scene: &mut Scene<'_>, response: &Response, drawn: &DrawnPatches, places: Places) {
    let Places { rows, window, layers } = places;
    response.widget_info(|| {
        let columns = drawn.figure.values.columns();
        let label = format!("Map of patches: {}, {layers} layers by {columns} columns", drawn.question);
        WidgetInfo::labeled(Role::Canvas, true, label)
    });
    let Some(pointer) = response.hover_pos() else { return };
    let column = window.start + f64::from((pointer.x - rows.left()) / rows.width()) * window.width();
    let layer = ((pointer.y - rows.top()) / rows.height() * layers as f32) as usize;
    let (column, layer) = (column.max(0.0) as usize, layer.min(layers.saturating_sub(1)));
    if column >= drawn.figure.values.columns() {
        return;
    }
    let text = describe(&drawn.map, layer, column);
    *scene.readout = Some(text.replace('\n', "  ·  "));
    if response.clicked() {
        let extend = ui.input(|input| input.modifiers.shift);
        select(scene, drawn, [layer, column], extend);
    }
    response.clone().on_hover_text_at_pointer(text);
}

/// Selects a cell for all views: its head, or its layer and its token.
fn select(scene: &mut Scene<'_>, drawn: &DrawnPatches, [layer, column]: [usize; 2], extend: bool) {
    let selection = &mut scene.state.selection;
    match drawn.map.site {
        PatchSite::Head => Selection::pick(&mut selection.heads, (layer, column), extend),
        _ => {
            Selection::pick(&mut selection.layers, layer, extend);
            selection.select_tokens(column..column + 1);
        }
    }
}

/// The strongest patches.
fn rank(ui: &mut Ui, scene: &mut Scene<'_>, drawn: &DrawnPatches) {
    ui.strong("Strongest patches").on_hover_text("Farthest from the run that is patched");
    ui.weak(match drawn.map.site {
        PatchSite::Head => "layer, head, effect",
        _ => "layer, position, effect, clean token",
    });
    ScrollArea::vertical().show(ui, |ui| {
        for patch in &drawn.strongest {
            let column = patch.position.or(patch.head).unwrap_or_default();
            let token: String = patch
                .clean_token
                .iter()
                .flat_map(|token| token_label(token).chars().take(9).collect::<Vec<_>>())
                .collect();
            let letter = if patch.head.is_some() { "H" } else { "" };
            let text =
                format!("L{:<3} {letter}{column:<4} {:>6.3} {}", patch.layer, patch.effect, token.trim());
            let selection = &scene.state.selection;
            let chosen = match patch.head {
                Some(head) => selection.heads.contains(&(patch.layer, head)),
                None => selection.layers.contains(&patch.layer) && selection.token == patch.position,
            };
            let label = ui.selectable_label(chosen, RichText::new(text).monospace());
            let label = label.on_hover_text(describe(&drawn.map, patch.layer, column));
            if label.clicked() {
                let extend = ui.input(|input| input.modifiers.shift);
                select(scene, drawn, [patch.layer, column], extend);
            }
        }
    });
}
