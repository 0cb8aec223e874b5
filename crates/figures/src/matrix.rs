//! Heat maps of queries × keys, of any part of a text.

use crate::axis::whole_ticks;
use crate::colour::{Colour, ColourMap, Ink};
use crate::heat::{cell, image, scale_bar, striped, undefined};
use crate::map::ColumnRange;
use crate::number::{exact, token_label};
use crate::scale::Scale;
use crate::svg::{Canvas, Colours, Pen, SMALL, Svg, TextAnchor, text_width};
use std::ops::Range;

/// The value of a cell all of whose keys come after its queries: nothing is drawn.
pub const UNSEEN: f32 = f32::NEG_INFINITY;

/// Cells of queries × keys, row by row. NaN is striped, [`UNSEEN`] is left blank.
#[derive(Debug, Clone, PartialEq)]
pub struct Cells {
    /// Position of the first query and of the first key.
    pub first: [usize; 2],
    /// Queries and keys of a cell.
    pub cell: [usize; 2],
    /// Columns of cells.
    pub columns: usize,
    /// The values.
    pub values: Vec<f32>,
}

impl Cells {
    /// Rows of cells.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// The value of the cell that a query and a key are in; [`UNSEEN`] outside.
    pub fn at(&self, query: usize, key: usize) -> f32 {
        let place = |position: usize, axis: usize| {
            Some(position.checked_sub(self.first[axis])? / self.cell[axis].max(1))
        };
        let (Some(row), Some(column)) = (place(query, 0), place(key, 1)) else { return UNSEEN };
        if column >= self.columns {
            return UNSEEN;
        }
        self.values.get(row * self.columns + column).copied().unwrap_or(UNSEEN)
    }

    /// The largest value of some cells; NaN where all are striped or blank and one is striped.
    fn largest(&self, rows: &Range<usize>, columns: &Range<usize>) -> f32 {
        let (mut largest, mut striped) = (UNSEEN, false);
        for row in rows.clone() {
            for &value in &self.values[row * self.columns + columns.start..row * self.columns + columns.end] {
                striped |= value.is_nan();
                largest = if value > largest { value } else { largest };
            }
        }
        if striped && largest == UNSEEN { f32::NAN } else { largest }
    }

    /// The cells under each of `pixels` pixels along an axis of which `span` positions are shown.
    fn under_pixels(&self, axis: usize, span: ColumnRange, pixels: usize) -> Vec<Range<usize>> {
        let cells = if axis == 0 { self.rows() } else { self.columns };
        let size = self.cell[axis].max(1) as f64;
        let per_pixel = span.width() / pixels.max(1) as f64 / size;
        let start = (span.start - self.first[axis] as f64) / size;
        let under = |pixel: usize| {
            let from = start + pixel as f64 * per_pixel;
            let first = if per_pixel < 1.0 { from + per_pixel / 2.0 } else { from }.floor();
            if first < 0.0 || first >= cells as f64 {
                return 0..0;
            }
            let first = first as usize;
            let end = if per_pixel < 1.0 { first + 1 } else { (from + per_pixel).ceil() as usize };
            first..end.clamp(first + 1, cells.max(first + 1))
        };
        (0..pixels).map(under).collect()
    }
}

/// Width of a stripe, pixels.
const STRIPE: usize = 3;

/// Pixels row by row, `size` wide and high; each shows the largest value under it. Stripes run from the upper right to the lower left.
pub fn matrix_pixels(
    cells: &Cells,
    [queries, keys]: [ColumnRange; 2],
    [width, height]: [usize; 2],
    scale: &Scale,
    colours: ColourMap,
    undefined: [Colour; 2],
    blank: Colour,
) -> Vec<Colour> {
    let colours = colours.colours();
    let (rows, columns) = (cells.under_pixels(0, queries, height), cells.under_pixels(1, keys, width));
    let mut pixels = vec![blank; width * height];
    let mut values = vec![UNSEEN; width];
    for (y, line) in pixels.chunks_exact_mut(width.max(1)).enumerate() {
        if y == 0 || rows[y] != rows[y - 1] {
            for (value, columns) in values.iter_mut().zip(&columns) {
                *value = if rows[y].is_empty() || columns.is_empty() {
                    UNSEEN
                } else {
                    cells.largest(&rows[y], columns)
                };
            }
        }
        for (x, (pixel, &value)) in line.iter_mut().zip(&values).enumerate() {
            *pixel = if value == UNSEEN {
                blank
            } else if value.is_nan() {
                undefined[(x + y) / STRIPE % 2]
            } else {
                colours[(scale.position(0, value) * 255.0) as usize]
            };
        }
    }
    pixels
}

