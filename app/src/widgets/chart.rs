//! Curves over layers or cutoffs, with their spread and the cutoff's line.

use super::{CutoffLine, Direction, axis};
use crate::data::short;
use crate::design;
use eframe::egui::{
    Align, Color32, Id, Layout, Rect, RichText, Sense, Shape, Stroke, Ui, WidgetInfo, accesskit::Role, pos2,
    vec2,
};
use egui_plot::{
    AxisHints, FilledArea, GridMark, HLine, HoverPosition, Line, LineStyle, Plot, PlotPoints, Points, Span,
};
use std::collections::BTreeSet;

/// One curve: a value at each place of the axis. Undefined values are left out.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub colour: Color32,
    /// Its values.
    pub values: Vec<f64>,
    /// Lower and upper edge of its spread.
    pub band: Option<(Vec<f64>, Vec<f64>)>,
    /// Whether it is dashed.
    pub dashed: bool,
    /// Whether it is drawn as points alone.
    pub points: bool,
}

impl Curve {
    /// A curve without spread.
    pub fn new(name: impl Into<String>, colour: Color32, values: Vec<f64>) -> Self {
        Self { name: name.into(), colour, values, band: None, dashed: false, points: false }
    }

    /// With a spread.
    #[must_use]
    pub fn with_band(mut self, lower: Vec<f64>, upper: Vec<f64>) -> Self {
        self.band = Some((lower, upper));
        self
    }

    /// Dashed.
    #[must_use]
    pub fn dashed(mut self) -> Self {
        self.dashed = true;
        self
    }

    /// Points alone.
    #[must_use]
    pub fn points(mut self) -> Self {
        self.points = true;
        self
    }
}

/// What stands along a chart's axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Along {
    /// Layers 0 … L−1; a curve of L+1 values begins with the embedding, at −1.
    Layers(usize),
    /// Cutoffs 1 … L.
    Cutoffs(usize),
}

impl Along {
    fn layers(self) -> usize {
        match self {
            Self::Layers(layers) | Self::Cutoffs(layers) => layers,
        }
    }

    /// Where the first of `len` values stands.
    fn first(self, len: usize) -> f64 {
        match self {
            Self::Layers(layers) if len > layers => -1.0,
            Self::Layers(_) => 0.0,
            Self::Cutoffs(_) => 1.0,
        }
    }

    /// Where the ends of the L layers stand: the cutoff c is at the lower end plus c.
    fn ends(self) -> [f64; 2] {
        match self {
            Self::Layers(layers) => [-0.5, layers as f64 - 0.5],
            Self::Cutoffs(layers) => [0.0, layers as f64],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Layers(_) => "layer",
            Self::Cutoffs(_) => "cutoff (layers kept)",
        }
    }
}

/// A chart.
pub struct Chart<'a> {
    /// Its title.
    pub title: &'a str,
    /// Unit of its values.
    pub unit: &'a str,
    /// What stands along it.
    pub along: Along,
    /// Its curves.
    pub curves: Vec<Curve>,
    /// Whether values are shown by their logarithm; at most so many decades below the largest.
    pub logarithmic: bool,
    /// Lower and upper end of the axis, where they are known.
    pub range: Option<[f64; 2]>,
    /// A level to compare with.
    pub level: Option<(f64, &'a str)>,
    /// Layers that are selected.
    pub selected: &'a BTreeSet<usize>,
}

/// Least value that a logarithmic axis shows.
const LEAST: f64 = 1e-5;

