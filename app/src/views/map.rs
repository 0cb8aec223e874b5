//! The map: layers × prompt tokens, or × decode steps, with strips of other figures on the same layer axis.

use super::{Action, Scene, Sought};
use crate::data::{MapKey, PromptMaps, Pyramid, ScaleKind, StepFigure, Want, exact, short};
use crate::design::{self, Palette, size, space};
use crate::state::{Columns, Selection, ViewState, Window};
use crate::widgets::{
    Column, CutoffLine, Direction, Figures, HeatMap, HeatMapImage, axis, colour_bar, pixels_across,
    token_label,
};
use eframe::egui::{
    Align2, Color32, ComboBox, EventFilter, Key, Label, Painter, Pos2, Rect, Response, RichText, Sense,
    Shape, Stroke, StrokeKind, Ui, WidgetInfo, accesskit::Role, epaint::TextShape, pos2, vec2,
};
use layerscope_figures::ColumnRange;
use std::collections::BTreeSet;

mod picture;
mod strips;

pub use picture::picture;
pub(super) use strips::MASSES;

/// Height of the strip that shows the whole prompt.
pub(super) const OVERVIEW: f32 = 22.0;
/// Minimum width of a column with its token's text.
pub(super) const LABELLED_COLUMN: f32 = 12.0;

/// Characters of a token that are shown.
const SHORT: usize = 9;

/// Draws the map.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    if !scene.is_picture {
        controls(ui, scene);
    }
    let Some(maps) = scene.maps else {
        ui.centered_and_justified(|ui| {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("reading the prompt's maps …");
            });
        });
        return;
    };
    let state = &scene.state;
    let (values, name) = match state.columns {
        Columns::Tokens => (maps.tokens(state.token_figure), state.token_figure.description()),
        Columns::Steps => (of_steps(maps, state), state.step_figure.unit()),
    };
    let heat = HeatMap {
        values,
        scale: match state.columns {
            Columns::Tokens => state.scale,
            Columns::Steps => state.share_scale,
        },
        colours: state.colour_map,
        per_row: state.per_row,
        without_first: state.leave_out_bos && state.columns == Columns::Tokens,
        limit: None,
    };
    let window = scene.run.manifest.model.window;
    let windowed = state.columns == Columns::Tokens && window.is_some_and(|window| window < scene.prompt().p);
    let id = ui.scope_id().with("map image");
    let image = HeatMapImage::of(ui, id);
    ui.horizontal_top(|ui| {
        ui.add_space(size::AXIS);
        let name = match state.columns {
            Columns::Tokens => name.to_owned(),
            Columns::Steps => format!("{}, {name}", steps_name(maps, state)),
        };
        let width = (ui.available_width() - space::LARGE).min(420.0);
        colour_bar(ui, &image.scale(&heat), heat.colours, &name, width);
        let of = if heat.per_row { "each layer on its own scale, " } else { "" };
        let beyond = match windowed {
            true => "; striped: beyond the layer's window",
            false => "",
        };
        ui.add(Label::new(RichText::new(format!("{of}{name}{beyond}")).weak()).truncate());
    });
    let columns = values.columns();
    let window = match state.columns {
        Columns::Tokens => state.token_window,
        Columns::Steps => state.step_window,
    };
    let window = window.unwrap_or(Window::all(columns)).within(columns);

    let area = ui.available_rect_before_wrap();
    let strip_width = strips::width(area.width());
    let right = area.right() - strip_width;
    let column_width = (right - area.left() - size::AXIS) / window.width() as f32;
    let foot = if column_width >= LABELLED_COLUMN { 96.0 } else { 38.0 };
    let overview = Rect::from_min_max(
        pos2(area.left() + size::AXIS, area.top()),
        pos2(right - space::MEDIUM, area.top() + OVERVIEW),
    );
    let rows = Rect::from_min_max(
        pos2(overview.left(), overview.bottom() + space::SMALL),
        pos2(overview.right(), (area.bottom() - foot).max(overview.bottom() + 60.0)),
    );
    ui.allocate_rect(area, Sense::hover());
    let whole = HeatMapImage::of(ui, id.with("overview"));
    let window = overview_strip(ui, overview, &whole, &heat, window);
    let (response, window) = interact(ui, rows, window, columns);
    image.paint(ui, ui.painter(), rows, &heat, window);
    let palette = design::palette(ui);
    let painter = ui.painter().clone();
    axis::layers(&painter, palette, rows, values.rows());
    column_axis(&painter, palette, rows, window, column_width, scene);
    painter.rect_stroke(rows, 0.0, Stroke::new(1.0, palette.line), StrokeKind::Outside);
    select(ui, scene, &response, rows, window, values);
    selection(&painter, palette, scene, rows, window, values);

    let mut cutoff = scene.state.cutoff;
    let line = CutoffLine {
        area: Rect::from_min_max(rows.min, pos2(area.right(), rows.bottom())),
        direction: Direction::Down,
        layers: values.rows(),
    };
    strips::show(ui, scene, Rect::from_min_max(pos2(right, area.top()), area.max), rows);
    match scene.kept {
        _ if scene.state.columns != Columns::Tokens => {}
        None => CutoffLine { area: rows, ..line }.veil(ui, cutoff),
        Some(kept) => {
            for (layer, of_heads) in kept.outer_iter().enumerate() {
                let height = rows.height() / values.rows() as f32;
                let top = rows.top() + layer as f32 * height;
                let row = Rect::from_x_y_ranges(rows.x_range(), top..=top + height);
                let gone = 1.0 - of_heads.mean().unwrap_or(1.0);
                painter.rect_filled(row, 0.0, design::veil(palette, gone));
            }
        }
    }
    line.show(ui, "map", &mut cutoff);
    line.handle(ui, cutoff);
    scene.state.cutoff = cutoff;
    let shown = (window != Window::all(columns)).then_some(window);
    match scene.state.columns {
        Columns::Tokens => scene.state.token_window = shown,
        Columns::Steps => scene.state.step_window = shown,
    }
    scene.want(&Sought::Drawn(pixels_across(ui, rows)));
}

