//! A chart in the window: curves with their spread, a draggable cutoff line, and values under the pointer.

use super::{CutoffLine, Direction, axis};
use crate::data::short;
use crate::design;
use eframe::egui::{
    Align, Color32, Id, Layout, Rect, RichText, Sense, Shape, Stroke, Ui, Vec2, WidgetInfo, accesskit::Role,
    pos2, vec2,
};
use egui_plot::{
    AxisHints, FilledArea, GridMark, HLine, HoverPosition, Line, LineStyle, Plot, PlotPoints, Points, Span,
    VLine,
};
use layerscope_figures::{Along, Chart, Curve, Style, round_step};

/// Draws a chart at this size. On an axis of layers, drags move the cutoff's line. Returns the clicked layer.
pub fn chart(ui: &mut Ui, chart: &Chart, size: Vec2, cutoff: Option<&mut usize>) -> Option<usize> {
    ui.allocate_ui_with_layout(size, Layout::top_down(Align::Min), |ui| {
        ui.set_width(size.x);
        ui.horizontal_wrapped(|ui| {
            ui.label(RichText::new(&chart.title).strong());
            ui.label(RichText::new(&chart.unit).small().weak());
            if chart.curves.len() > 1 {
                legend(ui, chart);
            }
        });
        let height = ui.available_height().max(120.0);
        plot(ui, chart, vec2(size.x, height), cutoff)
    })
    .inner
}

/// The legend, next to the title, where it hides no curve.
fn legend(ui: &mut Ui, chart: &Chart) {
    let palette = design::palette(ui);
    for curve in &chart.curves {
        const SWATCH: f32 = 16.0;
        let colour = design::ink(ui.theme(), curve.ink);
        let name = ui.painter().layout_no_wrap(curve.name.clone(), design::caption(), palette.text);
        let size = vec2(SWATCH + 4.0 + name.size().x, name.size().y);
        let (rect, _) = ui.allocate_exact_size(size, Sense::hover());
        let [from, to] = [rect.left(), rect.left() + SWATCH].map(|x| pos2(x, rect.center().y));
        let stroke = Stroke::new(2.5, colour);
        if matches!(curve.style, Style::Points | Style::Marked) {
            ui.painter().circle_filled(from + (to - from) / 2.0, 3.0, colour);
        }
        match curve.style {
            Style::Points => {}
            Style::Dashed => {
                ui.painter().extend(Shape::dashed_line(&[from, to], stroke, 4.0, 3.0));
            }
            Style::Line | Style::Marked => {
                ui.painter().line_segment([from, to], stroke);
            }
        }
        ui.painter().galley(pos2(to.x + 4.0, rect.top()), name, palette.text);
    }
}

