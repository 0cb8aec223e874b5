//! Charts of curves over layers, cutoffs or any other axis.

mod drawing;
mod names;

use crate::colour::Ink;
use crate::number::short;

/// Line style of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// A line.
    #[default]
    Line,
    /// A dashed line.
    Dashed,
    /// Points only.
    Points,
    /// A line with a point at each value.
    Marked,
}

/// A curve: one value per position of the axis. Undefined values are gaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
    /// Its values.
    pub values: Vec<f64>,
    /// Their positions on an axis of [`Along::Values`]; unused on other axes.
    pub at: Vec<f64>,
    /// Lower and upper edge of its spread.
    pub band: Option<(Vec<f64>, Vec<f64>)>,
    /// Its line style.
    pub style: Style,
}

impl Curve {
    /// A line without spread.
    pub fn new(name: impl Into<String>, ink: Ink, values: Vec<f64>) -> Self {
        Self { name: name.into(), ink, values, at: vec![], band: None, style: Style::Line }
    }

    /// The nth of several series: differs from others by colour, and from its neighbours by dashes.
    pub fn series(name: impl Into<String>, index: usize, values: Vec<f64>) -> Self {
        let style = if index % 2 == 1 { Style::Dashed } else { Style::Line };
        Self::new(name, Ink::Series(index), values).styled(style)
    }

    /// Adds a spread.
    #[must_use]
    pub fn with_band(mut self, lower: Vec<f64>, upper: Vec<f64>) -> Self {
        self.band = Some((lower, upper));
        self
    }

    /// Sets the line style.
    #[must_use]
    pub fn styled(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Sets the position of each value, for [`Along::Values`].
    #[must_use]
    pub fn placed(mut self, at: Vec<f64>) -> Self {
        self.at = at;
        self
    }
}

/// The horizontal axis of a chart.
#[derive(Debug, Clone, PartialEq)]
pub enum Along {
    /// Layers 0 … L−1. A curve of L+1 values begins with the embedding, at −1.
    Layers(usize),
    /// Cutoffs 1 … L.
    Cutoffs(usize),
    /// Any values: each curve has its own positions.
    Values {
        /// The axis's name, with its unit.
        name: String,
        /// Lower and upper end.
        range: [f64; 2],
    },
}

impl Along {
    /// Number of layers; 0 on an axis without layers.
    pub fn layers(&self) -> usize {
        match self {
            Self::Layers(layers) | Self::Cutoffs(layers) => *layers,
            Self::Values { .. } => 0,
        }
    }

    /// Position of a curve's nth value.
    pub fn place(&self, curve: &Curve, index: usize) -> f64 {
        match self {
            Self::Layers(layers) if curve.values.len() > *layers => index as f64 - 1.0,
            Self::Layers(_) => index as f64,
            Self::Cutoffs(_) => index as f64 + 1.0,
            Self::Values { .. } => curve.at.get(index).copied().unwrap_or(f64::NAN),
        }
    }

    /// Ends of the axis. On an axis of layers, cutoff c is at the lower end plus c.
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

    /// A position as text.
    pub fn place_name(&self, at: f64) -> String {
        match self {
            Self::Layers(_) if at < -0.5 => "embedding".to_owned(),
            Self::Layers(_) => format!("layer {at:.0}"),
            Self::Cutoffs(_) => format!("cutoff {at:.0}"),
            Self::Values { name, .. } => format!("{name} {}", short(at as f32)),
        }
    }
}

/// A vertical line, such as the cutoff.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Its position on the axis.
    pub at: f64,
    /// Its label.
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
    /// A text alternative of one or two sentences.
    pub description: String,
    /// Its horizontal axis.
    pub along: Along,
    /// Its curves.
    pub curves: Vec<Curve>,
    /// Whether the value axis is logarithmic; it starts at [`LEAST_LOGARITHM`] at the lowest.
    pub logarithmic: bool,
    /// Lower and upper end of the value axis, if known; values outside extend it.
    pub range: Option<[f64; 2]>,
    /// A horizontal reference line, and its name.
    pub level: Option<(f64, String)>,
    /// Vertical lines.
    pub marks: Vec<Mark>,
    /// Layers with a tinted background.
    pub selected: Vec<usize>,
}

/// Smallest value on a logarithmic axis.
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

    /// Adds a line at a cutoff.
    #[must_use]
    pub fn with_cutoff(mut self, cutoff: usize) -> Self {
        let at = self.along.ends()[0] + cutoff as f64;
        self.marks.push(Mark { at, name: format!("L_cut = {cutoff}"), ink: Ink::Cutoff });
        self
    }

    /// A value in axis units: its logarithm if the chart is logarithmic.
    pub fn level_of(&self, value: f64) -> f64 {
        if self.logarithmic && value.is_finite() { value.max(LEAST_LOGARITHM).log10() } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colour::Theme;
    use crate::svg::{Canvas, Colours, SMALL};
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
    fn names_stand_where_no_curve_passes_and_none_hides_another() {
        let mut chart = Chart::new("Divergence", "KL, nats", Along::Cutoffs(10)).with_cutoff(5);
        chart.marks.push(Mark { at: 5.0, name: "another".into(), ink: Ink::Series(1) });
        chart.level = Some((0.95, "tolerance".into()));
        // High before the cutoff and low after it: at the top, there is space to the right of it.
        let falling = (1..=10).map(|cutoff| if cutoff < 5 { 1.0 } else { 0.0 });
        chart.curves.push(Curve::new("a", Ink::Series(0), falling.collect()));
        let svg = chart.to_svg(&canvas());
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let place = |name: &str| {
            let texts = document.descendants().filter(|node| node.has_tag_name("text"));
            let mut named = texts.filter(|node| node.text() == Some(name));
            let node = named.next_back().expect("a name");
            let [x, y] = ["x", "y"]
                .map(|at| node.attribute(at).and_then(|at| at.parse::<f64>().ok()).expect("a number"));
            (x, y, node.attribute("text-anchor"))
        };
        let (cutoff, other, level) = (place("L_cut = 5"), place("another"), place("tolerance"));
        assert_eq!((cutoff.2, level.2), (None, Some("end")), "{svg}");
        assert!((cutoff.1 - other.1).abs() > SMALL);
    }

    #[test]
    fn every_axis_has_a_name_and_a_unit() {
        let chart = Chart::new("Divergence", "KL, nats", Along::Cutoffs(30)).with_cutoff(25);
        let svg = chart.to_svg(&canvas());
        for text in ["Divergence", "KL, nats", "cutoff (layers kept)", "L_cut = 25"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn every_place_tells_the_pointer_its_values() {
        let along = Along::Values { name: "prompt tokens".into(), range: [0.0, 2_048.0] };
        let mut chart = Chart::new("Time", "s", along);
        chart.curves.push(Curve::new("full", Ink::Series(0), vec![1.5, 3.25]).placed(vec![512.0, 2_048.0]));
        chart
            .curves
            .push(Curve::new("pop", Ink::Series(1), vec![f64::NAN, 2.5]).placed(vec![512.0, 2_048.0]));
        let svg = chart.to_svg(&canvas());
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let hovers = document.descendants().filter(|node| node.attribute("class") == Some("hover"));
        let texts: Vec<&str> = hovers.filter_map(|node| node.first_child()?.text()).collect();
        assert_eq!(texts, ["prompt tokens 512\nfull: 1.5", "prompt tokens 2048\nfull: 3.25\npop: 2.5"]);
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