fn controls(ui: &mut Ui, scene: &mut Scene<'_>) {
    use crate::data::TokenFigure;
    let state = &mut *scene.state;
    ui.horizontal_wrapped(|ui| {
        ui.selectable_value(&mut state.columns, Columns::Tokens, "Prompt tokens");
        ui.selectable_value(&mut state.columns, Columns::Steps, "Decode steps");
        ui.separator();
        match state.columns {
            Columns::Tokens => {
                choose(ui, "Figure", &mut state.token_figure, TokenFigure::ALL, TokenFigure::name)
            }
            Columns::Steps => choose(ui, "Figure", &mut state.step_figure, StepFigure::ALL, StepFigure::name),
        }
        if let Some(maps) = scene.maps.filter(|_| state.columns == Columns::Steps) {
            choose_policy(ui, maps, state);
        }
        let scale = match state.columns {
            Columns::Tokens => &mut state.scale,
            Columns::Steps => &mut state.share_scale,
        };
        choose(ui, "Scale", scale, ScaleKind::ALL, ScaleKind::name);
        choose(ui, "Colours", &mut state.colour_map, design::ColourMap::ALL, design::ColourMap::name);
        ui.checkbox(&mut state.per_row, "Per layer").on_hover_text("Give each layer a scale of its own");
        if state.columns == Columns::Tokens {
            ui.checkbox(&mut state.leave_out_bos, "Leave out BoS").on_hover_text(
                "Leave position 0 out of the colours: it takes most of the attention at most layers",
            );
        }
    });
}

/// The full model, or a policy under which the prompt was recorded.
fn choose_policy(ui: &mut Ui, maps: &PromptMaps, state: &mut ViewState) {
    if maps.policies().next().is_none() {
        return;
    }
    let shown = policy_shown(maps, state).unwrap_or("full").to_owned();
    let response = ComboBox::from_id_salt("Under").selected_text(&shown).show_ui(ui, |ui| {
        ui.selectable_value(&mut state.under, None, "full");
        for policy in maps.policies() {
            ui.selectable_value(&mut state.under, Some(policy.to_owned()), policy);
        }
    });
    response.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, format!("Under: {shown}")));
    response.response.on_hover_text("The policy under which the text was read");
}

