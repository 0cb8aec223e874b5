//! Writes SVG 1.1: a canvas, its colours and the elements of figures.

use crate::colour::{Ink, Theme};
use crate::visible::visible;
use std::fmt::Write;

/// The source of a figure's colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// A theme, for standalone files.
    Of(Theme),
    /// CSS custom properties, defined by [`style_sheet`], for figures on a page with both themes.
    Properties,
}

/// The canvas of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Canvas<'a> {
    /// Width and height, CSS pixels.
    pub size: [f64; 2],
    /// Its colours.
    pub colours: Colours,
    /// Whether the title is drawn; a page may show it as a caption instead.
    pub titled: bool,
    /// Prefix of its elements' ids, unique within the page.
    pub id: &'a str,
}

/// CSS that defines the custom properties of [`Colours::Properties`] within a selector, light or dark.
pub fn style_sheet(selector: &str, theme: Theme) -> String {
    let properties = Ink::all().map(|ink| format!("{}:{}", ink.property(), ink.colour(theme)));
    format!("{selector}{{{}}}", properties.collect::<Vec<_>>().join(";"))
}

/// The font attribute, once per SVG.
pub const FIGURE_FONTS: &str = "font-family=\"system-ui, 'DejaVu Sans', sans-serif\"";

/// Font size of axis numbers, names and legends.
pub const SMALL: f64 = 11.0;
/// Font size of titles.
pub const TITLE: f64 = 13.0;

/// Approximate width of a text; fonts differ.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// Horizontal alignment of a text at its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAnchor {
    /// Starts at the point.
    Start,
    /// Centred on the point.
    Middle,
    /// Ends at the point.
    End,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Pen {
    /// Its colour.
    pub ink: Ink,
    /// Its width.
    pub width: f64,
    /// Lengths of dashes and gaps, separated by spaces; solid if empty.
    pub dashes: Option<&'static str>,
}

impl Pen {
    pub(crate) fn new(ink: Ink, width: f64) -> Self {
        Self { ink, width, dashes: None }
    }

    pub(crate) fn dashed(self, dashes: &'static str) -> Self {
        Self { dashes: Some(dashes), ..self }
    }
}

/// A drawing target: SVG or a window. Coordinates are CSS pixels from the upper left corner. Texts are placed
/// by baseline and are [`SMALL`], except titles.
pub trait Surface {
    /// A line through points.
    fn polyline(&mut self, points: &[[f64; 2]], pen: Pen);
    /// A polygon.
    fn polygon(&mut self, points: &[[f64; 2]], ink: Ink);
    /// A text.
    fn text(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str);
    /// A text outlined in the background colour, for text over lines.
    fn rimmed(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str);
    /// A bold, larger text.
    fn title(&mut self, at: [f64; 2], text: &str);
    /// A vertical text that reads upwards, centred on a point.
    fn upwards(&mut self, at: [f64; 2], ink: Ink, text: &str);
    /// A tooltip for an area (left, top, width, height).
    fn hover(&mut self, area: [f64; 4], text: &str);
}

impl Surface for Svg {
    fn polyline(&mut self, points: &[[f64; 2]], pen: Pen) {
        Self::polyline(self, points, pen);
    }

    fn polygon(&mut self, points: &[[f64; 2]], ink: Ink) {
        Self::polygon(self, points, ink, 1.0);
    }

    fn text(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        Self::text(self, at, anchor, ink, text);
    }

    fn rimmed(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        Self::rimmed(self, at, anchor, ink, text);
    }

    fn title(&mut self, at: [f64; 2], text: &str) {
        Self::title(self, at, text);
    }

    fn upwards(&mut self, at: [f64; 2], ink: Ink, text: &str) {
        Self::upwards(self, at, ink, text);
    }

    fn hover(&mut self, area: [f64; 4], text: &str) {
        Self::hover(self, area, text);
    }
}

/// An SVG writer.
pub(crate) struct Svg {
    body: String,
    colours: Colours,
}

impl Svg {
    pub(crate) fn new(colours: Colours) -> Self {
        Self { body: String::new(), colours }
    }

    pub(crate) fn colour(&self, ink: Ink) -> String {
        match self.colours {
            Colours::Of(theme) => ink.colour(theme).to_string(),
            Colours::Properties => format!("var({})", ink.property()),
        }
    }

    pub(crate) fn raw(&mut self, element: impl std::fmt::Display) {
        let _ = writeln!(self.body, "{element}");
    }

    fn stroke(&self, pen: Pen) -> String {
        let dashes = pen.dashes.map_or(String::new(), |dashes| format!(" stroke-dasharray=\"{dashes}\""));
        format!(
            "stroke=\"{}\" stroke-width=\"{}\"{dashes} fill=\"none\"",
            self.colour(pen.ink),
            number(pen.width)
        )
    }

