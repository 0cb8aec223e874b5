//! One pattern: its axes with tokens, zooming and panning, the pair under the pointer, and what is selected.

use super::image::Shown;
use super::{Extent, Subject, named, token_at, valued, windows};
use crate::data::Sight;
use crate::design::{self, Palette, size, space};
use crate::state::{PatternRows, Selection, Window};
use crate::views::Scene;
use crate::widgets::{axis, token_label};
use eframe::egui::{
    Align2, EventFilter, Key, Painter, Rect, Response, Sense, Shape, Stroke, StrokeKind, Ui, WidgetInfo,
    accesskit::Role, epaint::TextShape, pos2, vec2,
};

/// Least height of a row, and width of a column, with its token.
const LABELLED: [f32; 2] = [13.0, 13.0];
/// Room for tokens beside rows and below columns, and below columns that are wide enough for them.
const TOKENS: [f32; 2] = [92.0, 74.0];
const ACROSS: [f32; 2] = [84.0, 16.0];
/// Room for the name of the axis of queries, whose numbers have up to six digits.
const BESIDE: f32 = 22.0;
/// Characters of a token that are shown.
const SHORT: usize = 11;

/// Where the parts of the plot are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The cells.
    pub(super) grid: Rect,
    /// Room for tokens beside rows and below columns; 0 where there are none.
    tokens: [f32; 2],
}

impl Place {
    pub(super) fn new(area: Rect, scene: &Scene<'_>) -> Self {
        let [queries, keys] = windows(scene);
        let plain = Rect::from_min_max(
            pos2(area.left() + size::AXIS + BESIDE, area.top() + 2.0),
            pos2(area.right() - space::MEDIUM, (area.bottom() - 38.0).max(area.top() + 60.0)),
        );
        let beside = match plain.height() / queries.width() as f32 >= LABELLED[0] {
            true => TOKENS[0],
            false => 0.0,
        };
        let column = (plain.width() - beside) / keys.width() as f32;
        let below = match column {
            _ if column < LABELLED[1] => 0.0,
            _ if column < ACROSS[0] => TOKENS[1],
            _ => ACROSS[1],
        };
        let mut grid = plain;
        grid.min.x += beside;
        grid.max.y = (grid.max.y - below).max(grid.top() + 60.0);
        Self { grid, tokens: [beside, below] }
    }
}

/// Draws the plot and takes what is done to it.
pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>, place: &Place, sight: &Sight, shown: &Shown) {
    let grid = place.grid;
    let response = interact(ui, scene, grid);
    response.widget_info(|| {
        let name = Subject::of(scene).name();
        let (rows, keys) = (sight.queries.len(), sight.keys.len());
        WidgetInfo::labeled(Role::Canvas, true, format!("Pattern: {name}, {rows} queries by {keys} keys"))
    });
    let painter = ui.painter().clone();
    let palette = design::palette(ui);
    shown.paint(ui, &painter, grid, scene);
    rows(&painter, palette, place, scene);
    columns(&painter, palette, place, scene);
    boundary(&painter, palette, grid, scene);
    painter.rect_stroke(grid, 0.0, Stroke::new(1.0, palette.line), StrokeKind::Outside);
    selected(&painter, palette, grid, scene);
    point(ui, scene, &response, grid, shown);
}

