//! Curves over layers, cutoffs or any other axis.

use crate::axis::{ticks, whole_ticks};
use crate::colour::Ink;
use crate::number::short;
use crate::svg::{Anchor, Canvas, Pen, SMALL, Svg, text_width};

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// As a line.
    #[default]
    Line,
    /// As a dashed line.
    Dashed,
    /// As points alone.
    Points,
    /// As a line with a point at each value.
    Marked,
}

/// One curve: a value at each place of the axis. Undefined values are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
    /// Its values.
    pub values: Vec<f64>,
    /// Where they stand along [`Along::Values`]; elsewhere each has its place.
    pub at: Vec<f64>,
    /// Lower and upper edge of its spread.
    pub band: Option<(Vec<f64>, Vec<f64>)>,
    /// How it is drawn.
    pub style: Style,
}

impl Curve {
    /// A line without spread.
    pub fn new(name: impl Into<String>, ink: Ink, values: Vec<f64>) -> Self {
        Self { name: name.into(), ink, values, at: vec![], band: None, style: Style::Line }
    }

    /// With a spread.
    #[must_use]
    pub fn with_band(mut self, lower: Vec<f64>, upper: Vec<f64>) -> Self {
        self.band = Some((lower, upper));
        self
    }

    /// Drawn in another style.
    #[must_use]
    pub fn styled(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// With a place for each value, along [`Along::Values`].
    #[must_use]
    pub fn placed(mut self, at: Vec<f64>) -> Self {
        self.at = at;
        self
    }
}

/// What stands along a chart's axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Along {
    /// Layers 0 … L−1; a curve of L+1 values begins with the embedding, at −1.
    Layers(usize),
    /// Cutoffs 1 … L.
    Cutoffs(usize),
    /// Values of their own: each curve says where.
    Values {
        /// The axis's name, with its unit.
        name: String,
        /// Lower and upper end.
        range: [f64; 2],
    },
}

impl Along {
    /// Number of layers; 0 where there are none.
    pub fn layers(&self) -> usize {
        match self {
            Self::Layers(layers) | Self::Cutoffs(layers) => *layers,
            Self::Values { .. } => 0,
        }
    }

    /// Where the nth value of a curve stands.
    pub fn place(&self, curve: &Curve, index: usize) -> f64 {
        match self {
            Self::Layers(layers) if curve.values.len() > *layers => index as f64 - 1.0,
            Self::Layers(_) => index as f64,
            Self::Cutoffs(_) => index as f64 + 1.0,
            Self::Values { .. } => curve.at.get(index).copied().unwrap_or(f64::NAN),
        }
    }

    /// Where the ends stand. Of layers, the cutoff c is at the lower end plus c.
    pub fn ends(&self) -> [f64; 2] {
        match self {
            Self::Layers(layers) => [-0.5, *layers as f64 - 0.5],
            Self::Cutoffs(layers) => [0.0, *layers as f64],
            Self::Values { range, .. } => *range,
        }
    }

    /// The axis's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Layers(_) => "layer",
            Self::Cutoffs(_) => "cutoff (layers kept)",
            Self::Values { name, .. } => name,
        }
    }

    /// A place in words.
    pub fn place_name(&self, at: f64) -> String {
        match self {
            Self::Layers(_) if at < -0.5 => "embedding".to_owned(),
            Self::Layers(_) => format!("layer {at:.0}"),
            Self::Cutoffs(_) => format!("cutoff {at:.0}"),
            Self::Values { name, .. } => format!("{name} {}", short(at as f32)),
        }
    }
}

/// A line across the axis, such as the cutoff.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where it stands along the axis.
    pub at: f64,
    /// What it is.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// Unit of its values.
    pub unit: String,
    /// What it shows, in a sentence or two, for those who do not see it.
    pub description: String,
    /// What stands along it.
    pub along: Along,
    /// Its curves.
    pub curves: Vec<Curve>,
    /// Whether values are shown by their logarithm, none below [`LEAST_LOGARITHM`].
    pub logarithmic: bool,
    /// Lower and upper end of the axis, where they are known; further values widen it.
    pub range: Option<[f64; 2]>,
    /// A level to compare with, and its name.
    pub level: Option<(f64, String)>,
    /// Lines across the axis.
    pub marks: Vec<Mark>,
    /// Layers that are set off by a tint.
    pub selected: Vec<usize>,
}

/// Least value that a logarithmic axis shows.
pub const LEAST_LOGARITHM: f64 = 1e-5;

impl Chart {
    /// A chart without curves.
    pub fn new(title: impl Into<String>, unit: impl Into<String>, along: Along) -> Self {
        Self {
            title: title.into(),
            unit: unit.into(),
            description: String::new(),
            along,
            curves: vec![],
            logarithmic: false,
            range: None,
            level: None,
            marks: vec![],
            selected: vec![],
        }
    }