    pub(crate) fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], pen: Pen) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(number);
        let stroke = self.stroke(pen);
        self.raw(format_args!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {stroke}/>"));
    }

    pub(crate) fn polyline(&mut self, points: &[[f64; 2]], pen: Pen) {
        let stroke = self.stroke(pen);
        let points = joined(points);
        self.raw(format_args!("<polyline points=\"{points}\" {stroke} stroke-linejoin=\"round\"/>"));
    }

    pub(crate) fn polygon(&mut self, points: &[[f64; 2]], ink: Ink, opacity: f64) {
        let (fill, points) = (self.colour(ink), joined(points));
        self.raw(format_args!("<polygon points=\"{points}\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>"));
    }

    pub(crate) fn circle(&mut self, [x, y]: [f64; 2], radius: f64, ink: Ink) {
        let (fill, [x, y, r]) = (self.colour(ink), [x, y, radius].map(number));
        self.raw(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\" fill=\"{fill}\"/>"));
    }

    pub(crate) fn frame(&mut self, [x, y, width, height]: [f64; 4], pen: Pen) {
        let stroke = self.stroke(pen);
        let [x, y, width, height] = [x, y, width, height].map(number);
        self.raw(format_args!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {stroke}/>"));
    }

    /// A tooltip for an area.
    pub(crate) fn hover(&mut self, [x, y, width, height]: [f64; 4], text: &str) {
        let [x, y, width, height] = [x, y, width, height].map(number);
        let text = escaped(text);
        self.raw(format_args!(
            "<rect class=\"hover\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             fill-opacity=\"0\"><title>{text}</title></rect>"
        ));
    }

    pub(crate) fn text(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        self.words(at, anchor, ink, text, "");
    }

    /// A bold text.
    pub(crate) fn title(&mut self, at: [f64; 2], text: &str) {
        let style = format!(" font-size=\"{TITLE}\" font-weight=\"600\"");
        self.words(at, TextAnchor::Start, Ink::Text, text, &style);
    }

    /// A text outlined in the background colour, for text over lines.
    pub(crate) fn rimmed(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        let rim = format!(
            " stroke=\"{}\" stroke-width=\"3\" stroke-linejoin=\"round\"",
            self.colour(Ink::Background)
        );
        // Drawn twice, because some SVG renderers ignore paint-order.
        self.words(at, anchor, Ink::Background, text, &format!("{rim} aria-hidden=\"true\""));
        self.words(at, anchor, ink, text, "");
    }

    /// A text on a rectangle in the background colour, for text over colours; `at` is its right end.
    pub(crate) fn plate(&mut self, [x, y]: [f64; 2], ink: Ink, text: &str) {
        let (width, fill) = (text_width(text, SMALL) + 8.0, self.colour(Ink::Background));
        let [left, top, width] = [x - width, y - 11.0, width].map(number);
        self.raw(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"15\" rx=\"2\" fill=\"{fill}\"/>"
        ));
        self.words([x - 4.0, y], TextAnchor::End, ink, text, "");
    }

    /// A vertical text that reads upwards, centred on a point.
    pub(crate) fn upwards(&mut self, [x, y]: [f64; 2], ink: Ink, text: &str) {
        let turned = format!(" transform=\"rotate(-90 {} {})\"", number(x), number(y));
        self.words([x, y], TextAnchor::Middle, ink, text, &turned);
    }

    /// A vertical text that reads downwards from a point.
    pub(crate) fn downwards(&mut self, [x, y]: [f64; 2], ink: Ink, text: &str) {
        let turned = format!(" transform=\"rotate(90 {} {})\"", number(x), number(y));
        self.words([x, y], TextAnchor::Start, ink, text, &turned);
    }

    fn words(&mut self, [x, y]: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str, attributes: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "",
            TextAnchor::Middle => " text-anchor=\"middle\"",
            TextAnchor::End => " text-anchor=\"end\"",
        };
        let (fill, text, [x, y]) = (self.colour(ink), escaped(text), [x, y].map(number));
        self.raw(format_args!("<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\"{anchor}{attributes}>{text}</text>"));
    }

    /// The image, with a title and a description as text alternatives.
    pub(crate) fn finish(self, canvas: &Canvas<'_>, title: &str, description: &str) -> String {
        let [width, height] = canvas.size.map(number);
        let (id, title, description) = (escaped(canvas.id), escaped(title), escaped(description));
        let background = match self.colours {
            Colours::Of(_) => format!(
                "<rect width=\"{width}\" height=\"{height}\" fill=\"{}\"/>\n",
                self.colour(Ink::Background)
            ),
            Colours::Properties => String::new(),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-title\" \
             aria-describedby=\"{id}-description\" {FIGURE_FONTS} font-size=\"{SMALL}\">\n<title id=\"{id}-title\">{title}</title>\n\
             <desc id=\"{id}-description\">{description}</desc>\n{background}{}</svg>\n",
            self.body
        )
    }
}