/// The policy under which steps are shown.
fn policy_shown<'a>(maps: &'a PromptMaps, state: &ViewState) -> Option<&'a str> {
    let has_figure = state.step_figure != StepFigure::LensKl;
    maps.policies().find(|policy| has_figure && Some(*policy) == state.under.as_deref())
}

/// What is shown of steps.
fn of_steps<'a>(maps: &'a PromptMaps, state: &ViewState) -> &'a Pyramid {
    maps.map(&key_of_steps(maps, state)).unwrap_or_else(|| maps.steps(state.step_figure))
}

fn key_of_steps(maps: &PromptMaps, state: &ViewState) -> MapKey {
    maps.steps_under(state.step_figure, policy_shown(maps, state))
}

/// What the view needs of maps and what is not there yet.
pub(super) fn wants(scene: &Scene<'_>, maps: &PromptMaps, look: &Sought) -> Vec<Want> {
    let state = &scene.state;
    let (key, window, scale) = match state.columns {
        Columns::Tokens => (MapKey::Tokens(state.token_figure), state.token_window, state.scale),
        Columns::Steps => (key_of_steps(maps, state), state.step_window, state.share_scale),
    };
    let Some(values) = maps.map(&key) else { return vec![] };
    let columns = values.columns();
    let parts = match look {
        Sought::Drawn(pixels) => {
            let without_first = state.leave_out_bos && state.columns == Columns::Tokens;
            let of_window = |window: Window| {
                let span = ColumnRange { start: window.start, end: window.end };
                layerscope_figures::lacking(values, span, *pixels, without_first)
            };
            let mut parts = of_window(window.unwrap_or(Window::all(columns)).within(columns));
            // The strip above the map shows all.
            let overview = of_window(Window::all(columns));
            let known: BTreeSet<_> = parts.iter().copied().collect();
            parts.extend(overview.into_iter().filter(|part| !known.contains(part)));
            let sample = values.lacking_sample(without_first).filter(|_| scale == ScaleKind::Percentile);
            sample.into_iter().chain(parts).collect()
        }
        Sought::Table(rows) => values.lacking_columns(rows.clone()),
        Sought::Whole => values.lacking_columns(0..columns),
    };
    let mut wants: Vec<Want> = parts.into_iter().map(|part| Want::Part(key.clone(), part)).collect();
    for figure in strips::MASSES {
        for step in &state.selection.steps {
            wants.extend(step_wants(maps, figure, *step));
        }
    }
    wants
}

/// What is not there of a step figure's column.
pub(super) fn step_wants(maps: &PromptMaps, figure: StepFigure, step: usize) -> impl Iterator<Item = Want> {
    let parts = maps.steps(figure).lacking_columns(step..step + 1);
    parts.into_iter().map(move |part| Want::Part(MapKey::Steps(figure), part))
}

/// Its name.
fn steps_name(maps: &PromptMaps, state: &ViewState) -> String {
    let figure = state.step_figure.name();
    policy_shown(maps, state).map_or_else(|| figure.to_owned(), |policy| format!("{figure} under {policy}"))
}

/// A labelled choice of a few options.
pub(crate) fn choose<T: Copy + PartialEq>(
    ui: &mut Ui,
    name: &str,
    value: &mut T,
    all: impl IntoIterator<Item = T>,
    name_of: impl Fn(T) -> &'static str,
) {
    let response = ComboBox::from_id_salt(name).selected_text(name_of(*value)).show_ui(ui, |ui| {
        for one in all {
            ui.selectable_value(value, one, name_of(one));
        }
    });
    let chosen = name_of(*value);
    response.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, format!("{name}: {chosen}")));
    response.response.on_hover_text(name);
}

