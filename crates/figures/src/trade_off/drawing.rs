//! Draws the figure on a surface.

use super::labels::{HEIGHT, Surroundings, leader};
use super::scales::{LossAxis, cost_ends};
use super::{TradeOff, TradeOffPoint, TradeOffRow};
use crate::axis::ticks;
use crate::colour::Ink;
use crate::number::short;
use crate::svg::{Canvas, Pen, SMALL, Surface, Svg, TextAnchor, text_width};
use std::f64::consts::TAU;

const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const GAP: f64 = 18.0;
/// Space below a panel for its axis.
const AXIS: f64 = 44.0;
/// Space above a row for its name.
const NAME: f64 = 20.0;
const LEGEND_LINE: f64 = 16.0;
/// Minimum width of a panel in a row of several, and the target height of panels.
const LEAST_WIDTH: f64 = 176.0;
const HEIGHT_OF_PANEL: f64 = 214.0;
/// Most characters of a name.
const LONGEST_NAME: usize = 22;
const RADIUS: f64 = 4.6;

impl TradeOff {
    /// The preferred height for a width, CSS pixels.
    pub fn height(&self, width: f64, titled: bool) -> f64 {
        let lines = self.costs.len().div_ceil(self.columns(width)) as f64;
        let rows: f64 = self.rows.iter().map(|row| name_height(row) + lines * (HEIGHT_OF_PANEL + AXIS)).sum();
        self.top(width, titled) + rows + 4.0
    }