/// Several figures side by side in one image.
pub struct Panels {
    svg: Svg,
    columns: usize,
    cell: [f64; 2],
    top: f64,
    count: usize,
}

impl Panels {
    /// A grid of figures of size `cell` in `columns` columns, below a wrapped heading.
    pub fn new(colours: Colours, columns: usize, cell: [f64; 2], heading: &str) -> Self {
        const MARGIN: f64 = 10.0;
        let (mut svg, columns) = (Svg::new(colours), columns.max(1));
        let mut top = 0.0;
        for line in lines(heading, columns as f64 * cell[0] - 2.0 * MARGIN) {
            top += 16.0;
            svg.text([MARGIN, top + 2.0], TextAnchor::Start, Ink::WeakText, &line);
        }
        let air = if top > 0.0 { 12.0 } else { 0.0 };
        Self { svg, columns, cell, top: top + air, count: 0 }
    }

    /// Size of one figure.
    pub fn cell(&self) -> [f64; 2] {
        self.cell
    }

    /// Adds a figure of the cell's size, as SVG.
    pub fn push(&mut self, figure: &str) {
        let (column, row) = (self.count % self.columns, self.count / self.columns);
        let (x, y) = (column as f64 * self.cell[0], self.top + row as f64 * self.cell[1]);
        self.svg.raw(format_args!("<g transform=\"translate({} {})\">{figure}</g>", number(x), number(y)));
        self.count += 1;
    }

    /// The image.
    pub fn finish(self, id: &str, title: &str, description: &str) -> String {
        let rows = self.count.div_ceil(self.columns) as f64;
        let columns = self.columns.min(self.count.max(1)) as f64;
        let size = [columns * self.cell[0], self.top + rows * self.cell[1]];
        let canvas = Canvas { size, colours: self.svg.colours, titled: true, id };
        self.svg.finish(&canvas, title, description)
    }
}

/// A text wrapped between words to this width.
fn lines(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line, SMALL) + text_width(word, SMALL) + SMALL / 2.0 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A coordinate with at most two decimals.
pub(crate) fn number(value: f64) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    // Writes −0 as 0.
    format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
}

fn joined(points: &[[f64; 2]]) -> String {
    let points = points.iter().map(|[x, y]| format!("{},{}", number(*x), number(*y)));
    points.collect::<Vec<_>>().join(" ")
}

/// A text escaped for XML and sanitised; this includes all characters that XML forbids.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in visible(text).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(text: &str) -> String {
        let mut svg = Svg::new(Colours::Of(Theme::Light));
        svg.text([1.0, -0.001], TextAnchor::End, Ink::Text, text);
        let canvas = Canvas { size: [10.0, 20.5], colours: svg.colours, titled: true, id: "a" };
        svg.finish(&canvas, text, text)
    }

    proptest! {
        #[test]
        fn any_text_makes_xml_and_comes_back(text in any::<String>()) {
            let image = image(&text);
            let document = roxmltree::Document::parse(&image).expect("XML");
            let shown = document.descendants().find(|node| node.has_tag_name("text")).and_then(|node| node.text());
            prop_assert_eq!(shown.unwrap_or_default(), visible(&text));
        }
    }

    #[test]
    fn properties_are_defined_for_every_ink() {
        let sheet = style_sheet(":root", Theme::Dark);
        assert!(sheet.starts_with(":root{--figure-background:#121418;") && sheet.ends_with('}'));
        for ink in Ink::all() {
            assert!(sheet.contains(&format!("{}:#", ink.property())), "{ink:?}");
        }
    }

    #[test]
    fn panels_stand_in_rows() {
        let mut panels = Panels::new(Colours::Of(Theme::Light), 2, [100.0, 50.0], "three");
        for _ in 0..3 {
            panels.push("<g/>");
        }
        let image = panels.finish("p", "t", "d");
        assert!(image.contains("translate(0 78)") && image.contains("viewBox=\"0 0 200 128\""), "{image}");
    }

    #[test]
    fn a_long_heading_is_broken_between_words() {
        let heading = "one two three four five six seven eight nine ten";
        let lines = lines(heading, 100.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| text_width(line, SMALL) <= 100.0), "{lines:?}");
        assert_eq!(lines.join(" "), heading);
    }
}
