//! Heat maps of layers × columns.

use crate::axis::whole_ticks;
use crate::colour::{Colour, ColourMap, Ink};
use crate::heat::{cell, image, scale_bar, striped, undefined};
use crate::number::{exact, token_label};
use crate::pyramid::{Pyramid, PyramidPart};
use crate::scale::Scale;
use crate::svg::{Canvas, Pen, SMALL, Svg, TextAnchor, text_width};
use std::collections::BTreeSet;
use std::ops::Range;

/// A range of columns with fractional ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnRange {
    /// Left edge, columns.
    pub start: f64,
    /// Right edge, columns.
    pub end: f64,
}

impl ColumnRange {
    /// Number of columns.
    pub fn width(self) -> f64 {
        self.end - self.start
    }
}

/// Width of a stripe of an undefined cell, pixels.
const STRIPE: usize = 3;

/// Pixels row by row, one per map row and `width` per row: each shows the maximum of its columns.
///
/// `without_first` omits the first column. Undefined cells are striped in the two colours of `undefined`.
pub fn pixels(
    values: &Pyramid,
    scale: &Scale,
    colours: ColourMap,
    span: ColumnRange,
    width: usize,
    without_first: bool,
    undefined: [Colour; 2],
) -> Vec<Colour> {
    let rows = values.rows().max(1);
    let colours = colours.colours();
    let mut pixels = vec![undefined[0]; width * rows];
    let mut largest = vec![f32::NAN; rows];
    let mut previous = usize::MAX..usize::MAX;
    let per_pixel = span.width() / width as f64;
    for pixel in 0..width {
        let columns = under(pixel, span, per_pixel, without_first);
        if columns != previous {
            if columns.is_empty() {
                largest.fill(f32::NAN);
            } else if is_one_by_one(&columns, without_first) {
                values.max_of_each(columns.clone(), &mut largest);
            } else {
                values.max_over(columns.clone(), &mut largest);
            }
            previous = columns;
        }
        let stripe = undefined[(pixel / STRIPE) % 2];
        for (row, &value) in largest.iter().enumerate() {
            let position = scale.position(row, value);
            pixels[row * width + pixel] =
                if position.is_nan() { stripe } else { colours[(position * 255.0) as usize] };
        }
    }
    pixels
}

/// The columns under a pixel.
fn under(pixel: usize, span: ColumnRange, per_pixel: f64, without_first: bool) -> Range<usize> {
    let start = span.start + pixel as f64 * per_pixel;
    let first = start.max(0.0) as usize;
    let mut columns = first..((start + per_pixel).ceil().max(0.0) as usize).max(first + 1);
    if per_pixel < 1.0 {
        // Zoomed in, a pixel shows the column at its centre.
        let column = (start + per_pixel / 2.0).max(0.0) as usize;
        columns = column..column + 1;
    }
    if without_first {
        columns.start = columns.start.max(1);
    }
    columns
}

/// Whether columns are read one by one: near the edge, groups would include the omitted column. These are the first pixels of a
/// zoomed-out map, of which each covers many columns.
fn is_one_by_one(columns: &Range<usize>, without_first: bool) -> bool {
    without_first && columns.start < 8
}

/// The parts that [`pixels`] would read and that are not there, coarse ones first.
pub fn lacking(values: &Pyramid, span: ColumnRange, width: usize, without_first: bool) -> Vec<PyramidPart> {
    if values.is_whole() {
        return vec![];
    }
    let per_pixel = span.width() / width as f64;
    let mut parts = BTreeSet::new();
    for pixel in 0..width {
        let columns = under(pixel, span, per_pixel, without_first);
        let columns = columns.start..columns.end.min(values.columns());
        let (level, _) = values.level_for(columns.len());
        let level = if is_one_by_one(&columns, without_first) { 0 } else { level };
        values.note_lacking(level, columns, &mut parts);
    }
    let mut parts: Vec<PyramidPart> = parts.into_iter().collect();
    parts.sort_by_key(|part| match *part {
        PyramidPart::Groups { level, index } => (std::cmp::Reverse(level), index),
        PyramidPart::Sample { .. } => (std::cmp::Reverse(0), 0),
    });
    parts
}