fn plot(ui: &mut Ui, chart: &Chart, size: Vec2, cutoff: Option<&mut usize>) -> Option<usize> {
    let (palette, theme) = (design::palette(ui), ui.theme());
    let logarithmic = chart.logarithmic;
    let value = move |level: f64| if logarithmic { 10_f64.powf(level) } else { level };
    let along = &chart.along;
    let [start, end] = along.ends();
    let per_unit = f64::from(size.x) / (end - start);
    let layered = along.layers() > 0;
    let step = if layered { axis::step(per_unit, 26.0) as f64 } else { round_step(40.0 / per_unit) };
    let labelled = along.clone();
    let mut plot = Plot::new(&chart.title)
        .width(size.x)
        .height(size.y)
        .allow_zoom(false)
        .allow_drag(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .allow_double_click_reset(false)
        .show_background(false)
        .x_grid_spacer(egui_plot::uniform_grid_spacer(move |_| [step, 5.0 * step, 10.0 * step]))
        .custom_x_axes(vec![
            AxisHints::new_x()
                .label(RichText::new(along.name()).small().weak())
                .formatter(move |mark, _| if layered { whole(mark) } else { short(mark.value as f32) })
                .label_spacing(18.0..=26.0),
        ])
        .grid_color(palette.grid)
        .link_cursor(Id::unique(along.name()), [true, false])
        .include_x(start)
        .include_x(end)
        .set_margin_fraction(vec2(0.01, 0.06))
        .custom_y_axes(vec![
            AxisHints::new_y()
                .formatter(move |mark, _| tick(mark, logarithmic))
                .min_thickness(42.0)
                .label_spacing(15.0..=24.0),
        ])
        .label_formatter(move |at| label(at, &labelled, value));
    for end in chart.range.into_iter().flatten() {
        plot = plot.include_y(chart.level_of(end));
    }
    let shown = plot.show(ui, |plot| {
        for &layer in &chart.selected {
            // Layer ℓ is between the cutoffs ℓ and ℓ+1.
            let range = start + layer as f64..=start + layer as f64 + 1.0;
            plot.span(Span::new("", range).fill(design::faded(palette.accent, 0.25)).border_width(0.0));
        }
        if let Some((at, name)) = &chart.level {
            let line = HLine::new(name, chart.level_of(*at)).color(palette.good);
            plot.hline(line.style(LineStyle::dashed_dense()));
        }
        for mark in &chart.marks {
            let line = VLine::new(&mark.name, mark.at).color(design::ink(theme, mark.ink));
            plot.vline(line.width(1.6));
        }
        for curve in &chart.curves {
            draw(plot, chart, curve, design::ink(theme, curve.ink));
        }
    });
    let name = format!("Chart: {}", chart.title);
    shown.response.widget_info(|| WidgetInfo::labeled(Role::Canvas, true, name.clone()));
    let layers = along.layers();
    let cutoff = cutoff.filter(|_| layered)?;
    let clicked = shown.response.clicked().then(|| shown.response.interact_pointer_pos()).flatten();
    let frame = *shown.transform.frame();
    let x = |value| shown.transform.position_from_point_x(value);
    let area = Rect::from_x_y_ranges(x(start)..=x(end), frame.y_range());
    CutoffLine { area, direction: Direction::Right, layers }.show(ui, &chart.title, cutoff);
    let share = (clicked?.x - area.left()) / area.width();
    Some(((share * layers as f32).max(0.0) as usize).min(layers - 1))
}

fn draw(plot: &mut egui_plot::PlotUi<'_>, chart: &Chart, curve: &Curve, colour: Color32) {
    let x = |index: usize| chart.along.place(curve, index);
    if let Some((lower, upper)) = &curve.band {
        let defined = |(_, (lower, upper)): &(usize, (&f64, &f64))| lower.is_finite() && upper.is_finite();
        let edges: Vec<_> = lower.iter().zip(upper).enumerate().filter(defined).collect();
        let xs: Vec<f64> = edges.iter().map(|(index, _)| x(*index)).collect();
        let lower: Vec<f64> = edges.iter().map(|(_, (lower, _))| chart.level_of(**lower)).collect();
        let upper: Vec<f64> = edges.iter().map(|(_, (_, upper))| chart.level_of(**upper)).collect();
        let area = FilledArea::new(String::new(), &xs, &lower, &upper);
        plot.add(area.fill_color(design::faded(colour, 0.18)).allow_hover(false));
    }
    let defined = curve.values.iter().enumerate().filter(|(_, value)| value.is_finite());
    let points: Vec<[f64; 2]> = defined.map(|(index, value)| [x(index), chart.level_of(*value)]).collect();
    if matches!(curve.style, Style::Points | Style::Marked) || points.len() == 1 {
        let points = Points::new(curve.name.clone(), PlotPoints::new(points.clone()));
        plot.points(points.color(colour).radius(3.0));
    }
    if curve.style == Style::Points || points.len() == 1 {
        return;
    }
    let style = if curve.style == Style::Dashed { LineStyle::dashed_loose() } else { LineStyle::Solid };
    let line = Line::new(curve.name.clone(), PlotPoints::new(points));
    plot.line(line.color(colour).width(1.8).style(style));
}

fn whole(mark: GridMark) -> String {
    if mark.value.fract() == 0.0 { format!("{:.0}", mark.value) } else { String::new() }
}

fn tick(mark: GridMark, logarithmic: bool) -> String {
    match logarithmic {
        false => short(mark.value as f32),
        true if mark.value.fract().abs() > 1e-9 => String::new(),
        true => match mark.value.round() as i32 {
            -2 => "0.01".into(),
            -1 => "0.1".into(),
            0 => "1".into(),
            1 => "10".into(),
            -5 => "≤1e-5".into(),
            other => format!("1e{other}"),
        },
    }
}

fn label(at: &HoverPosition<'_>, along: &Along, value: impl Fn(f64) -> f64) -> Option<String> {
    let HoverPosition::NearDataPoint { plot_name, position, .. } = at else { return None };
    let place = along.place_name(position.x);
    Some(format!("{plot_name}\n{place}: {}", short(value(position.y) as f32)))
}