impl Chart<'_> {
    /// Draws the chart in `width` × `height` points and moves the cutoff as the user says; the layer or cutoff that was
    /// clicked.
    pub fn show(self, ui: &mut Ui, width: f32, height: f32, cutoff: &mut usize) -> Option<usize> {
        ui.allocate_ui_with_layout(vec2(width, height), Layout::top_down(Align::Min), |ui| {
            ui.set_width(width);
            ui.horizontal_wrapped(|ui| {
                ui.label(RichText::new(self.title).strong());
                ui.label(RichText::new(self.unit).small().weak());
                if self.curves.len() > 1 {
                    self.legend(ui);
                }
            });
            self.plot(ui, width, ui.available_height().max(120.0), cutoff)
        })
        .inner
    }

    /// Names of the curves with their colours, beside the title, where they hide no curve.
    fn legend(&self, ui: &mut Ui) {
        let palette = design::palette(ui);
        for curve in &self.curves {
            const SWATCH: f32 = 16.0;
            let name = ui.painter().layout_no_wrap(curve.name.clone(), design::caption(), palette.text);
            let size = vec2(SWATCH + 4.0 + name.size().x, name.size().y);
            let (rect, _) = ui.allocate_exact_size(size, Sense::hover());
            let [from, to] = [rect.left(), rect.left() + SWATCH].map(|x| pos2(x, rect.center().y));
            let stroke = Stroke::new(2.5, curve.colour);
            if curve.points {
                ui.painter().circle_filled(from + (to - from) / 2.0, 3.0, curve.colour);
            } else if curve.dashed {
                ui.painter().extend(Shape::dashed_line(&[from, to], stroke, 4.0, 3.0));
            } else {
                ui.painter().line_segment([from, to], stroke);
            }
            ui.painter().galley(pos2(to.x + 4.0, rect.top()), name, palette.text);
        }
    }

    fn plot(self, ui: &mut Ui, width: f32, height: f32, cutoff: &mut usize) -> Option<usize> {
        let palette = design::palette(ui);
        let logarithmic = self.logarithmic;
        let level = |value: f64| if logarithmic { value.max(LEAST).log10() } else { value };
        let value = move |level: f64| if logarithmic { 10_f64.powf(level) } else { level };
        let along = self.along;
        let [start, end] = along.ends();
        let step = axis::step(f64::from(width) / (end - start), 26.0) as f64;
        let mut plot = Plot::new(self.title)
            .width(width)
            .height(height)
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
                    .formatter(|mark, _| whole(mark))
                    .label_spacing(18.0..=26.0),
            ])
            .grid_color(palette.grid)
            .link_cursor(Id::unique("layers"), [true, false])
            .include_x(start)
            .include_x(end)
            .set_margin_fraction(vec2(0.01, 0.06))
            .custom_y_axes(vec![
                AxisHints::new_y()
                    .formatter(move |mark, _| tick(mark, logarithmic))
                    .min_thickness(42.0)
                    .label_spacing(15.0..=24.0),
            ])
            .label_formatter(move |at| label(at, along, value));
        if let Some([lower, upper]) = self.range {
            plot = plot.include_y(level(lower)).include_y(level(upper));
        }
        let selected = self.selected;
        let shown = plot.show(ui, |plot| {
            for &layer in selected {
                // Layer ℓ lies between the cutoffs ℓ and ℓ+1.
                let range = start + layer as f64..=start + layer as f64 + 1.0;
                plot.span(Span::new("", range).fill(design::faded(palette.accent, 0.25)).border_width(0.0));
            }
            if let Some((at, name)) = self.level {
                let line = HLine::new(name, level(at)).color(palette.good).style(LineStyle::dashed_dense());
                plot.hline(line);
            }
            for curve in &self.curves {
                draw(plot, curve, along, &level);
            }
        });
        let frame = *shown.transform.frame();
        let x = |value| shown.transform.position_from_point_x(value);
        let area = Rect::from_x_y_ranges(x(start)..=x(end), frame.y_range());
        shown
            .response
            .widget_info(|| WidgetInfo::labeled(Role::Canvas, true, format!("Chart: {}", self.title)));
        let clicked = shown.response.clicked().then(|| shown.response.interact_pointer_pos()).flatten();
        let line = CutoffLine { area, direction: Direction::Right, layers: along.layers() };
        line.show(ui, self.title, cutoff);
        let share = (clicked?.x - area.left()) / area.width();
        Some(((share * along.layers() as f32).max(0.0) as usize).min(along.layers().saturating_sub(1)))
    }
}

fn draw(plot: &mut egui_plot::PlotUi<'_>, curve: &Curve, along: Along, level: &impl Fn(f64) -> f64) {
    let first = along.first(curve.values.len());
    let x = |index: usize| first + index as f64;
    if let Some((lower, upper)) = &curve.band {
        let defined = |(_, (lower, upper)): &(usize, (&f64, &f64))| lower.is_finite() && upper.is_finite();
        let edges: Vec<_> = lower.iter().zip(upper).enumerate().filter(defined).collect();
        let xs: Vec<f64> = edges.iter().map(|(index, _)| x(*index)).collect();
        let lower: Vec<f64> = edges.iter().map(|(_, (lower, _))| level(**lower)).collect();
        let upper: Vec<f64> = edges.iter().map(|(_, (_, upper))| level(**upper)).collect();
        let area = FilledArea::new(String::new(), &xs, &lower, &upper);
        plot.add(area.fill_color(design::faded(curve.colour, 0.18)).allow_hover(false));
    }
    let defined = curve.values.iter().enumerate().filter(|(_, value)| value.is_finite());
    let points: Vec<[f64; 2]> = defined.map(|(index, value)| [x(index), level(*value)]).collect();
    if curve.points || points.len() == 1 {
        let points = Points::new(curve.name.clone(), PlotPoints::new(points));
        plot.points(points.color(curve.colour).radius(3.0));
        return;
    }
    let style = if curve.dashed { LineStyle::dashed_loose() } else { LineStyle::Solid };
    let line = Line::new(curve.name.clone(), PlotPoints::new(points));
    plot.line(line.color(curve.colour).width(1.8).style(style));
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

fn label(at: &HoverPosition<'_>, along: Along, value: impl Fn(f64) -> f64) -> Option<String> {
    let HoverPosition::NearDataPoint { plot_name, position, .. } = at else { return None };
    let place = match along {
        Along::Layers(_) if position.x < -0.5 => "embedding".to_owned(),
        Along::Layers(_) => format!("layer {:.0}", position.x),
        Along::Cutoffs(_) => format!("cutoff {:.0}", position.x),
    };
    Some(format!("{plot_name}\n{place}: {}", short(value(position.y) as f32)))
}