/// A heat map of layers (downwards) × columns.
#[derive(Debug, Clone)]
pub struct Map<'a> {
    /// Its title.
    pub title: String,
    /// What the colours measure, with the unit.
    pub unit: String,
    /// A text alternative of one or two sentences.
    pub description: String,
    /// Values, a row for each layer.
    pub values: &'a Pyramid,
    /// The scale of the colours.
    pub scale: &'a Scale,
    /// The colour map.
    pub colours: ColourMap,
    /// The visible columns.
    pub span: ColumnRange,
    /// Whether the first column is omitted.
    pub without_first: bool,
    /// Name of the column axis.
    pub column_name: String,
    /// A text per column, drawn below it if there is space.
    pub column_texts: &'a [String],
    /// The cutoff: a line between two layers.
    pub cutoff: Option<usize>,
}

/// A framed part of a map, such as a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outline {
    /// A layer.
    Row(usize),
    /// A column.
    Column(usize),
    /// A layer at a column.
    Cell(usize, usize),
}

/// Most cells drawn as shapes; more are drawn as an image.
const MOST_SHAPES: usize = 4_096;
/// Most pixels per row of an image.
const MOST_PIXELS: usize = 2_048;
/// Most cells with an SVG tooltip.
const MOST_HOVERS: usize = 400;
/// Minimum width of a column with text.
const TEXT_COLUMN: f64 = 12.0;
/// Characters of a text that are shown below its column.
const SHORT: usize = 9;