/// Zooms by wheel, pans by dragging and keys, shows all on a double click.
fn interact(ui: &mut Ui, scene: &mut Scene<'_>, grid: Rect) -> Response {
    let response = ui.interact(grid, ui.scope_id().with("pattern"), Sense::click_and_drag());
    if scene.is_picture {
        return response;
    }
    let extent = Extent::of(scene.prompt());
    let whole = [extent.queries(scene.state.pattern.rows), extent.keys()];
    let now = windows(scene);
    let mut windows = now;
    let per_point = |windows: &[Window; 2]| {
        [windows[0].width() / f64::from(grid.height()), windows[1].width() / f64::from(grid.width())]
    };
    let pan = |windows: &mut [Window; 2], by: [f64; 2]| {
        for ((window, by), whole) in windows.iter_mut().zip(by).zip(whole) {
            let (width, start) = (window.width(), window.start + by);
            let start = start.clamp(whole.start, (whole.end - width).max(whole.start));
            *window = Window { start, end: (start + width).min(whole.end) };
        }
    };
    let zoom = |windows: &mut [Window; 2], factor: f64, at: [f64; 2], axes: [bool; 2]| {
        for axis in (0..2).filter(|axis| axes[*axis]) {
            let (offset, all) = (whole[axis].start, whole[axis].width() as usize);
            let window = windows[axis];
            let moved = Window { start: window.start - offset, end: window.end - offset };
            let Window { start, end } = moved.zoomed_to(factor, at[axis] - offset, all, 1.0);
            windows[axis] = Window { start: start + offset, end: end + offset };
        }
    };
    if response.dragged() {
        let (delta, per_point) = (response.drag_delta(), per_point(&windows));
        pan(&mut windows, [-f64::from(delta.y) * per_point[0], -f64::from(delta.x) * per_point[1]]);
    }
    if response.double_clicked() {
        windows = whole;
    }
    if response.clicked() {
        response.request_focus();
    }
    if let Some(pointer) = response.hover_pos() {
        let (scroll, pinch, shift, alt) = ui.input(|input| {
            let modifiers = input.modifiers;
            (input.smooth_scroll_delta(), input.zoom_delta(), modifiers.shift, modifiers.alt)
        });
        let per_point = per_point(&windows);
        let at = [
            windows[0].start + f64::from(pointer.y - grid.top()) * per_point[0],
            windows[1].start + f64::from(pointer.x - grid.left()) * per_point[1],
        ];
        // With Shift the wheel, which then scrolls sideways, zooms keys alone, with Alt queries alone.
        let turned = if shift { scroll.x + scroll.y } else { scroll.y };
        let factor = f64::from(pinch) * f64::from(turned / 200.0).exp();
        if factor != 1.0 {
            zoom(&mut windows, factor, at, [!shift, !alt]);
        }
        if !shift {
            pan(&mut windows, [0.0, -f64::from(scroll.x) * per_point[1]]);
        }
    }
    if response.has_focus() {
        // Otherwise these keys would move the focus.
        let arrows = EventFilter { horizontal_arrows: true, vertical_arrows: true, ..EventFilter::default() };
        ui.memory_mut(|memory| memory.set_focus_lock_filter(response.id, arrows));
        let pressed = |key| ui.input(|input| input.key_pressed(key));
        for (key, by) in [
            (Key::ArrowLeft, [0.0, -0.25]),
            (Key::ArrowRight, [0.0, 0.25]),
            (Key::ArrowUp, [-0.25, 0.0]),
            (Key::ArrowDown, [0.25, 0.0]),
        ] {
            if pressed(key) {
                let by = [by[0] * windows[0].width(), by[1] * windows[1].width()];
                pan(&mut windows, by);
            }
        }
        for (key, factor) in [(Key::Plus, 1.5), (Key::Equals, 1.5), (Key::Minus, 1.0 / 1.5)] {
            if pressed(key) {
                let middle = windows.map(|window| (window.start + window.end) / 2.0);
                zoom(&mut windows, factor, middle, [true; 2]);
            }
        }
        if pressed(Key::Home) {
            windows = whole;
        }
    }
    if windows != now {
        let state = &mut scene.state.pattern;
        state.queries = (windows[0] != whole[0]).then_some(windows[0]);
        state.keys = (windows[1] != whole[1]).then_some(windows[1]);
    }
    response
}

/// Shares of an axis at which a position begins and ends.
fn share(window: Window, position: f64) -> f32 {
    ((position - window.start) / window.width()) as f32
}

fn shortened(token: &str) -> String {
    let label = token_label(token);
    let mut short: String = label.chars().take(SHORT).collect();
    if short.len() < label.len() {
        short.push('…');
    }
    short
}

