//! Scores of policies at tasks: a line for each category and metric, with the differences from the first policy beside them.

use crate::axis::ticks;
use crate::colour::Ink;
use crate::svg::{Canvas, Pen, SMALL, Surface, Svg, TextAnchor, text_width};
use crate::trade_off::marker;

/// Scores by category and policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Its title.
    pub title: String,
    /// A text alternative of one or two sentences.
    pub description: String,
    /// The policies; differences are from the first.
    pub policies: Vec<String>,
    /// Lines, with those of a metric together.
    pub rows: Vec<ScoreRow>,
}

/// A line of scores.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRow {
    /// The metric; a heading stands where it changes.
    pub metric: String,
    /// The category.
    pub category: String,
    /// Items.
    pub items: usize,
    /// One for each policy.
    pub marks: Vec<ScoreMark>,
}

/// A policy in a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreMark {
    /// Its score, %.
    pub score: f64,
    /// Its difference from the first policy, percentage points: mean, and the ends of its interval, NaN where there is none; `None` for
    /// the first policy itself.
    pub difference: Option<[f64; 3]>,
}

const MARGIN: f64 = 10.0;
const RIGHT: f64 = 16.0;
const GAP: f64 = 26.0;
/// Space above the first line that titled figures have.
const TITLED: f64 = 26.0;
const LEGEND_LINE: f64 = 17.0;
const HEADING: f64 = 24.0;
/// Height of a line, beside what its policies take.
const LINE: f64 = 11.0;
const OF_POLICY: f64 = 13.0;
/// Space below for the axes.
const AXES: f64 = 42.0;
const LONGEST_NAME: f64 = 190.0;
/// Room for a difference in figures, and the width from which on there is some.
const FIGURES: f64 = 128.0;
const ROOM_FOR_FIGURES: f64 = 640.0;

impl Scores {
    /// Its height at a width, CSS pixels.
    pub fn height(&self, width: f64, titled: bool) -> f64 {
        let headings = self.headings().count() as f64 * HEADING;
        self.top(width, titled) + headings + self.rows.len() as f64 * self.line() + AXES
    }