impl Map<'_> {
    /// The area of the cells on a canvas: left, top, width and height.
    pub fn cells(&self, canvas: &Canvas<'_>) -> [f64; 4] {
        let [width, height] = canvas.size;
        let (left, right) = (52.0, width - 14.0);
        let top = if canvas.titled { 66.0 } else { 40.0 };
        let foot = if self.shows_texts(right - left) { 102.0 } else { 40.0 };
        [left, top, right - left, (height - foot - top).max(1.0)]
    }

    fn shows_texts(&self, width: f64) -> bool {
        !self.column_texts.is_empty() && width / self.span.width() >= TEXT_COLUMN
    }

    /// Whether every cell has an SVG tooltip; too many would make the file large.
    pub fn tells_values(&self) -> bool {
        self.columns().len() * self.values.rows() <= MOST_HOVERS
    }

    /// Whether any cell is striped: undefined, or in the omitted column.
    fn shows_undefined(&self) -> bool {
        let (columns, rows) = (self.columns(), self.values.rows());
        let first = self.without_first && columns.start == 0;
        first
            || columns.into_iter().any(|column| (0..rows).any(|row| self.values.value(row, column).is_nan()))
    }

    /// The columns that are visible, fully or partly.
    fn columns(&self) -> Range<usize> {
        self.span.start.max(0.0) as usize..self.span.end.ceil() as usize
    }

    /// The map as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        self.outlined(canvas, &[])
    }

    /// The map as SVG, with frames around parts of it.
    pub fn outlined(&self, canvas: &Canvas<'_>, outlines: &[Outline]) -> String {
        let mut svg = Svg::new(canvas.colours);
        let area = self.cells(canvas);
        if canvas.titled {
            svg.title([10.0, 18.0], &self.title);
        }
        self.colour_bar(&mut svg, canvas, area[1] - 32.0);
        self.values(&mut svg, canvas, area);
        self.axes(&mut svg, area);
        // Each has an outline, to be visible on any colour; outlines are below all frames.
        let places: Vec<_> = outlines.iter().filter_map(|outline| self.place(area, *outline)).collect();
        for pen in [Pen::new(Ink::Background, 4.0), Pen::new(Ink::Text, 1.8)] {
            places.iter().for_each(|place| svg.frame(*place, pen));
        }
        if let Some(cutoff) = self.cutoff.filter(|cutoff| *cutoff < self.values.rows()) {
            let [left, top, width, height] = area;
            let y = top + height * cutoff as f64 / self.values.rows() as f64;
            svg.line([left, y], [left + width, y], Pen::new(Ink::Background, 4.0));
            svg.line([left, y], [left + width, y], Pen::new(Ink::Cutoff, 2.0));
            let name = format!("L_cut = {cutoff}");
            svg.plate([left + width - 4.0, y - 6.0], Ink::Cutoff, &name);
        }
        svg.finish(canvas, &self.title, &self.description)
    }

    /// The colour bar with its ticks and unit, and the legend for undefined cells.
    fn colour_bar(&self, svg: &mut Svg, canvas: &Canvas<'_>, top: f64) {
        let (left, height) = (52.0, 9.0);
        // The unit follows the bar on the same line.
        let free = canvas.size[0] - left - 122.0 - text_width(&self.unit, SMALL);
        let width = (canvas.size[0] * 0.34).min(free).clamp(120.0, 260.0);
        scale_bar(svg, [left, top, width, height], self.colours, self.scale);
        let right = left + width + 18.0;
        if !self.shows_undefined() {
            return svg.text([right, top + height], TextAnchor::Start, Ink::Text, &self.unit);
        }
        striped(svg, canvas.colours, [right, top, height], "undefined");
        svg.text([right + 90.0, top + height], TextAnchor::Start, Ink::Text, &self.unit);
    }

    fn values(&self, svg: &mut Svg, canvas: &Canvas<'_>, area: [f64; 4]) {
        let rows = self.values.rows();
        if rows == 0 || self.values.columns() == 0 {
            return;
        }
        let columns = self.columns();
        let stripes = undefined(canvas.colours);
        let pixels = |span: ColumnRange, width: usize| {
            pixels(self.values, self.scale, self.colours, span, width, self.without_first, stripes)
        };
        if columns.len() * rows <= MOST_SHAPES {
            let all = ColumnRange { start: columns.start as f64, end: columns.end as f64 };
            self.shapes(svg, area, columns.clone(), &pixels(all, columns.len()));
        } else {
            // With fractional ends, uses the finest pixels, so that columns are at their positions.
            let whole = self.span.start.fract() == 0.0 && self.span.end.fract() == 0.0;
            let width = if whole { columns.len().min(MOST_PIXELS) } else { MOST_PIXELS };
            image(svg, area, &pixels(self.span, width), [width, rows]);
        }
        svg.frame(area, Pen::new(Ink::Line, 1.0));
        if self.tells_values() {
            self.hovers(svg, area, columns);
        }
    }

    /// X of a column's left edge, limited to the area.
    fn edge(&self, [left, _, width, _]: [f64; 4], column: f64) -> f64 {
        left + ((column - self.span.start) / self.span.width()).clamp(0.0, 1.0) * width
    }

    /// A rectangle for each run of equal cells.
    fn shapes(&self, svg: &mut Svg, area: [f64; 4], columns: Range<usize>, pixels: &[Colour]) {
        let [_, top, _, height] = area;
        let down = height / self.values.rows() as f64;
        svg.raw("<g shape-rendering=\"crispEdges\">");
        for (row, colours) in pixels.chunks_exact(columns.len()).enumerate() {
            let mut column = columns.start;
            for run in colours.chunk_by(|a, b| a == b) {
                let [left, right] = [column, column + run.len()].map(|column| self.edge(area, column as f64));
                // Overlaps the next row, so that no gap is visible.
                let overlap = if row + 1 < self.values.rows() { 0.3 } else { 0.0 };
                // Overlaps the next column, too.
                let across = if column + run.len() < columns.end { 0.3 } else { 0.0 };
                let place = [left, top + row as f64 * down, right - left + across, down + overlap];
                cell(svg, place, &run[0].to_string());
                column += run.len();
            }
        }
        svg.raw("</g>");
    }

    fn hovers(&self, svg: &mut Svg, area: [f64; 4], columns: Range<usize>) {
        let [_, top, _, height] = area;
        let down = height / self.values.rows() as f64;
        for row in 0..self.values.rows() {
            for column in columns.clone() {
                let mut text = format!("layer {row}, {} {column}", self.column_name);
                if let Some(token) = self.column_texts.get(column) {
                    text.push_str(&format!(": “{}”", token_label(token)));
                }
                text.push_str(&format!("\n{}", exact(self.values.value(row, column))));
                let [left, right] = [column, column + 1].map(|column| self.edge(area, column as f64));
                svg.hover([left, top + row as f64 * down, right - left, down], &text);
            }
        }
    }

    /// The area of a framed part; `None` if it is not visible.
    fn place(&self, area: [f64; 4], outline: Outline) -> Option<[f64; 4]> {
        let [left, top, width, height] = area;
        let (row, column) = match outline {
            Outline::Row(row) => (Some(row), None),
            Outline::Column(column) => (None, Some(column)),
            Outline::Cell(row, column) => (Some(row), Some(column)),
        };
        let [left, right] = column.map_or([left, left + width], |column| {
            [column, column + 1].map(|column| self.edge(area, column as f64))
        });
        let rows = self.values.rows();
        let shown = row.map_or(0..rows, |row| row..row + 1);
        if left >= right || shown.end > rows {
            return None;
        }
        // The frame of a column thinner than a pixel must be visible.
        let (middle, half) = ((left + right) / 2.0, ((right - left) / 2.0).max(1.5));
        let down = height / rows as f64;
        Some([middle - half, top + shown.start as f64 * down, 2.0 * half, shown.len() as f64 * down])
    }

    fn axes(&self, svg: &mut Svg, [left, top, width, height]: [f64; 4]) {
        let rows = self.values.rows();
        let down = height / rows.max(1) as f64;
        for layer in whole_ticks(0, rows.saturating_sub(1), down, 15.0) {
            let y = top + (layer as f64 + 0.5) * down;
            svg.line([left - 4.0, y], [left, y], Pen::new(Ink::Line, 1.0));
            svg.text([left - 7.0, y + 4.0], TextAnchor::End, Ink::WeakText, &layer.to_string());
        }
        svg.upwards([13.0, top + height / 2.0], Ink::WeakText, "layer");
        let across = width / self.span.width();
        let x = |column: usize| left + (column as f64 + 0.5 - self.span.start) * across;
        let last = (self.span.end.ceil() as usize).saturating_sub(1);
        for column in whole_ticks(self.span.start.max(0.0) as usize, last, across, 46.0) {
            if (left..=left + width).contains(&x(column)) {
                svg.line(
                    [x(column), top + height],
                    [x(column), top + height + 3.0],
                    Pen::new(Ink::Line, 1.0),
                );
                svg.text(
                    [x(column), top + height + 15.0],
                    TextAnchor::Middle,
                    Ink::WeakText,
                    &column.to_string(),
                );
            }
        }
        let mut below = 32.0;
        if self.shows_texts(width) {
            below = 94.0;
            let shown = self.column_texts.iter().enumerate();
            for (column, text) in shown.take(last + 1).skip(self.span.start.max(0.0) as usize) {
                let label = token_label(text);
                let mut short: String = label.chars().take(SHORT).collect();
                if short.len() < label.len() {
                    short.push('…');
                }
                if (left..=left + width).contains(&x(column)) {
                    svg.downwards([x(column) - 3.0, top + height + 20.0], Ink::Text, &short);
                }
            }
        }
        let middle = [left + width / 2.0, top + height + below];
        svg.text(middle, TextAnchor::Middle, Ink::WeakText, &self.column_name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colour::Theme;
    use crate::scale::ScaleKind;
    use crate::svg::{Colours, number};

    const UNDEFINED: [Colour; 2] = [Colour { rgb: [255, 0, 0] }, Colour { rgb: [0, 0, 255] }];

    fn row(values: &Pyramid, span: ColumnRange, width: usize) -> Vec<Colour> {
        let scale = Scale::fit(ScaleKind::Linear, values, false, true);
        pixels(values, &scale, ColourMap::Viridis, span, width, true, UNDEFINED)
    }

    #[test]
    fn a_hot_column_stays_visible_at_every_zoom_and_the_first_does_not_hide_it() {
        let (columns, hot) = (131_072, 77_777);
        let mut values = vec![0.001; 2 * columns];
        (values[0], values[columns]) = (0.9, 0.9);
        values[columns + hot] = 0.5;
        let pyramid = Pyramid::from_rows(&values, 2, columns);
        let brightest = ColourMap::Viridis.colours()[255];
        let mut half = columns as f64;
        while half > 4.0 {
            let middle = hot as f64 + 0.5;
            let span =
                ColumnRange { start: (middle - half).max(0.0), end: (middle + half).min(columns as f64) };
            let pixels = row(&pyramid, span, 997);
            assert!(pixels[997..].contains(&brightest), "{span:?}");
            assert!(!pixels[..997].contains(&brightest));
            half /= 1.3;
        }
    }

    #[test]
    fn parts_of_what_is_in_sight_draw_the_same_picture() {
        let (rows, columns) = (4, 70_000);
        let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 7_919) % 1_009) as f32).collect();
        let whole = Pyramid::from_rows(&values, rows, columns);
        let scale = Scale::fit(ScaleKind::Linear, &whole, false, true);
        let picture = |values: &Pyramid, span, without_first| {
            pixels(values, &scale, ColourMap::Viridis, span, 640, without_first, UNDEFINED)
        };
        for (start, end) in [(0.0, 70_000.0), (0.0, 3_000.5), (20_000.25, 41_000.0), (69_990.0, 70_000.0)] {
            let span = ColumnRange { start, end };
            for without_first in [true, false] {
                let mut partial = Pyramid::from_top(whole.top(64)).expect("a top");
                let parts = lacking(&partial, span, 640, without_first);
                assert!(parts.is_sorted_by_key(|part| match part {
                    PyramidPart::Groups { level, .. } => std::cmp::Reverse(*level),
                    PyramidPart::Sample { .. } => std::cmp::Reverse(0),
                }));
                let mut sent = 0;
                for part in parts {
                    let values = whole.part(part).expect("a part");
                    sent += values.len();
                    assert!(partial.put(part, values));
                }
                // At most 16 groups under a pixel, a third more of coarser levels, and parts cut at both ends.
                assert!(sent < rows * (640 * 16 * 4 / 3 + 8 * 512), "{sent} of {span:?}");
                assert!(lacking(&partial, span, 640, without_first).is_empty());
                assert_eq!(picture(&partial, span, without_first), picture(&whole, span, without_first));
            }
        }
    }

    #[test]
    fn undefined_cells_are_striped() {
        let pyramid = Pyramid::from_rows(&[1.0, f32::NAN, 1.0, 1.0], 1, 4);
        let pixels = row(&pyramid, ColumnRange { start: 0.0, end: 4.0 }, 40);
        assert!(pixels[..20].iter().all(|pixel| UNDEFINED.contains(pixel)));
        assert!(pixels[20..].iter().all(|pixel| *pixel == ColourMap::Viridis.colours()[255]));
    }

    fn image(columns: usize) -> String {
        let values: Vec<f32> = (0..2 * columns).map(|index| (index % 7) as f32).collect();
        let pyramid = Pyramid::from_rows(&values, 2, columns);
        let scale = Scale::fit(ScaleKind::Linear, &pyramid, false, false);
        let texts: Vec<String> = (0..columns).map(|column| format!("<{column}\n>")).collect();
        let map = Map {
            title: "Attention".into(),
            unit: "share".into(),
            description: "what is read".into(),
            values: &pyramid,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: ColumnRange { start: 0.0, end: columns as f64 },
            without_first: false,
            column_name: "position".into(),
            column_texts: &texts,
            cutoff: Some(1),
        };
        let canvas =
            Canvas { size: [600.0, 300.0], colours: Colours::Of(Theme::Light), titled: true, id: "m" };
        map.to_svg(&canvas)
    }

    #[test]
    fn frames_stand_around_what_is_selected_and_shown() {
        let values = Pyramid::from_rows(&[1.0; 40], 4, 10);
        let scale = Scale::fit(ScaleKind::Linear, &values, false, false);
        let map = Map {
            title: String::new(),
            unit: String::new(),
            description: String::new(),
            values: &values,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: ColumnRange { start: 2.0, end: 7.0 },
            without_first: false,
            column_name: String::new(),
            column_texts: &[],
            cutoff: None,
        };
        let canvas =
            Canvas { size: [600.0, 300.0], colours: Colours::Of(Theme::Light), titled: true, id: "m" };
        let frames = |outline| map.outlined(&canvas, &[outline]).matches("stroke-width=\"1.8\"").count();
        let shown = [Outline::Row(3), Outline::Column(2), Outline::Column(6), Outline::Cell(1, 4)];
        assert_eq!(shown.map(frames), [1; 4]);
        let absent = [Outline::Row(4), Outline::Column(1), Outline::Column(7), Outline::Cell(0, 9)];
        assert_eq!(absent.map(frames), [0; 4]);
        let [left, top, width, height] = map.cells(&canvas);
        let place = [left + width * 0.4, top + height * 0.25].map(number);
        let cell = format!("<rect x=\"{}\" y=\"{}\"", place[0], place[1]);
        assert!(map.outlined(&canvas, &[Outline::Cell(1, 4)]).contains(&cell));
    }

    #[test]
    fn few_cells_are_shapes_and_many_an_image_of_bounded_size() {
        let (few, many) = (image(10), image(131_072));
        for svg in [&few, &many] {
            roxmltree::Document::parse(svg).expect("XML");
            for text in ["Attention", "share", "layer", "position", "L_cut = 1"] {
                assert!(svg.contains(text), "{text}");
            }
        }
        assert!(few.contains("layer 1, position 3: “&lt;3\\n&gt;”\n6.000000"), "{few}");
        assert!(!few.contains("<image") && many.contains("<image"));
        assert!(many.len() < 50_000, "{}", many.len());
    }
}