/// Positions of queries, with their tokens where there is room.
fn rows(painter: &Painter, palette: &Palette, place: &Place, scene: &Scene<'_>) {
    let ([window, _], grid) = (windows(scene), place.grid);
    let along = f64::from(grid.height()) / window.width();
    let (first, last) = (window.start.floor().max(0.0) as usize, window.end.ceil() as usize);
    let step = axis::step(along, 15.0);
    let y = |position: usize| grid.top() + share(window, position as f64 + 0.5) * grid.height();
    for position in (first.next_multiple_of(step)..last).step_by(step) {
        let y = y(position);
        if grid.y_range().contains(y) {
            painter.line_segment(
                [pos2(grid.left() - 4.0, y), pos2(grid.left() - 1.0, y)],
                Stroke::new(1.0, palette.line),
            );
            let at = pos2(grid.left() - 6.0, y);
            painter.text(at, Align2::RIGHT_CENTER, position, design::figures(), palette.weak_text);
        }
    }
    if place.tokens[0] > 0.0 {
        for position in first..last {
            let Some(token) = token_at(scene.prompt(), position) else { continue };
            let y = y(position);
            if grid.y_range().contains(y) {
                let at = pos2(grid.left() - size::AXIS, y);
                painter.text(at, Align2::RIGHT_CENTER, shortened(token), design::caption(), palette.text);
            }
        }
    }
    let beside = grid.left() - place.tokens[0] - size::AXIS - BESIDE / 2.0 - 2.0;
    axis::vertical_name(painter, palette, pos2(beside, grid.center().y), "query");
}

/// Positions of keys, with their tokens where there is room.
fn columns(painter: &Painter, palette: &Palette, place: &Place, scene: &Scene<'_>) {
    let ([_, window], grid) = (windows(scene), place.grid);
    let along = f64::from(grid.width()) / window.width();
    let (first, last) = (window.start.floor().max(0.0) as usize, window.end.ceil() as usize);
    let step = axis::step(along, 56.0);
    let ticks = (first.next_multiple_of(step)..last).step_by(step);
    let ticks = ticks.map(|position| (share(window, position as f64 + 0.5), position.to_string()));
    axis::foot(painter, palette, grid, ticks.filter(|(share, _)| (0.0..=1.0).contains(share)));
    let below = 20.0 + place.tokens[1];
    if place.tokens[1] > 0.0 {
        for position in first..last {
            let Some(token) = token_at(scene.prompt(), position) else { continue };
            let x = grid.left() + share(window, position as f64 + 0.5) * grid.width();
            if !grid.x_range().contains(x) {
                continue;
            }
            let galley = painter.layout_no_wrap(shortened(token), design::caption(), palette.text);
            let at = pos2(x, grid.bottom() + 20.0);
            if galley.size().x + 4.0 <= along as f32 {
                painter.galley(at - vec2(galley.size().x / 2.0, 0.0), galley, palette.text);
            } else {
                let corner = at + vec2(galley.size().y / 2.0, 0.0);
                let turned = TextShape::new(corner, galley, palette.text);
                painter.add(Shape::Text(turned.with_angle(std::f32::consts::FRAC_PI_2)));
            }
        }
    }
    let at = pos2(grid.center().x, grid.bottom() + below);
    painter.text(at, Align2::CENTER_TOP, "key (position)", design::caption(), palette.weak_text);
}

/// Lines where the generated text begins, as query and as key.
fn boundary(painter: &Painter, palette: &Palette, grid: Rect, scene: &Scene<'_>) {
    let ([queries, keys], boundary) = (windows(scene), Extent::of(scene.prompt()).boundary as f64);
    let pen = Stroke::new(1.0, palette.weak_text);
    let y = share(queries, boundary);
    if y > 0.0 && y < 1.0 {
        let y = grid.top() + y * grid.height();
        painter.add(Shape::dashed_line(&[pos2(grid.left(), y), pos2(grid.right(), y)], pen, 4.0, 4.0));
    }
    let x = share(keys, boundary);
    if x > 0.0 && x < 1.0 {
        let x = grid.left() + x * grid.width();
        painter.add(Shape::dashed_line(&[pos2(x, grid.top()), pos2(x, grid.bottom())], pen, 4.0, 4.0));
    }
}