/// An overview of the prompt with a frame around the visible part; pressing or dragging moves the frame.
pub(super) fn overview_strip(
    ui: &mut Ui,
    area: Rect,
    image: &HeatMapImage,
    heat: &HeatMap<'_>,
    window: Window,
) -> Window {
    let columns = heat.values.columns();
    let response = ui.interact(area, ui.scope_id().with("overview"), Sense::click_and_drag());
    response.widget_info(|| WidgetInfo::labeled(Role::ScrollBar, true, "Part of the columns shown"));
    image.paint(ui, ui.painter(), area, heat, Window::all(columns));
    let mut window = window;
    if let Some(pointer) = response.interact_pointer_pos() {
        let at = f64::from((pointer.x - area.left()) / area.width()) * columns as f64;
        window = window.moved(at - (window.start + window.end) / 2.0, columns);
    }
    let palette = design::palette(ui);
    let x = |column: f64| area.left() + (column / columns.max(1) as f64) as f32 * area.width();
    let frame = Rect::from_min_max(pos2(x(window.start), area.top()), pos2(x(window.end), area.bottom()));
    let painter = ui.painter();
    if window != Window::all(columns) {
        painter.rect_filled(Rect::from_min_max(area.min, frame.left_bottom()), 0.0, palette.absent);
        painter.rect_filled(Rect::from_min_max(frame.right_top(), area.max), 0.0, palette.absent);
    }
    painter.rect_stroke(frame, 0.0, Stroke::new(1.5, palette.selection), StrokeKind::Inside);
    window
}

/// Zooms by wheel, pans by dragging and keys, shows all on a double click.
pub(super) fn interact(ui: &mut Ui, rows: Rect, mut window: Window, columns: usize) -> (Response, Window) {
    let response = ui.interact(rows, ui.scope_id().with("map"), Sense::click_and_drag());
    let per_point = window.width() / f64::from(rows.width());
    if response.dragged() {
        window = window.moved(-f64::from(response.drag_delta().x) * per_point, columns);
    }
    if response.double_clicked() {
        window = Window::all(columns);
    }
    if response.clicked() {
        response.request_focus();
    }
    if let Some(pointer) = response.hover_pos() {
        let (scroll, zoom) = ui.input(|input| (input.smooth_scroll_delta(), input.zoom_delta()));
        let at = window.start + f64::from(pointer.x - rows.left()) * per_point;
        let factor = f64::from(zoom) * f64::from(scroll.y / 200.0).exp();
        if factor != 1.0 {
            window = window.zoomed(factor, at, columns);
        }
        window = window.moved(-f64::from(scroll.x) * per_point, columns);
    }
    if response.has_focus() {
        // Otherwise these keys would move the focus.
        let arrows = EventFilter { horizontal_arrows: true, ..EventFilter::default() };
        ui.memory_mut(|memory| memory.set_focus_lock_filter(response.id, arrows));
        let pressed = |key| ui.input(|input| input.key_pressed(key));
        for (key, share) in [(Key::ArrowLeft, -0.25), (Key::ArrowRight, 0.25)] {
            if pressed(key) {
                window = window.moved(share * window.width(), columns);
            }
        }
        let middle = (window.start + window.end) / 2.0;
        for (key, factor) in [(Key::Plus, 1.5), (Key::Equals, 1.5), (Key::Minus, 1.0 / 1.5)] {
            if pressed(key) {
                window = window.zoomed(factor, middle, columns);
            }
        }
        if pressed(Key::Home) {
            window = Window::all(columns);
        }
    }
    (response, window)
}

/// Column numbers, and tokens if there is space.
fn column_axis(
    painter: &Painter,
    palette: &Palette,
    rows: Rect,
    window: Window,
    column_width: f32,
    scene: &Scene<'_>,
) {
    let first = window.start.floor().max(0.0) as usize;
    let last = window.end.ceil() as usize;
    let share = |column: f64| ((column - window.start) / window.width()) as f32;
    let name = match scene.state.columns {
        Columns::Tokens => "prompt token (position)",
        Columns::Steps => "decode step",
    };
    let step = axis::step(f64::from(column_width), 56.0);
    let ticks = (first.next_multiple_of(step)..last).step_by(step);
    let foot = Rect::from_min_max(rows.min, rows.max);
    axis::foot(painter, palette, foot, ticks.map(|column| (share(column as f64 + 0.5), column.to_string())));
    let below = if column_width >= LABELLED_COLUMN {
        let prompt = scene.prompt();
        let tokens = match scene.state.columns {
            Columns::Tokens => &prompt.prompt_token_text,
            Columns::Steps => &prompt.generated_token_text,
        };
        for (column, token) in tokens.iter().enumerate().take(last).skip(first) {
            let x = rows.left() + share(column as f64 + 0.5) * rows.width();
            if rows.x_range().contains(x) {
                token_below(painter, palette, pos2(x, rows.bottom() + 20.0), token, (column_width, SHORT));
            }
        }
        78.0
    } else {
        20.0
    };
    let at = pos2(rows.center().x, rows.bottom() + below);
    painter.text(at, Align2::CENTER_TOP, name, design::caption(), palette.weak_text);
}