/// A part of an attention pattern: queries (downwards) × keys.
#[derive(Debug, Clone)]
pub struct Matrix<'a> {
    /// Its title.
    pub title: String,
    /// What the colours measure, with the unit.
    pub unit: String,
    /// A text alternative of one or two sentences.
    pub description: String,
    /// The cells.
    pub cells: &'a Cells,
    /// The scale of the colours.
    pub scale: &'a Scale,
    /// The colour map.
    pub colours: ColourMap,
    /// The queries and the keys that are visible.
    pub span: [ColumnRange; 2],
    /// Names of the axes of queries and of keys.
    pub axes: [String; 2],
    /// A text per position of the text, drawn beside rows and below columns if there is space.
    pub texts: &'a [String],
    /// The position of the first decode row: lines stand before it, as query and as key.
    pub boundary: Option<usize>,
    /// What stripes mean; `None` where there are none.
    pub stripes: Option<&'static str>,
    /// Selected queries and keys, which are framed.
    pub selected: [Vec<usize>; 2],
}

/// Most cells drawn as shapes; more are drawn as an image.
const MOST_SHAPES: usize = 2_500;
/// Most pixels of an image, each way.
const MOST_PIXELS: usize = 1_600;
/// Most cells with an SVG tooltip.
const MOST_HOVERS: usize = 400;
/// Least size of a row, and of a column, with text.
const TEXT_ROW: f64 = 12.0;
/// Characters of a token that are shown.
const SHORT: usize = 12;