/// Selected queries: decode steps, or one of the prompt.
pub(super) fn selected_queries(scene: &Scene<'_>) -> Vec<usize> {
    let boundary = Extent::of(scene.prompt()).boundary;
    let steps = scene.state.selection.steps.iter().map(|step| boundary + step);
    steps.chain(scene.state.pattern.query).collect()
}

/// Frames around what is selected.
fn selected(painter: &Painter, palette: &Palette, grid: Rect, scene: &Scene<'_>) {
    let [queries, keys] = windows(scene);
    let outline = |rect: Rect| {
        let rect = rect.intersect(grid);
        if rect.is_positive() {
            painter.rect_stroke(rect, 0.0, Stroke::new(3.0, palette.halo), StrokeKind::Outside);
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, palette.selection), StrokeKind::Outside);
        }
    };
    // The frame of a position thinner than a pixel must be visible.
    let around = |window: Window, first: usize, end: usize, start: f32, size: f32| {
        let (from, to) = (share(window, first as f64) * size, share(window, end as f64) * size);
        let (middle, half) = ((from + to) / 2.0, ((to - from) / 2.0).max(1.5));
        start + middle - half..=start + middle + half
    };
    for query in selected_queries(scene) {
        let y = around(queries, query, query + 1, grid.top(), grid.height());
        outline(Rect::from_x_y_ranges(grid.x_range(), y));
    }
    if let Some(tokens) = scene.state.selection.tokens() {
        let x = around(keys, tokens.start, tokens.end, grid.left(), grid.width());
        outline(Rect::from_x_y_ranges(x, grid.y_range()));
    }
}

/// The pair under the pointer: told in the status line and in a tooltip, selected by a click.
fn point(ui: &Ui, scene: &mut Scene<'_>, response: &Response, grid: Rect, shown: &Shown) {
    let Some(pointer) = response.hover_pos() else { return };
    let ([queries, keys], extent) = (windows(scene), Extent::of(scene.prompt()));
    let at = |window: Window, share: f32| {
        let position = window.start + f64::from(share) * window.width();
        (position.max(0.0) as usize).min(extent.all - 1)
    };
    let query = at(queries, (pointer.y - grid.top()) / grid.height());
    let key = at(keys, (pointer.x - grid.left()) / grid.width());
    let (cells, prompt) = (&shown.cells, scene.prompt());
    let within = |position: usize, axis: usize| {
        let size = cells.cell[axis];
        (cells.first[axis] + (position - cells.first[axis].min(position)) / size * size, size)
    };
    let ((first_query, tall), (first_key, wide)) = (within(query, 0), within(key, 1));
    let text = format!(
        "{}\n{}\n{}",
        named(prompt, "query", first_query, tall, extent.all),
        named(prompt, "key", first_key, wide, extent.all),
        valued(scene, cells.at(query, key)),
    );
    *scene.readout = Some(text.replace('\n', "  ·  "));
    response.clone().on_hover_text_at_pointer(text);
    if response.clicked() {
        let extend = ui.input(|input| input.modifiers.shift);
        pick(scene, query, key, extent, extend);
    }
}

/// Selects a query and a key, where other views have them too.
fn pick(scene: &mut Scene<'_>, query: usize, key: usize, extent: Extent, extend: bool) {
    let subject = Subject::of(scene);
    let prompt_len = scene.prompt().p;
    let selection = &mut scene.state.selection;
    if !selection.layers.contains(&subject.layer) {
        selection.layers = [subject.layer].into();
    }
    match query.checked_sub(extent.boundary) {
        Some(step) => {
            scene.state.pattern.query = None;
            Selection::pick(&mut selection.steps, step, extend);
        }
        None => {
            selection.steps.clear();
            let query = Some(query);
            scene.state.pattern.query = if scene.state.pattern.query == query { None } else { query };
        }
    }
    if key < prompt_len {
        match extend {
            true => selection.extend_to(key),
            false => selection.select_tokens(key..key + 1),
        }
    }
    // What is selected is in sight in the rows that are shown.
    if query < extent.boundary {
        scene.state.pattern.rows = PatternRows::Text;
    }
}