/// At most so many characters of a token's text below its column of this width: horizontal if it fits, else vertical.
pub(super) fn token_below(
    painter: &Painter,
    palette: &Palette,
    at: Pos2,
    token: &str,
    (column_width, most): (f32, usize),
) {
    let label = token_label(token);
    let mut short: String = label.chars().take(most).collect();
    if short.len() < label.len() {
        short.push('…');
    }
    let galley = painter.layout_no_wrap(short, design::caption(), palette.text);
    if galley.size().x + 4.0 <= column_width {
        painter.galley(at - vec2(galley.size().x / 2.0, 0.0), galley, palette.text);
    } else {
        let corner = at + vec2(galley.size().y / 2.0, 0.0);
        painter.add(Shape::Text(
            TextShape::new(corner, galley, palette.text).with_angle(std::f32::consts::FRAC_PI_2),
        ));
    }
}

/// The cell under the pointer: shown in the status line and in a tooltip, selected by a click.
fn select(
    ui: &mut Ui,
    scene: &mut Scene<'_>,
    response: &Response,
    rows: Rect,
    window: Window,
    values: &Pyramid,
) {
    let (layers, columns) = (values.rows(), values.columns());
    response.widget_info(|| {
        let what = match scene.state.columns {
            Columns::Tokens => scene.state.token_figure.name(),
            Columns::Steps => scene.state.step_figure.name(),
        };
        WidgetInfo::labeled(Role::Canvas, true, format!("Map: {what}, {layers} layers by {columns} columns"))
    });
    let Some(pointer) = response.hover_pos() else { return };
    let column = window.start + f64::from((pointer.x - rows.left()) / rows.width()) * window.width();
    let layer = ((pointer.y - rows.top()) / rows.height() * layers as f32) as usize;
    let (column, layer) = (column.max(0.0) as usize, layer.min(layers.saturating_sub(1)));
    if column >= columns {
        return;
    }
    let text = describe(scene, values, layer, column);
    *scene.readout = Some(text.replace('\n', "  ·  "));
    // Not of every column that the pointer passes.
    if !values.has_column(column) && ui.input(|input| input.pointer.is_still()) {
        let key = match (scene.state.columns, scene.maps) {
            (Columns::Steps, Some(maps)) => key_of_steps(maps, scene.state),
            _ => MapKey::Tokens(scene.state.token_figure),
        };
        let parts = values.lacking_columns(column..column + 1).into_iter();
        scene.actions.push(Action::Want(parts.map(|part| Want::Part(key.clone(), part)).collect()));
    }
    response.clone().on_hover_text_at_pointer(text);
    if response.clicked() {
        let extend = ui.input(|input| input.modifiers.shift);
        let selection = &mut scene.state.selection;
        Selection::pick(&mut selection.layers, layer, extend);
        match scene.state.columns {
            Columns::Tokens => selection.select_tokens(column..column + 1),
            Columns::Steps => Selection::pick(&mut selection.steps, column, extend),
        }
    }
}

fn describe(scene: &Scene<'_>, values: &Pyramid, layer: usize, column: usize) -> String {
    let prompt = scene.prompt();
    let value = if values.has_column(column) { exact(values.value(layer, column)) } else { "…".into() };
    let model = &scene.run.manifest.model;
    let windowed = match model.window.filter(|_| model.windowed_layers.contains(&layer)) {
        None => String::new(),
        Some(window) if scene.state.columns == Columns::Tokens && column + window < prompt.p => {
            format!(", which sees {window} tokens: this one is never among them")
        }
        Some(window) => format!(", which sees {window} tokens"),
    };
    match scene.state.columns {
        Columns::Tokens => {
            let token = prompt.prompt_token_text.get(column).map_or("", String::as_str);
            format!(
                "layer {layer}{windowed}\nposition {column}: “{}”\n{}: {value}",
                token_label(token),
                scene.state.token_figure.name()
            )
        }
        Columns::Steps => {
            let token = prompt.generated_token_text.get(column).map_or("", String::as_str);
            format!(
                "layer {layer}{windowed}\nstep {column}, yields “{}”\n{}: {value} {}",
                token_label(token),
                scene.state.step_figure.name(),
                scene.state.step_figure.unit()
            )
        }
    }
}