    /// The figure as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        let mut svg = Svg::new(canvas.colours);
        self.draw(canvas.size[0], canvas.titled, &mut svg);
        svg.finish(canvas, &self.title, &self.description)
    }

    /// Draws the figure at this width on a surface.
    pub fn draw(&self, width: f64, titled: bool, surface: &mut dyn Surface) {
        if titled {
            surface.title([MARGIN, 18.0], &self.title);
        }
        self.legend(surface, width, titled);
        let (top, bottom) = (self.top(width, titled), self.height(width, titled) - AXES);
        let (scores, differences) = self.panels(width);
        scores.axis(surface, [top, bottom], "score, %");
        if let Some(panel) = differences {
            let first = self.policies.first().map_or("", String::as_str);
            panel.axis(surface, [top, bottom], &format!("difference from {first}, points"));
            let zero = panel.x(0.0);
            surface.polyline(&[[zero, top], [zero, bottom]], Pen::new(Ink::Line, 1.2));
        }
        let mut y = top;
        for (index, row) in self.rows.iter().enumerate() {
            if self.headings().any(|heading| heading == index) {
                surface.rimmed([MARGIN, y + 17.0], TextAnchor::Start, Ink::Text, &row.metric);
                y += HEADING;
            }
            surface.polyline(&[[MARGIN, y], [width - RIGHT, y]], Pen::new(Ink::Grid, 1.0));
            self.row(surface, row, y, (scores, differences), width);
            y += self.line();
        }
    }

    fn row(
        &self,
        surface: &mut dyn Surface,
        row: &ScoreRow,
        top: f64,
        (scores, differences): (Panel, Option<Panel>),
        width: f64,
    ) {
        let middle = top + self.line() / 2.0;
        let label = format!("{} · {}", row.category, row.items);
        surface.text([MARGIN + 8.0, middle + 4.0], TextAnchor::Start, Ink::WeakText, &shortened(&label));
        for (policy, mark) in row.marks.iter().enumerate() {
            let y = top + LINE / 2.0 + (policy as f64 + 0.5) * OF_POLICY;
            let ink = ink(policy);
            if mark.score.is_finite() {
                surface.polygon(&marker(policy, [scores.x(mark.score), y]), ink);
            }
            let figures = mark.difference.map(told).unwrap_or_default();
            let name = self.policies.get(policy).map_or("", String::as_str);
            let about = format!("{name}\n{}, {}: {:.1} %\n{figures}", row.category, row.metric, mark.score);
            surface.hover([MARGIN, y - OF_POLICY / 2.0, width - 2.0 * MARGIN, OF_POLICY], about.trim_end());
            let (Some(panel), Some([mean, lower, upper])) = (differences, mark.difference) else { continue };
            if lower.is_finite() && upper.is_finite() {
                let [from, to] = [lower, upper].map(|end| panel.x(end));
                surface.polyline(&[[from, y], [to, y]], Pen::new(ink, 1.6));
                for x in [from, to] {
                    surface.polyline(&[[x, y - 3.0], [x, y + 3.0]], Pen::new(ink, 1.6));
                }
            }
            if mean.is_finite() {
                surface.polygon(&marker(policy, [panel.x(mean), y]), ink);
            }
            if has_figures(width) {
                surface.text([width - RIGHT, y + 4.0], TextAnchor::End, Ink::Text, &figures);
            }
        }
    }

    /// The areas of scores and, where several policies are compared, of differences.
    fn panels(&self, width: f64) -> (Panel, Option<Panel>) {
        let labels =
            self.rows.iter().map(|row| text_width(&format!("{} · {}", row.category, row.items), SMALL));
        let left = MARGIN + 8.0 + labels.fold(60.0, f64::max).min(LONGEST_NAME) + 14.0;
        let scores = |width: f64| Panel { left, width: width.max(40.0), ends: [0.0, 100.0] };
        if self.policies.len() < 2 {
            return (scores(width - RIGHT - left), None);
        }
        let room = width - left - RIGHT - GAP - if has_figures(width) { FIGURES } else { 0.0 };
        let scores = scores(room * 0.42);
        let differences = Panel {
            left: left + scores.width + GAP,
            width: (room - scores.width).max(40.0),
            ends: self.difference_ends(),
        };
        (scores, Some(differences))
    }

    /// The ends of the axis of differences, with 0 between them.
    fn difference_ends(&self) -> [f64; 2] {
        let marks = self.rows.iter().flat_map(|row| &row.marks).filter_map(|mark| mark.difference);
        let values = marks.flatten().filter(|value| value.is_finite());
        let [lower, upper] =
            values.fold([0.0, 0.0], |[lower, upper]: [f64; 2], value| [lower.min(value), upper.max(value)]);
        let air = ((upper - lower) * 0.06).max(1.0);
        [lower - air, upper + air]
    }

    /// The rows before which a metric's name stands.
    fn headings(&self) -> impl Iterator<Item = usize> {
        (0..self.rows.len()).filter(|&row| row == 0 || self.rows[row - 1].metric != self.rows[row].metric)
    }

    fn line(&self) -> f64 {
        LINE + self.policies.len().max(1) as f64 * OF_POLICY
    }

    fn top(&self, width: f64, titled: bool) -> f64 {
        let lines = self.legend_places(width).last().map_or(0.0, |[_, line]| line + 1.0);
        (if titled { TITLED } else { 2.0 }) + lines * LEGEND_LINE + 6.0
    }

    /// The x and line of each policy in the legend.
    fn legend_places(&self, width: f64) -> Vec<[f64; 2]> {
        let (mut x, mut line) = (MARGIN, 0.0);
        let place = |policy: &String| {
            let room = 16.0 + text_width(policy, SMALL) + 18.0;
            if x + room > width && x > MARGIN {
                (x, line) = (MARGIN, line + 1.0);
            }
            x += room;
            [x - room, line]
        };
        self.policies.iter().map(place).collect()
    }

    fn legend(&self, surface: &mut dyn Surface, width: f64, titled: bool) {
        let first = if titled { TITLED } else { 2.0 } + 12.0;
        for (policy, ([x, line], name)) in
            self.legend_places(width).into_iter().zip(&self.policies).enumerate()
        {
            let y = first + line * LEGEND_LINE;
            surface.polygon(&marker(policy, [x + 5.0, y - 4.0]), ink(policy));
            surface.text([x + 16.0, y], TextAnchor::Start, Ink::Text, name);
        }
    }
}