    /// With a line at a cutoff of its layers.
    #[must_use]
    pub fn with_cutoff(mut self, cutoff: usize) -> Self {
        let at = self.along.ends()[0] + cutoff as f64;
        self.marks.push(Mark { at, name: format!("L_cut = {cutoff}"), ink: Ink::Cutoff });
        self
    }

    /// A value as the axis has it: its logarithm where the chart is logarithmic.
    pub fn level_of(&self, value: f64) -> f64 {
        if self.logarithmic && value.is_finite() { value.max(LEAST_LOGARITHM).log10() } else { value }
    }

    /// Ends of the axis along the curves; where one begins with the embedding, there is room for that.
    fn place_ends(&self) -> [f64; 2] {
        let [lower, upper] = self.along.ends();
        let embedding = self.along.layers() > 0
            && self.curves.iter().any(|curve| !curve.values.is_empty() && self.along.place(curve, 0) < lower);
        [if embedding { -1.3 } else { lower }, upper]
    }

    /// Ends of the value axis: everything drawn, and some air.
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
        // A share that ends at 0 ends there.
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
            // Layer ℓ lies between the cutoffs ℓ and ℓ+1.
            let from = self.along.ends()[0] + *layer as f64;
            let [left, right] = [from, from + 1.0].map(|at| frame.x(at));
            let corners =
                [[left, frame.top], [right, frame.top], [right, frame.bottom], [left, frame.bottom]];
            svg.polygon(&corners, Ink::Prompt, 0.2);
        }
        self.axes(&mut svg, &frame);
        if let Some((level, name)) = &self.level {
            let y = frame.y(self.level_of(*level));
            let pen = Pen { dashes: Some("3 3"), ..Pen::new(Ink::Good, 1.2) };
            svg.line([frame.left, y], [frame.right, y], pen);
            svg.rimmed([frame.left + 4.0, y - 4.0], Anchor::Start, Ink::Good, name);
        }
        for curve in &self.curves {
            self.band(&mut svg, &frame, curve);
        }
        for curve in &self.curves {
            self.curve(&mut svg, &frame, curve);
        }
        for (index, mark) in self.marks.iter().enumerate() {
            let x = frame.x(mark.at);
            svg.line([x, frame.top], [x, frame.bottom], Pen::new(mark.ink, 1.6));
            let room = text_width(&mark.name, SMALL) + 5.0;
            let y = frame.top + 11.0 + 14.0 * index as f64;
            match x - room > frame.left {
                true => svg.rimmed([x - 4.0, y], Anchor::End, mark.ink, &mark.name),
                false => svg.rimmed([x + 4.0, y], Anchor::Start, mark.ink, &mark.name),
            }
        }
        self.hovers(&mut svg, &frame);
        svg.finish(canvas, &self.title, &self.description)
    }

    /// Names of the curves with their colours, in as many lines as they need; where they end.
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
            svg.text([x + SWATCH + 5.0, y], Anchor::Start, Ink::Text, &curve.name);
            x += room;
        }
        y
    }

    fn axes(&self, svg: &mut Svg, frame: &Frame) {
        let grid = Pen::new(Ink::Grid, 1.0);
        for (level, text) in self.value_ticks(frame) {
            let y = frame.y(level);
            svg.line([frame.left, y], [frame.right, y], grid);
            svg.text([frame.left - 6.0, y + 4.0], Anchor::End, Ink::WeakText, &text);
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
            svg.text([x, frame.bottom + 16.0], Anchor::Middle, Ink::WeakText, &short(place as f32));
        }
        let corner = [frame.left, frame.bottom];
        svg.line(corner, [frame.right, frame.bottom], Pen::new(Ink::Line, 1.0));
        svg.line(corner, [frame.left, frame.top], Pen::new(Ink::Line, 1.0));
        let (middle, centre) = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
        svg.text([middle, frame.bottom + 32.0], Anchor::Middle, Ink::WeakText, self.along.name());
        // A name longer than its axis stays within the image.
        let half = text_width(&self.unit, SMALL) / 2.0;
        let centre = centre.max(half + 4.0);
        svg.upwards([13.0, centre], Ink::WeakText, &self.unit);
    }

    /// Levels and texts of the value axis.
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
            // The least stands for everything below it, too.
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
        // A line ends where a value is undefined, and begins anew behind it.
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

    /// The values at each layer or cutoff, for the pointer.
    fn hovers(&self, svg: &mut Svg, frame: &Frame) {
        let first = match self.along {
            Along::Layers(_) => 0,
            Along::Cutoffs(_) => 1,
            Along::Values { .. } => return,
        };
        for place in first..first + self.along.layers() {
            let at = place as f64;
            let mut text = self.along.place_name(at);
            for curve in &self.curves {
                let offset = self.along.place(curve, 0);
                let value = curve.values.get((at - offset).max(0.0) as usize).copied();
                if let Some(value) = value.filter(|value| value.is_finite()) {
                    text.push_str(&format!("\n{}: {}", curve.name, short(value as f32)));
                }
            }
            let (left, right) = (frame.x(at - 0.5).max(frame.left), frame.x(at + 0.5).min(frame.right));
            if right > left {
                svg.hover([left, frame.top, right - left, frame.bottom - frame.top], &text);
            }
        }
    }
}