    /// The figure as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        let mut svg = Svg::new(canvas.colours);
        self.draw(canvas.size, canvas.titled, &mut svg);
        svg.finish(canvas, &self.title, &self.description)
    }

    /// Draws the figure at this size on a surface.
    pub fn draw(&self, [width, height]: [f64; 2], titled: bool, surface: &mut dyn Surface) {
        if titled {
            surface.title([10.0, 18.0], &self.title);
        }
        self.legend(surface, width, titled);
        let columns = self.columns(width);
        let lines = self.costs.len().div_ceil(columns);
        let mut top = self.top(width, titled);
        let names: f64 = self.rows.iter().map(name_height).sum();
        let panels = (self.rows.len() * lines).max(1) as f64;
        let panel_height = ((height - 4.0 - top - names) / panels - AXIS).max(60.0);
        let panel_width = (width - LEFT - RIGHT - GAP * (columns - 1) as f64) / columns as f64;
        let axis = LossAxis::of(self);
        for row in &self.rows {
            if !row.name.is_empty() {
                surface.text([LEFT, top + 12.0], TextAnchor::Start, Ink::Text, &row.name);
                top += NAME;
            }
            for panel in 0..self.costs.len() {
                let (column, line) = (panel % columns, panel / columns);
                let left = LEFT + column as f64 * (panel_width + GAP);
                let top = top + line as f64 * (panel_height + AXIS);
                let axis = axis.between(top, top + panel_height);
                let frame = Frame {
                    left,
                    width: panel_width,
                    top,
                    height: panel_height,
                    ends: cost_ends(self, panel),
                    axis,
                };
                self.panel(surface, row, panel, &frame, column == 0);
            }
            top += lines as f64 * (panel_height + AXIS);
        }
    }

    /// Number of panel columns: all panels in one line, in two lines, or in one column, depending on the
    /// width.
    fn columns(&self, width: f64) -> usize {
        let all = self.costs.len().max(1);
        let fits = |columns: &usize| {
            let panels = width - LEFT - RIGHT - GAP * (columns - 1) as f64;
            panels / *columns as f64 >= LEAST_WIDTH
        };
        [all, all.div_ceil(2)].into_iter().find(fits).unwrap_or(1)
    }

    /// Top of the first row.
    fn top(&self, width: f64, titled: bool) -> f64 {
        let lines = self.legend_places(width).last().map_or(0.0, |(_, [_, line])| line + 1.0);
        let first = if titled { 30.0 } else { 6.0 };
        first + lines * LEGEND_LINE + 8.0
    }

    /// The kinds that have points, with their x and line in the legend. The last entry is the line through
    /// the Pareto-optimal points.
    fn legend_places(&self, width: f64) -> Vec<(Option<usize>, [f64; 2])> {
        let points = || self.rows.iter().flat_map(|row| &row.points);
        let kinds = (0..self.kinds.len()).filter(|kind| points().any(|point| point.kind == *kind));
        let mut places = vec![];
        let (mut x, mut line) = (LEFT, 0.0);
        for kind in kinds.map(Some).chain([None]) {
            let name = kind.map_or(PARETO, |kind| &self.kinds[kind]);
            let room = 16.0 + text_width(name, SMALL) + 16.0;
            if x + room > width && x > LEFT {
                (x, line) = (LEFT, line + 1.0);
            }
            places.push((kind, [x, line]));
            x += room;
        }
        places
    }

    fn legend(&self, surface: &mut dyn Surface, width: f64, titled: bool) {
        let first = if titled { 38.0 } else { 14.0 };
        for (kind, [x, line]) in self.legend_places(width) {
            let y = first + line * LEGEND_LINE;
            match kind {
                Some(kind) => surface.polygon(&marker(kind, [x + 5.0, y - 4.0]), Self::ink(kind)),
                None => surface.polyline(&[[x - 4.0, y - 4.0], [x + 12.0, y - 4.0]], PARETO_PEN),
            }
            let name = kind.map_or(PARETO, |kind| &self.kinds[kind]);
            surface.text([x + 16.0, y], TextAnchor::Start, Ink::Text, name);
        }
    }

    fn panel(&self, surface: &mut dyn Surface, row: &TradeOffRow, panel: usize, frame: &Frame, first: bool) {
        frame.axes(surface, &self.costs[panel], first.then_some(self.loss.as_str()));
        let optimal = row.pareto(panel);
        let place = |point: &TradeOffPoint| {
            let [cost, loss] = point.at(panel)?;
            Some([frame.x(cost), frame.axis.y(loss)])
        };
        let joined: Vec<[f64; 2]> = optimal.iter().filter_map(|&index| place(&row.points[index])).collect();
        if joined.len() > 1 {
            surface.polyline(&joined, PARETO_PEN);
        }
        let points: Vec<(&TradeOffPoint, [f64; 2])> =
            row.points.iter().filter_map(|point| Some((point, place(point)?))).collect();
        let places: Vec<[f64; 2]> = points.iter().map(|(_, place)| *place).collect();
        let names: Vec<String> = points.iter().map(|(point, _)| shortened(&point.name)).collect();
        let widths: Vec<f64> = names.iter().map(|name| text_width(name, SMALL) * 1.06 + 2.0).collect();
        let area = [frame.left + 3.0, frame.top - 6.0, frame.width + RIGHT - 5.0, frame.height + 4.0];
        let lines = along(&joined);
        let surroundings = Surroundings { points: &places, widths: &widths, frame: area, lines: &lines };
        let labels = surroundings.place();
        for (label, place) in labels.iter().zip(&places) {
            if let Some(ends) = label.and_then(|label| leader(*place, label)) {
                surface.polyline(&ends, Pen::new(Ink::WeakText, 0.6));
            }
        }
        // Names first: their outlines would cover points.
        for ((label, [x, _]), name) in labels.iter().zip(&places).zip(&names) {
            let Some([left, top, width, _]) = *label else { continue };
            // Anchored at the side of the point, because fonts differ in width.
            let (at, anchor) = match (left + width <= *x, left >= *x) {
                (true, _) => (left + width - 1.0, TextAnchor::End),
                (_, true) => (left + 1.0, TextAnchor::Start),
                _ => (left + width / 2.0, TextAnchor::Middle),
            };
            surface.rimmed([at, top + HEIGHT - 2.5], anchor, Ink::Text, name);
        }
        for (point, place) in &points {
            surface.polygon(&marker(point.kind, *place), Self::ink(point.kind));
        }
        for (point, [x, y]) in &points {
            surface.hover([x - 8.0, y - 8.0, 16.0, 16.0], &format!("{}\n{}", point.name, point.details));
        }
    }
}

const PARETO: &str = "Pareto-optimal";
const PARETO_PEN: Pen = Pen { ink: Ink::WeakText, width: 1.0, dashes: None };

fn name_height(row: &TradeOffRow) -> f64 {
    if row.name.is_empty() { 0.0 } else { NAME }
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    name.chars().take(LONGEST_NAME - 1).chain(['…']).collect()
}

/// Points a few pixels apart along lines.
fn along(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut places = vec![];
    for ends in points.windows(2) {
        let [dx, dy] = [0, 1].map(|axis| ends[1][axis] - ends[0][axis]);
        let steps = (dx.hypot(dy) / 4.0).ceil().max(1.0);
        let at = |step: usize| [ends[0][0] + dx * step as f64 / steps, ends[0][1] + dy * step as f64 / steps];
        places.extend((0..=steps as usize).map(at));
    }
    places
}

