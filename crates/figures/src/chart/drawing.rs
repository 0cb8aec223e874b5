//! Draws a chart as SVG.

use super::{Along, Chart, Curve, Style};
use crate::axis::{ticks, whole_ticks};
use crate::colour::Ink;
use crate::number::short;
use crate::svg::{Canvas, Pen, SMALL, Svg, TextAnchor, text_width};

impl Chart {
    /// Ends of the horizontal axis, extended for the embedding if a curve begins with it.
    fn place_ends(&self) -> [f64; 2] {
        let [lower, upper] = self.along.ends();
        let embedding = self.along.layers() > 0
            && self.curves.iter().any(|curve| !curve.values.is_empty() && self.along.place(curve, 0) < lower);
        [if embedding { -1.3 } else { lower }, upper]
    }

    /// Ends of the value axis: all drawn values, with some padding.
    fn value_ends(&self) -> [f64; 2] {
        let bands = self.curves.iter().filter_map(|curve| curve.band.as_ref());
        let edges = bands.flat_map(|(lower, upper)| lower.iter().chain(upper));
        let values = self.curves.iter().flat_map(|curve| &curve.values).chain(edges).copied();
        let others = self.range.into_iter().flatten().chain(self.level.iter().map(|(level, _)| *level));
        let levels = values.chain(others).map(|value| self.level_of(value)).filter(|level| level.is_finite());
        let (lower, upper) = levels
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), level| (low.min(level), high.max(level)));
        if lower > upper {
            return [0.0, 1.0];
        }
        let air = match upper - lower {
            0.0 => 0.5_f64.max(upper.abs() * 0.1),
            width => width * 0.04,
        };
        // No padding below a minimum of 0.
        let lower = if !self.logarithmic && lower == 0.0 { 0.0 } else { lower - air };
        [lower, upper + air]
    }

    /// The chart as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        let mut svg = Svg::new(canvas.colours);
        let [width, height] = canvas.size;
        let mut top = 8.0;
        if canvas.titled {
            svg.title([10.0, 18.0], &self.title);
            top = 28.0;
        }
        if self.curves.len() > 1 || canvas.titled && self.curves.iter().any(|curve| curve.name != self.title)
        {
            top = self.legend(&mut svg, top, width) + 8.0;
        }
        let frame = Frame {
            left: 58.0,
            right: width - 14.0,
            top,
            bottom: height - 38.0,
            along: self.place_ends(),
            values: self.value_ends(),
        };
        for layer in &self.selected {
            // Layer ℓ is between the cutoffs ℓ and ℓ+1.
            let from = self.along.ends()[0] + *layer as f64;
            let [left, right] = [from, from + 1.0].map(|at| frame.x(at));
            let corners =
                [[left, frame.top], [right, frame.top], [right, frame.bottom], [left, frame.bottom]];
            svg.polygon(&corners, Ink::Prompt, 0.2);
        }
        self.axes(&mut svg, &frame);
        if let Some((level, _)) = &self.level {
            let y = frame.y(self.level_of(*level));
            let pen = Pen { dashes: Some("3 3"), ..Pen::new(Ink::Good, 1.2) };
            svg.line([frame.left, y], [frame.right, y], pen);
        }
        for curve in &self.curves {
            self.band(&mut svg, &frame, curve);
        }
        for curve in &self.curves {
            self.curve(&mut svg, &frame, curve);
        }
        for mark in &self.marks {
            let x = frame.x(mark.at);
            svg.line([x, frame.top], [x, frame.bottom], Pen::new(mark.ink, 1.6));
        }
        self.names(&mut svg, &frame);
        self.hovers(&mut svg, &frame);
        svg.finish(canvas, &self.title, &self.description)
    }

    /// Draws the legend, wrapped into lines; returns its bottom.
    fn legend(&self, svg: &mut Svg, top: f64, width: f64) -> f64 {
        const SWATCH: f64 = 18.0;
        let (mut x, mut y) = (58.0, top + 8.0);
        for curve in &self.curves {
            let room = SWATCH + 5.0 + text_width(&curve.name, SMALL) + 14.0;
            if x + room > width && x > 58.0 {
                (x, y) = (58.0, y + 16.0);
            }
            let middle = y - 4.0;
            match curve.style {
                Style::Points => svg.circle([x + SWATCH / 2.0, middle], 3.0, curve.ink),
                style => svg.line([x, middle], [x + SWATCH, middle], pen(curve.ink, style)),
            }
            if curve.style == Style::Marked {
                svg.circle([x + SWATCH / 2.0, middle], 2.5, curve.ink);
            }
            svg.text([x + SWATCH + 5.0, y], TextAnchor::Start, Ink::Text, &curve.name);
            x += room;
        }
        y
    }

    fn axes(&self, svg: &mut Svg, frame: &Frame) {
        let grid = Pen::new(Ink::Grid, 1.0);
        for (level, text) in self.value_ticks(frame) {
            let y = frame.y(level);
            svg.line([frame.left, y], [frame.right, y], grid);
            svg.text([frame.left - 6.0, y + 4.0], TextAnchor::End, Ink::WeakText, &text);
        }
        let per_unit = (frame.right - frame.left) / (frame.along[1] - frame.along[0]);
        let places: Vec<f64> = match &self.along {
            Along::Layers(layers) => {
                let ticks = whole_ticks(0, layers.saturating_sub(1), per_unit, 26.0);
                ticks.into_iter().map(|tick| tick as f64).collect()
            }
            Along::Cutoffs(layers) => {
                let ticks = whole_ticks(0, *layers, per_unit, 26.0);
                ticks.into_iter().map(|tick| tick as f64).collect()
            }
            Along::Values { range, .. } => ticks(range[0], range[1], 8),
        };
        for place in places {
            let x = frame.x(place);
            svg.line([x, frame.bottom], [x, frame.bottom + 4.0], Pen::new(Ink::Line, 1.0));
            svg.text([x, frame.bottom + 16.0], TextAnchor::Middle, Ink::WeakText, &short(place as f32));
        }
        let corner = [frame.left, frame.bottom];
        svg.line(corner, [frame.right, frame.bottom], Pen::new(Ink::Line, 1.0));
        svg.line(corner, [frame.left, frame.top], Pen::new(Ink::Line, 1.0));
        let (middle, centre) = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
        svg.text([middle, frame.bottom + 32.0], TextAnchor::Middle, Ink::WeakText, self.along.name());
        // Keeps a name longer than its axis within the image.
        let half = text_width(&self.unit, SMALL) / 2.0;
        let centre = centre.max(half + 4.0);
        svg.upwards([13.0, centre], Ink::WeakText, &self.unit);
    }

    /// Ticks of the value axis: levels and texts.
    fn value_ticks(&self, frame: &Frame) -> Vec<(f64, String)> {
        let [lower, upper] = frame.values;
        let most = ((frame.bottom - frame.top) / 30.0).clamp(2.0, 8.0) as usize;
        if !self.logarithmic {
            return ticks(lower, upper, most).into_iter().map(|tick| (tick, short(tick as f32))).collect();
        }
        if upper - lower < 1.0 {
            let values = ticks(10_f64.powf(lower), 10_f64.powf(upper), most);
            let above = values.into_iter().filter(|value| *value > 0.0);
            return above.map(|value| (value.log10(), short(value as f32))).collect();
        }
        let decades = (lower.ceil() as i32)..=(upper.floor() as i32);
        let name = |decade: i32| match decade {
            // The lowest tick includes all smaller values.
            -5 => "≤1e-5".to_owned(),
            -3..=3 => short(10_f32.powi(decade)),
            _ => format!("1e{decade}"),
        };
        decades.map(|decade| (f64::from(decade), name(decade))).collect()
    }

    fn band(&self, svg: &mut Svg, frame: &Frame, curve: &Curve) {
        let Some((lower, upper)) = &curve.band else { return };
        let defined = lower.iter().zip(upper).enumerate();
        let defined = defined.filter(|(_, (lower, upper))| lower.is_finite() && upper.is_finite());
        let edge = |index: usize, value: f64| {
            [frame.x(self.along.place(curve, index)), frame.y(self.level_of(value))]
        };
        let (mut points, mut back) = (vec![], vec![]);
        for (index, (lower, upper)) in defined {
            points.push(edge(index, *upper));
            back.push(edge(index, *lower));
        }
        points.extend(back.into_iter().rev());
        if points.len() > 2 {
            svg.polygon(&points, curve.ink, 0.16);
        }
    }

    fn curve(&self, svg: &mut Svg, frame: &Frame, curve: &Curve) {
        let point = |(index, value): (usize, &f64)| {
            let point = [frame.x(self.along.place(curve, index)), frame.y(self.level_of(*value))];
            (value.is_finite() && point[0].is_finite()).then_some(point)
        };
        let points: Vec<Option<[f64; 2]>> = curve.values.iter().enumerate().map(point).collect();
        // An undefined value splits the line.
        for piece in points.split(Option::is_none) {
            let piece: Vec<[f64; 2]> = piece.iter().flatten().copied().collect();
            if curve.style != Style::Points && piece.len() > 1 {
                svg.polyline(&piece, pen(curve.ink, curve.style));
            }
            if matches!(curve.style, Style::Points | Style::Marked) || piece.len() == 1 {
                piece.into_iter().for_each(|point| svg.circle(point, 2.8, curve.ink));
            }
        }
    }

    /// Tooltips with the values at each position of the axis, over the area nearest to it.
    fn hovers(&self, svg: &mut Svg, frame: &Frame) {
        let places = self.places();
        for (index, &at) in places.iter().enumerate() {
            let mut text = self.along.place_name(at);
            for curve in &self.curves {
                let here = (0..curve.values.len()).find(|index| self.along.place(curve, *index) == at);
                let value = here.map(|index| curve.values[index]).filter(|value| value.is_finite());
                if let Some(value) = value {
                    text.push_str(&format!("\n{}: {}", curve.name, short(value as f32)));
                }
            }
            let middle = |other: Option<&f64>| other.map(|other| frame.x((at + other) / 2.0));
            let before = index.checked_sub(1).and_then(|index| places.get(index));
            let left = middle(before).unwrap_or(frame.left).max(frame.left);
            let right = middle(places.get(index + 1)).unwrap_or(frame.right).min(frame.right);
            if right > left {
                svg.hover([left, frame.top, right - left, frame.bottom - frame.top], &text);
            }
        }
    }

    /// Positions of values on the axis, in ascending order.
    fn places(&self) -> Vec<f64> {
        let of_curve = |curve: &'_ Curve| -> Vec<f64> {
            (0..curve.values.len()).map(|index| self.along.place(curve, index)).collect()
        };
        let mut places: Vec<f64> =
            self.curves.iter().flat_map(of_curve).filter(|at| at.is_finite()).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }
}

fn pen(ink: Ink, style: Style) -> Pen {
    Pen { dashes: (style == Style::Dashed).then_some("6 4"), ..Pen::new(ink, 1.8) }
}

/// The plot's area and axis ranges.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    along: [f64; 2],
    values: [f64; 2],
}

impl Frame {
    pub(super) fn x(&self, at: f64) -> f64 {
        self.left + (at - self.along[0]) / (self.along[1] - self.along[0]) * (self.right - self.left)
    }

    pub(super) fn y(&self, level: f64) -> f64 {
        let share = (level - self.values[0]) / (self.values[1] - self.values[0]);
        self.bottom - share * (self.bottom - self.top)
    }
}