fn pen(ink: Ink, style: Style) -> Pen {
    Pen { dashes: (style == Style::Dashed).then_some("6 4"), ..Pen::new(ink, 1.8) }
}

/// Where the plot stands, and what its ends mean.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    along: [f64; 2],
    values: [f64; 2],
}

impl Frame {
    fn x(&self, at: f64) -> f64 {
        self.left + (at - self.along[0]) / (self.along[1] - self.along[0]) * (self.right - self.left)
    }

    fn y(&self, level: f64) -> f64 {
        let share = (level - self.values[0]) / (self.values[1] - self.values[0]);
        self.bottom - share * (self.bottom - self.top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colour::Theme;
    use crate::svg::Colours;
    use proptest::prelude::*;

    fn canvas() -> Canvas<'static> {
        Canvas { size: [420.0, 260.0], colours: Colours::Of(Theme::Light), titled: true, id: "chart" }
    }

    fn points(svg: &str, tag: &str) -> Vec<Vec<[f64; 2]>> {
        let document = roxmltree::Document::parse(svg).expect("XML");
        let lines = document.descendants().filter(|node| node.has_tag_name(tag));
        let parse = |text: &str| {
            let (x, y) = text.split_once(',').expect("a pair");
            [x.parse().expect("x"), y.parse().expect("y")]
        };
        lines.map(|line| line.attribute("points").expect("points").split(' ').map(parse).collect()).collect()
    }

    #[test]
    fn values_stand_where_the_axes_say() {
        let mut chart = Chart::new("Mass", "share", Along::Layers(5));
        chart.range = Some([0.0, 1.0]);
        chart.curves.push(Curve::new("a", Ink::Prompt, vec![0.0, 0.5, f64::NAN, 1.0, 0.25]));
        let lines = points(&chart.to_svg(&canvas()), "polyline");
        // The undefined value splits the line.
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        let (step, unit) = (lines[0][1][0] - lines[0][0][0], (lines[0][0][1] - lines[0][1][1]) / 0.5);
        assert!((lines[1][0][0] - lines[0][0][0] - 3.0 * step).abs() < 0.05);
        assert!((lines[0][0][1] - lines[1][1][1] - 0.25 * unit).abs() < 0.05);
    }

    #[test]
    fn the_embedding_stands_before_the_first_layer() {
        let along = Along::Layers(3);
        let [long, short] = [4, 3].map(|len| Curve::new("", Ink::Text, vec![0.0; len]));
        assert_eq!((along.place(&long, 0), along.place(&short, 0)), (-1.0, 0.0));
        assert_eq!(along.place_name(-1.0), "embedding");
    }

    #[test]
    fn a_curve_that_begins_with_the_embedding_stays_within_the_frame() {
        let mut chart = Chart::new("Straightening", "degrees", Along::Layers(3));
        chart.curves.push(Curve::new("a", Ink::Series(0), vec![0.0, -1.0, -2.0, -3.0]));
        let svg = chart.with_cutoff(2).to_svg(&canvas());
        let line = &points(&svg, "polyline")[0];
        assert!(line[0][0] > 58.0, "{line:?}");
        // The cutoff of 2 lies between layers 1 and 2.
        let cutoff = (line[2][0] + line[3][0]) / 2.0;
        assert!(svg.contains(&format!("<line x1=\"{}\"", crate::svg::number(cutoff))), "{cutoff} {svg}");
    }

    #[test]
    fn every_axis_has_a_name_and_a_unit() {
        let chart = Chart::new("Divergence", "KL, nats", Along::Cutoffs(30)).with_cutoff(25);
        let svg = chart.to_svg(&canvas());
        for text in ["Divergence", "KL, nats", "cutoff (layers kept)", "L_cut = 25"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_values_give_an_image_within_its_bounds(
            values in proptest::collection::vec(prop_oneof![-1e9..1e9_f64, 0.0..1.0_f64, Just(f64::NAN), Just(f64::INFINITY)], 0..40),
            logarithmic: bool,
        ) {
            let mut chart = Chart::new("any", "unit", Along::Layers(values.len()));
            chart.logarithmic = logarithmic;
            chart.curves.push(Curve::new("a", Ink::Series(0), values.clone()).with_band(values.clone(), values));
            for line in points(&chart.to_svg(&canvas()), "polyline") {
                for [x, y] in line {
                    prop_assert!((0.0..=420.0).contains(&x) && (0.0..=260.0).contains(&y), "{x} {y}");
                }
            }
        }
    }
}