/// The outline of a kind's points: eight shapes that differ without colour.
pub(crate) fn marker(kind: usize, [x, y]: [f64; 2]) -> Vec<[f64; 2]> {
    let around = |corners: usize, turn: f64, radius: &dyn Fn(usize) -> f64| -> Vec<[f64; 2]> {
        let corner = |index: usize| {
            let angle = (index as f64 / corners as f64 + turn) * TAU;
            [x + radius(index) * angle.sin(), y - radius(index) * angle.cos()]
        };
        (0..corners).map(corner).collect()
    };
    let cross = |turn: f64| {
        // A cross: two corners per arm, and one between arms.
        let outline = [[1.0, -3.0], [1.0, -1.0], [3.0, -1.0]];
        let quarter = |index: usize| {
            outline.map(|[a, b]| {
                let (sin, cos) = ((index as f64 / 4.0 + turn) * TAU).sin_cos();
                let unit = RADIUS / 2.7;
                [x + (a * cos - b * sin) * unit, y + (a * sin + b * cos) * unit]
            })
        };
        (0..4).flat_map(quarter).collect()
    };
    let even = |size: f64| move |_: usize| RADIUS * size;
    match kind % 8 {
        0 => around(24, 0.0, &even(1.0)),
        1 => around(4, 0.125, &even(1.25)),
        2 => around(3, 0.0, &even(1.35)),
        3 => around(4, 0.0, &even(1.3)),
        4 => around(3, 0.5, &even(1.35)),
        5 => cross(0.0),
        6 => around(10, 0.0, &|index| RADIUS * if index % 2 == 0 { 1.5 } else { 0.65 }),
        _ => cross(0.125),
    }
}

/// A panel's area and axis ranges.
struct Frame {
    left: f64,
    width: f64,
    top: f64,
    height: f64,
    /// Ends of the cost axis.
    ends: [f64; 2],
    axis: LossAxis,
}

impl Frame {
    fn x(&self, cost: f64) -> f64 {
        self.left + (cost - self.ends[0]) / (self.ends[1] - self.ends[0]) * self.width
    }

    fn axes(&self, surface: &mut dyn Surface, cost: &str, loss: Option<&str>) {
        let (right, bottom, grid) =
            (self.left + self.width, self.top + self.height, Pen::new(Ink::Grid, 1.0));
        for (index, (y, text)) in self.axis.ticks().into_iter().enumerate() {
            let pen = if index == 0 { grid.dashed("2 3") } else { grid };
            surface.polyline(&[[self.left, y], [right, y]], pen);
            if loss.is_some() {
                surface.text([self.left - 6.0, y + 4.0], TextAnchor::End, Ink::WeakText, &text);
            }
        }
        let reference = self.x(1.0);
        surface
            .polyline(&[[reference, self.top], [reference, bottom]], Pen::new(Ink::Line, 1.0).dashed("2 3"));
        let line = Pen::new(Ink::Line, 1.0);
        for tick in ticks(self.ends[0], self.ends[1], (self.width / 36.0).max(2.0) as usize) {
            let x = self.x(tick);
            surface.polyline(&[[x, bottom], [x, bottom + 4.0]], line);
            surface.text([x, bottom + 16.0], TextAnchor::Middle, Ink::WeakText, &short(tick as f32));
        }
        surface.polyline(&[[self.left, bottom], [right, bottom]], line);
        // The axis break between the logarithmic part and 0.
        let gap = self.axis.gap() + 4.0;
        surface.polyline(&[[self.left, self.top], [self.left, gap - 2.0]], line);
        surface.polyline(&[[self.left, gap + 2.0], [self.left, bottom]], line);
        for y in [gap - 2.0, gap + 2.0] {
            surface.polyline(&[[self.left - 4.0, y + 2.0], [self.left + 4.0, y - 2.0]], line);
        }
        surface.text([(self.left + right) / 2.0, bottom + 31.0], TextAnchor::Middle, Ink::WeakText, cost);
        if let Some(loss) = loss {
            // Keeps a name longer than its axis within the image.
            let middle = (self.top + bottom) / 2.0;
            surface.upwards([13.0, middle.max(text_width(loss, SMALL) / 2.0 + 4.0)], Ink::WeakText, loss);
        }
    }
}