impl Matrix<'_> {
    fn shows_texts(&self, axis: usize, size: f64) -> bool {
        !self.texts.is_empty() && size / self.span[axis].width() >= TEXT_ROW
    }

    /// The area of the cells on a canvas: left, top, width and height.
    pub fn area(&self, canvas: &Canvas<'_>) -> [f64; 4] {
        let [width, height] = canvas.size;
        let top = if canvas.titled { 66.0 } else { 40.0 };
        // Whether texts fit depends on the room that is left beside them; both are asked with the larger room.
        let beside = if self.shows_texts(0, height - top - 42.0) { 128.0 } else { 62.0 };
        let below = if self.shows_texts(1, width - beside - 14.0) { 112.0 } else { 42.0 };
        [beside, top, (width - beside - 14.0).max(1.0), (height - top - below).max(1.0)]
    }

    /// The rows and columns of cells in sight.
    fn shown(&self) -> [Range<usize>; 2] {
        [0, 1].map(|axis| {
            let ColumnRange { start, end } = self.span[axis];
            let size = self.cells.cell[axis].max(1) as f64;
            let last = ((end - self.cells.first[axis] as f64) / size).ceil().max(0.0) as usize;
            let cells = if axis == 0 { self.cells.rows() } else { self.cells.columns };
            let last = last.min(cells);
            (((start - self.cells.first[axis] as f64) / size).max(0.0) as usize).min(last)..last
        })
    }

    /// Whether every cell has an SVG tooltip; too many would make the file large.
    pub fn tells_values(&self) -> bool {
        let [rows, columns] = self.shown();
        rows.len() * columns.len() <= MOST_HOVERS
    }

    /// The figure as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        let mut svg = Svg::new(canvas.colours);
        let area = self.area(canvas);
        if canvas.titled {
            svg.title([10.0, 18.0], &self.title);
        }
        self.colour_bar(&mut svg, canvas, area[1] - 32.0);
        self.values(&mut svg, canvas, area);
        self.axis(&mut svg, area, 0);
        self.axis(&mut svg, area, 1);
        self.frames(&mut svg, area);
        svg.finish(canvas, &self.title, &self.description)
    }

    /// The colour bar with its ticks and unit, and what stripes mean.
    fn colour_bar(&self, svg: &mut Svg, canvas: &Canvas<'_>, top: f64) {
        let (left, height) = (14.0, 9.0);
        let named = self.stripes.map_or(0.0, |stripes| 36.0 + text_width(stripes, SMALL));
        let free = canvas.size[0] - left - 40.0 - named - text_width(&self.unit, SMALL);
        let width = (canvas.size[0] * 0.3).min(free).clamp(96.0, 260.0);
        scale_bar(svg, [left, top, width, height], self.colours, self.scale);
        let mut right = left + width + 16.0;
        svg.text([right, top + height], TextAnchor::Start, Ink::Text, &self.unit);
        if let Some(stripes) = self.stripes {
            right += text_width(&self.unit, SMALL) + 16.0;
            striped(svg, canvas.colours, [right, top, height], stripes);
        }
    }

    fn values(&self, svg: &mut Svg, canvas: &Canvas<'_>, area: [f64; 4]) {
        let [left, top, width, height] = area;
        let [rows, columns] = self.shown();
        if rows.is_empty() || columns.is_empty() {
            return svg.frame(area, Pen::new(Ink::Line, 1.0));
        }
        let stripes = undefined(canvas.colours);
        if rows.len() * columns.len() <= MOST_SHAPES {
            svg.raw("<g shape-rendering=\"crispEdges\">");
            for row in rows.clone() {
                for column in columns.clone() {
                    let value = self.cells.values[row * self.cells.columns + column];
                    if value != UNSEEN {
                        let colour = match value.is_nan() {
                            true => stripes[(row + column) % 2],
                            false => self.colours.colours()[(self.scale.position(0, value) * 255.0) as usize],
                        };
                        cell(svg, self.place(area, row..row + 1, column..column + 1), &colour.to_string());
                    }
                }
            }
            svg.raw("</g>");
        } else {
            // A pixel for each cell where whole cells are shown; else fine ones, so that cells are at their positions.
            let pixels = |axis: usize, cells: usize, points: f64| {
                let ColumnRange { start, end } = self.span[axis];
                let size = self.cells.cell[axis].max(1) as f64;
                let is_whole = |edge: f64| (edge - self.cells.first[axis] as f64) % size == 0.0;
                let fine =
                    if is_whole(start) && is_whole(end) { 1.0 } else { (points * 2.0 / cells as f64).ceil() };
                (cells * fine.max(1.0) as usize).min(MOST_PIXELS)
            };
            let size = [pixels(1, columns.len(), width), pixels(0, rows.len(), height)];
            // On pages with both themes, what is blank is the light theme's background.
            let blank = match canvas.colours {
                Colours::Of(theme) => theme.palette().background,
                Colours::Properties => crate::Theme::Light.palette().background,
            };
            let pixels = matrix_pixels(self.cells, self.span, size, self.scale, self.colours, stripes, blank);
            image(svg, area, &pixels, size);
        }
        svg.frame([left, top, width, height], Pen::new(Ink::Line, 1.0));
        if self.tells_values() {
            self.hovers(svg, area, rows, columns);
        }
    }

    /// The area of some cells.
    fn place(
        &self,
        [left, top, width, height]: [f64; 4],
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> [f64; 4] {
        let edge = |axis: usize, index: usize| {
            let position = (self.cells.first[axis] + index * self.cells.cell[axis]) as f64;
            ((position - self.span[axis].start) / self.span[axis].width()).clamp(0.0, 1.0)
        };
        let [x, right] = [columns.start, columns.end].map(|index| left + edge(1, index) * width);
        let [y, bottom] = [rows.start, rows.end].map(|index| top + edge(0, index) * height);
        [x, y, right - x, bottom - y]
    }

    fn hovers(&self, svg: &mut Svg, area: [f64; 4], rows: Range<usize>, columns: Range<usize>) {
        for row in rows {
            for column in columns.clone() {
                let value = self.cells.values[row * self.cells.columns + column];
                if value == UNSEEN {
                    continue;
                }
                let name = |axis: usize, index: usize| {
                    let first = self.cells.first[axis] + index * self.cells.cell[axis];
                    match self.cells.cell[axis] {
                        1 => match self.texts.get(first) {
                            Some(text) => format!("{} {first}: “{}”", self.axes[axis], token_label(text)),
                            None => format!("{} {first}", self.axes[axis]),
                        },
                        size => format!("{} {first}–{}", self.axes[axis], first + size - 1),
                    }
                };
                let text = format!("{}\n{}\n{}", name(0, row), name(1, column), exact(value));
                svg.hover(self.place(area, row..row + 1, column..column + 1), &text);
            }
        }
    }

    /// Positions, and tokens where there is room.
    fn axis(&self, svg: &mut Svg, [left, top, width, height]: [f64; 4], axis: usize) {
        let span = self.span[axis];
        let size = if axis == 0 { height } else { width };
        let along = size / span.width();
        let start = if axis == 0 { top } else { left };
        let at = |position: usize| start + (position as f64 + 0.5 - span.start) * along;
        let is_shown = |position: usize| (start..=start + size).contains(&at(position));
        let (first, last) = (span.start.max(0.0) as usize, (span.end.ceil() as usize).saturating_sub(1));
        let texts = self.shows_texts(axis, size);
        let least = if axis == 0 { 15.0 } else { 46.0 };
        for position in whole_ticks(first, last, along, least).into_iter().filter(|&p| is_shown(p)) {
            let (pen, text) = (Pen::new(Ink::Line, 1.0), position.to_string());
            if axis == 0 {
                let y = at(position);
                svg.line([left - 4.0, y], [left, y], pen);
                svg.text([left - 7.0, y + 4.0], TextAnchor::End, Ink::WeakText, &text);
            } else {
                let x = at(position);
                svg.line([x, top + height], [x, top + height + 3.0], pen);
                svg.text([x, top + height + 15.0], TextAnchor::Middle, Ink::WeakText, &text);
            }
        }
        if texts {
            for (position, text) in self.texts.iter().enumerate().take(last + 1).skip(first) {
                if !is_shown(position) {
                    continue;
                }
                let label = token_label(text);
                let mut short: String = label.chars().take(SHORT).collect();
                if short.len() < label.len() {
                    short.push('…');
                }
                if axis == 0 {
                    svg.text([left - 44.0, at(position) + 4.0], TextAnchor::End, Ink::Text, &short);
                } else {
                    svg.downwards([at(position) - 3.0, top + height + 20.0], Ink::Text, &short);
                }
            }
        }
        if axis == 0 {
            svg.upwards([11.0, top + height / 2.0], Ink::WeakText, &self.axes[0]);
        } else {
            let below = if texts { 104.0 } else { 34.0 };
            svg.text(
                [left + width / 2.0, top + height + below],
                TextAnchor::Middle,
                Ink::WeakText,
                &self.axes[1],
            );
        }
    }

    /// Where the generated text begins, and what is selected.
    fn frames(&self, svg: &mut Svg, [left, top, width, height]: [f64; 4]) {
        let share = |axis: usize, position: f64| {
            let ColumnRange { start, .. } = self.span[axis];
            (position - start) / self.span[axis].width()
        };
        if let Some(boundary) = self.boundary {
            let pen = Pen::new(Ink::WeakText, 1.0).dashed("3 3");
            let (y, x) = (share(0, boundary as f64), share(1, boundary as f64));
            if y > 0.0 && y < 1.0 {
                svg.line([left, top + y * height], [left + width, top + y * height], pen);
            }
            if x > 0.0 && x < 1.0 {
                svg.line([left + x * width, top], [left + x * width, top + height], pen);
            }
        }
        for (axis, selected) in self.selected.iter().enumerate() {
            let places = selected.iter().filter_map(|&position| {
                let (from, to) = (share(axis, position as f64), share(axis, position as f64 + 1.0));
                // The frame of a position thinner than a pixel must be visible.
                let size = if axis == 0 { height } else { width };
                let (middle, half) = ((from + to) / 2.0 * size, ((to - from) / 2.0 * size).max(1.5));
                let is_shown = middle >= 0.0 && middle <= size;
                is_shown.then_some(match axis {
                    0 => [left, top + middle - half, width, 2.0 * half],
                    _ => [left + middle - half, top, 2.0 * half, height],
                })
            });
            for place in places {
                svg.frame(place, Pen::new(Ink::Background, 3.0));
                svg.frame(place, Pen::new(Ink::Text, 1.4));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colour::Theme;
    use crate::pyramid::Pyramid;
    use crate::scale::ScaleKind;

    fn scale() -> Scale {
        Scale::fit(ScaleKind::Linear, &Pyramid::from_rows(&[0.0, 1.0], 1, 2), false, false)
    }

    /// A triangle of single pairs, one of them hot, and one row without keys.
    fn triangle(rows: usize) -> Cells {
        let value = |row: usize, column: usize| match (row, column) {
            _ if column > row => UNSEEN,
            (2, _) => f32::NAN,
            _ if (row, column) == (rows - 1, rows / 2) => 1.0,
            _ => 0.1,
        };
        let values = (0..rows * rows).map(|index| value(index / rows, index % rows)).collect();
        Cells { first: [0, 0], cell: [1, 1], columns: rows, values }
    }

    fn all(rows: usize) -> [ColumnRange; 2] {
        [ColumnRange { start: 0.0, end: rows as f64 }; 2]
    }

    #[test]
    fn a_hot_pair_is_seen_at_every_size() {
        const BLANK: Colour = Colour { rgb: [1, 2, 3] };
        let stripes = Theme::Light.palette().undefined;
        let hot = ColourMap::Viridis.colours()[255];
        for pixels in [1, 7, 50, 100, 333] {
            let cells = triangle(100);
            let map = ColourMap::Viridis;
            let image = matrix_pixels(&cells, all(100), [pixels; 2], &scale(), map, stripes, BLANK);
            assert_eq!(image.len(), pixels * pixels);
            assert!(image.contains(&hot), "{pixels}");
            if pixels >= 100 {
                assert_eq!(image[pixels - 1], BLANK);
                assert!(image.contains(&stripes[0]) && image.contains(&stripes[1]));
            }
        }
    }

    #[test]
    fn cells_are_found_by_their_positions() {
        let cells = Cells { first: [10, 4], cell: [2, 4], columns: 2, values: vec![1.0, 2.0, 3.0, 4.0] };
        assert_eq!([(10, 4), (11, 7), (12, 8), (13, 11)].map(|(q, k)| cells.at(q, k)), [1.0, 1.0, 4.0, 4.0]);
        assert_eq!([(9, 4), (10, 3), (14, 4), (10, 12)].map(|(q, k)| cells.at(q, k)), [UNSEEN; 4]);
    }

    fn figure(rows: usize) -> String {
        let (cells, scale) = (triangle(rows), scale());
        let texts: Vec<String> = (0..rows).map(|index| format!("<{index}>")).collect();
        let matrix = Matrix {
            title: "Attention pattern".into(),
            unit: "share of attention".into(),
            description: "queries × keys".into(),
            cells: &cells,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: all(rows),
            axes: ["query".into(), "key".into()],
            texts: &texts,
            boundary: Some(rows - 2),
            stripes: Some("does not exist"),
            selected: [vec![1], vec![0]],
        };
        let colours = Colours::Of(Theme::Light);
        matrix.to_svg(&Canvas { size: [700.0, 640.0], colours, titled: true, id: "p" })
    }

    #[test]
    fn few_cells_are_shapes_with_tokens_and_many_an_image() {
        let (few, many) = (figure(16), figure(600));
        for svg in [&few, &many] {
            roxmltree::Document::parse(svg).expect("XML");
            for text in ["Attention pattern", "share of attention", "query", "key", "does not exist"] {
                assert!(svg.contains(text), "{text}");
            }
            assert_eq!(svg.matches("stroke-width=\"1.4\"").count(), 2);
        }
        assert!(
            few.contains("&lt;7&gt;") && few.contains("query 15: “&lt;15&gt;”\nkey 8: “&lt;8&gt;”\n1.0"),
            "{few}"
        );
        assert!(!few.contains("<image") && many.contains("<image"));
        assert!(many.len() < 200_000, "{}", many.len());
    }
}