/// The first policy is in the text's colour.
fn ink(policy: usize) -> Ink {
    policy.checked_sub(1).map_or(Ink::Text, Ink::Series)
}

fn has_figures(width: f64) -> bool {
    width >= ROOM_FOR_FIGURES
}

/// A difference and its interval, with a sign that is as wide as a plus.
fn told([mean, lower, upper]: [f64; 3]) -> String {
    let signed = |value: f64| match value {
        _ if value.is_nan() => "–".to_owned(),
        _ if value.abs() < 0.05 => "0.0".to_owned(),
        _ => format!("{value:+.1}").replace('-', "−"),
    };
    format!("{} [{}, {}]", signed(mean), signed(lower), signed(upper))
}

/// A label that fits beside its line.
fn shortened(label: &str) -> String {
    if text_width(label, SMALL) <= LONGEST_NAME {
        return label.to_owned();
    }
    let fitting = (LONGEST_NAME / text_width("x", SMALL)) as usize;
    label.chars().take(fitting.saturating_sub(1)).chain(['…']).collect()
}

/// A panel's place and the ends of its axis.
#[derive(Debug, Clone, Copy)]
struct Panel {
    left: f64,
    width: f64,
    ends: [f64; 2],
}

impl Panel {
    fn x(&self, value: f64) -> f64 {
        self.left + (value - self.ends[0]) / (self.ends[1] - self.ends[0]) * self.width
    }

    fn axis(&self, surface: &mut dyn Surface, [top, bottom]: [f64; 2], name: &str) {
        for tick in ticks(self.ends[0], self.ends[1], (self.width / 44.0).max(2.0) as usize) {
            let x = self.x(tick);
            surface.polyline(&[[x, top], [x, bottom]], Pen::new(Ink::Grid, 1.0));
            surface.polyline(&[[x, bottom], [x, bottom + 4.0]], Pen::new(Ink::Line, 1.0));
            let text = format!("{tick}").replace('-', "−");
            surface.text([x, bottom + 16.0], TextAnchor::Middle, Ink::WeakText, &text);
        }
        let right = self.left + self.width;
        surface.polyline(&[[self.left, bottom], [right, bottom]], Pen::new(Ink::Line, 1.0));
        surface.text([self.left + self.width / 2.0, bottom + 32.0], TextAnchor::Middle, Ink::WeakText, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Colours, Theme};

    fn scores(policies: &[&str]) -> Scores {
        let mark = |policy: usize| ScoreMark {
            score: 60.0 - 5.0 * policy as f64,
            difference: (policy > 0).then_some([-5.0, -9.0, f64::NAN]),
        };
        let row = |metric: &str, category: &str| ScoreRow {
            metric: metric.into(),
            category: category.into(),
            items: 40,
            marks: (0..policies.len()).map(mark).collect(),
        };
        Scores {
            title: "Scores".into(),
            description: "Of two tasks.".into(),
            policies: policies.iter().map(ToString::to_string).collect(),
            rows: vec![row("acc", "all"), row("acc", "a <category>"), row("f1", &"long ".repeat(40))],
        }
    }

    #[test]
    fn every_policy_has_its_mark_and_every_metric_its_heading() {
        let figure = scores(&["full", "speed:24+bos"]);
        for width in [300.0, 940.0] {
            let size = [width, figure.height(width, true)];
            let canvas = Canvas { size, colours: Colours::Of(Theme::Light), titled: true, id: "s" };
            let svg = figure.to_svg(&canvas);
            // Two in the legend, a score for each, and the differences of one.
            assert_eq!(svg.matches("<polygon").count(), 2 + 3 * 3);
            assert_eq!(svg.matches(">f1</text>").count(), 2, "rimmed texts are drawn twice");
            assert!(svg.contains("a &lt;category&gt; · 40") && svg.contains("difference from full, points"));
            assert_eq!(svg.contains("−5.0 [−9.0, –]</text>"), width > 700.0);
        }
        let alone = scores(&["full"]);
        let canvas = Canvas { size: [500.0, 200.0], colours: Colours::Properties, titled: false, id: "s" };
        assert!(!alone.to_svg(&canvas).contains("difference"));
    }

    #[test]
    fn differences_have_a_sign() {
        assert_eq!(told([4.16, -0.01, 12.5]), "+4.2 [0.0, +12.5]");
    }
}