/// Frames around the selection, and a dot next to each layer with selected heads.
fn selection(
    painter: &Painter,
    palette: &Palette,
    scene: &Scene<'_>,
    rows: Rect,
    window: Window,
    values: &Pyramid,
) {
    let selection = &scene.state.selection;
    let height = rows.height() / values.rows().max(1) as f32;
    let outline = |rect: Rect| {
        let rect = rect.intersect(rows);
        if rect.is_positive() {
            painter.rect_stroke(rect, 0.0, Stroke::new(3.0, palette.halo), StrokeKind::Outside);
            painter.rect_stroke(rect, 0.0, Stroke::new(1.5, palette.selection), StrokeKind::Outside);
        }
    };
    for &layer in selection.layers.iter().filter(|layer| **layer < values.rows()) {
        let top = rows.top() + layer as f32 * height;
        outline(Rect::from_x_y_ranges(rows.x_range(), top..=top + height));
    }
    for (layer, _) in selection.heads.iter().filter(|(layer, _)| *layer < values.rows()) {
        let centre = pos2(rows.left() - 2.0, rows.top() + (*layer as f32 + 0.5) * height);
        painter.circle_filled(centre, 3.0, palette.accent);
    }
    let columns: Vec<usize> = match scene.state.columns {
        Columns::Tokens => selection.token.into_iter().collect(),
        Columns::Steps => selection.steps.iter().copied().collect(),
    };
    for column in columns {
        let x = |column: f64| rows.left() + ((column - window.start) / window.width()) as f32 * rows.width();
        let (left, right) = (x(column as f64), x(column as f64 + 1.0));
        // The frame of a token thinner than a pixel must be visible.
        let middle = (left + right) / 2.0;
        let half = ((right - left) / 2.0).max(1.5);
        outline(Rect::from_x_y_ranges(middle - half..=middle + half, rows.y_range()));
    }
}

/// The map's data as a table: one row per column, with a cell per layer.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let maps = scene.maps?;
    let prompt = scene.prompt();
    let (values, first, tokens) = match scene.state.columns {
        Columns::Tokens => (maps.tokens(scene.state.token_figure), "position", &prompt.prompt_token_text),
        Columns::Steps => (of_steps(maps, scene.state), "step", &prompt.generated_token_text),
    };
    let unit = match scene.state.columns {
        Columns::Tokens => "share",
        Columns::Steps => scene.state.step_figure.unit(),
    };
    let mut columns = vec![Column::new(first, ""), Column::new("token", "")];
    columns.extend((0..values.rows()).map(|layer| Column::new(format!("layer {layer}"), unit)));
    Some(Figures {
        columns,
        rows: values.columns(),
        row: Box::new(move |column| {
            let token = tokens.get(column).map_or(String::new(), |token| token_label(token));
            let mut cells = vec![column.to_string(), token];
            match values.has_column(column) {
                true => {
                    let figures = values.column(column).iter();
                    cells.extend(figures.map(|value| crate::widgets::cell(f64::from(*value))));
                }
                // It is being fetched.
                false => cells.extend((0..values.rows()).map(|_| "…".to_owned())),
            }
            cells
        }),
    })
}

/// A legend entry: a colour swatch with a name. Returns its width.
fn swatch(painter: &Painter, palette: &Palette, at: Pos2, colour: Color32, name: &str) -> f32 {
    painter.rect_filled(Rect::from_min_size(at, vec2(8.0, 8.0)), 1.0, colour);
    let beside = at + vec2(11.0, 4.0);
    painter.text(beside, Align2::LEFT_CENTER, name, design::caption(), palette.weak_text).right() - at.x
}

/// A number for the strips' status line.
fn shown(value: f64) -> String {
    short(value as f32)
}
