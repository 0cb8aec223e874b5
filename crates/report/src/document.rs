//! The report as a document: headings, text, tables and figures, independent of the output format.

use crate::patching::PatchFigure;
use layerscope_figures::{
    Canvas, Cells, Chart, ColourMap, ColumnRange, Map, Matrix, Pyramid, Scale, ScaleKind, Scores, TradeOff,
};

/// A document.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its title.
    pub(crate) title: String,
    /// One line on the runs behind it.
    pub(crate) subtitle: String,
    /// Its sections.
    pub(crate) sections: Vec<Section>,
}

/// A section.
#[derive(Debug)]
pub(crate) struct Section {
    /// Unique id within the document.
    pub(crate) id: String,
    /// Its title.
    pub(crate) title: String,
    /// Its content.
    pub(crate) blocks: Vec<Element>,
}

impl Section {
    /// Its elements in order; consecutive figures form one group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[Element]> {
        self.blocks.chunk_by(|a, b| a.is_figure() && b.is_figure())
    }
}

/// An element of a section.
#[derive(Debug)]
pub(crate) enum Element {
    /// A heading within the section.
    Heading(String),
    /// A paragraph.
    Paragraph(Vec<Inline>),
    /// A bulleted list.
    List(Vec<Vec<Inline>>),
    /// A bulleted list that is folded away where the format can fold.
    Folded {
        /// What it is about.
        title: &'static str,
        /// Its items.
        items: Vec<Vec<Inline>>,
    },
    /// The answer, highlighted.
    Answer(Answer),
    /// A table.
    Table(Table),
    /// A figure with the table of its data. Boxed because it is by far the largest.
    Figure(Box<Figure>),
    /// Two texts side by side.
    Texts(Texts),
    /// A code block.
    Code(String),
}

impl Element {
    /// Whether it is a figure.
    pub(crate) fn is_figure(&self) -> bool {
        matches!(self, Self::Figure(_))
    }
}

/// A piece of a sentence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Inline {
    /// Our own words.
    Plain(String),
    /// Our own words, stressed.
    Strong(String),
    /// Untrusted text of a model, a prompt or a user.
    Foreign(String),
    /// A source.
    Link {
        /// Its name.
        text: String,
        /// Its address.
        url: &'static str,
    },
}

/// A paragraph of our own words.
pub(crate) fn plain(text: impl Into<String>) -> Vec<Inline> {
    vec![Inline::Plain(text.into())]
}

/// The answer that the report opens with.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Name of the run.
    pub(crate) run: String,
    /// The answer in a few words.
    pub(crate) headline: String,
    /// How to use it, as a policy's name.
    pub(crate) policy: Option<String>,
    /// What it costs and saves.
    pub(crate) facts: Vec<Fact>,
}

/// One number of the answer.
#[derive(Debug)]
pub(crate) struct Fact {
    /// What it is.
    pub(crate) name: &'static str,
    /// The figure.
    pub(crate) cell: Cell,
    /// Its unit; empty if it has none.
    pub(crate) unit: &'static str,
    /// How to read it.
    pub(crate) note: String,
}

/// A table. Rows have as many cells as there are columns.
#[derive(Debug)]
pub(crate) struct Table {
    /// Unique id within the document.
    pub(crate) id: String,
    /// What it holds.
    pub(crate) caption: String,
    /// Its columns.
    pub(crate) columns: Vec<Column>,
    /// Its rows.
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Whether most cells of a column are numbers, which are then right-aligned.
    pub(crate) fn is_numeric(&self, column: usize) -> bool {
        let numbers = self.rows.iter().filter(|row| row.get(column).is_some_and(Cell::is_number)).count();
        2 * numbers > self.rows.len() && !self.is_of_facts()
    }

    /// Whether it is a list of name–value pairs.
    fn is_of_facts(&self) -> bool {
        self.columns.len() == 2 && self.columns[1].name == "is"
    }
}

/// A column.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// Its name.
    pub(crate) name: String,
    /// Its unit; empty if it has none.
    pub(crate) unit: String,
}

/// A column with a unit.
pub(crate) fn column(name: impl Into<String>, unit: impl Into<String>) -> Column {
    Column { name: name.into(), unit: unit.into() }
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    /// Our own words.
    Text(String),
    /// Untrusted text of a model, a prompt or a user.
    Foreign(String),
    /// A count.
    Count(u64),
    /// A number with full precision, and its displayed text.
    Figure {
        /// The number; NaN if it is undefined.
        value: f64,
        /// Its displayed text.
        shown: String,
    },
}

impl Cell {
    /// A count.
    pub(crate) fn count(count: usize) -> Self {
        Self::Count(count as u64)
    }

    /// A number with four significant digits.
    pub(crate) fn figure(value: f64) -> Self {
        Self::Figure { value, shown: four_digits(value) }
    }

    /// A share in percent, with one decimal.
    pub(crate) fn percent(share: f64) -> Self {
        let value = share * 100.0;
        Self::Figure {
            value,
            shown: if value.is_finite() { format!("{value:.1}") } else { UNDEFINED.into() },
        }
    }

    /// Its text.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::Foreign(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Figure { shown, .. } => shown.clone(),
        }
    }

    /// Whether it is a number.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Count(_) | Self::Figure { .. })
    }
}

/// Shown for an undefined number.
pub(crate) const UNDEFINED: &str = "–";

/// A number with four significant digits.
pub(crate) fn four_digits(value: f64) -> String {
    if !value.is_finite() {
        return UNDEFINED.into();
    }
    // Takes the power of ten after rounding: 0.99996 is 1.000.
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    let size = rounded.abs();
    if rounded == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{value:.3e}");
    }
    let decimals = (3 - size.log10().floor() as i32).max(0) as usize;
    format!("{value:.decimals$}")
}

/// A figure: a drawing and its data.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Unique id within the document.
    pub(crate) id: String,
    /// What is drawn.
    pub(crate) drawing: Drawing,
    /// Its data, or the most important rows if all of it is in the run folder.
    pub(crate) table: Table,
    /// Whether it spans the full width.
    pub(crate) wide: bool,
}

impl Figure {
    /// Its title.
    pub(crate) fn title(&self) -> &str {
        match &self.drawing {
            Drawing::Chart(chart) => &chart.title,
            Drawing::Map(map) => &map.title,
            Drawing::Patches(patches) => &patches.title,
            Drawing::Pattern(pattern) => &pattern.title,
            Drawing::TradeOff(figure) => &figure.title,
            Drawing::Scores(figure) => &figure.title,
        }
    }

    /// What it shows, in a sentence or two.
    pub(crate) fn description(&self) -> &str {
        match &self.drawing {
            Drawing::Chart(chart) => &chart.description,
            Drawing::Map(map) => &map.description,
            Drawing::Patches(patches) => &patches.description,
            Drawing::Pattern(pattern) => &pattern.description,
            Drawing::TradeOff(figure) => &figure.description,
            Drawing::Scores(figure) => &figure.description,
        }
    }

    /// Its size, given those of narrow and wide figures. Maps of many layers and figures of many panels are
    /// taller.
    pub(crate) fn size(&self, narrow: [f64; 2], wide: [f64; 2]) -> [f64; 2] {
        const ROWS: f64 = 24.0;
        const MOST_ROWS_MORE: f64 = 60.0;
        const ROW: f64 = 6.0;
        let [width, height] = if self.wide { wide } else { narrow };
        let of_rows = |rows: usize| [width, height + (rows as f64 - ROWS).clamp(0.0, MOST_ROWS_MORE) * ROW];
        match &self.drawing {
            Drawing::Map(map) => of_rows(map.values.rows()),
            Drawing::Patches(patches) => of_rows(patches.values.rows()),
            Drawing::Pattern(pattern) => of_rows(pattern.cells.rows()),
            Drawing::Chart(_) => [width, height],
            Drawing::TradeOff(figure) => [width, figure.height(width, true)],
            Drawing::Scores(figure) => [width, figure.height(width, true)],
        }
    }

    /// Replaces the title.
    pub(crate) fn rename(&mut self, title: impl FnOnce(&str) -> String) {
        let old = match &mut self.drawing {
            Drawing::Chart(chart) => &mut chart.title,
            Drawing::Map(map) => &mut map.title,
            Drawing::Patches(patches) => &mut patches.title,
            Drawing::Pattern(pattern) => &mut pattern.title,
            Drawing::TradeOff(figure) => &mut figure.title,
            Drawing::Scores(figure) => &mut figure.title,
        };
        *old = title(old);
    }

    /// The drawing as SVG.
    pub(crate) fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        match &self.drawing {
            Drawing::Chart(chart) => chart.to_svg(canvas),
            Drawing::Map(map) => map.draw(|map| map.to_svg(canvas)),
            Drawing::Patches(patches) => patches.map().to_svg(canvas),
            Drawing::Pattern(pattern) => pattern.to_svg(canvas),
            Drawing::TradeOff(figure) => figure.to_svg(canvas),
            Drawing::Scores(figure) => figure.to_svg(canvas),
        }
    }
}

/// What a figure draws.
#[derive(Debug)]
pub(crate) enum Drawing {
    /// Curves.
    Chart(Chart),
    /// Layers × columns.
    Map(MapDrawing),
    /// Layers × positions or heads of activation patches.
    Patches(PatchFigure),
    /// Queries × keys.
    Pattern(PatternDrawing),
    /// Policies by quality and costs.
    TradeOff(TradeOff),
    /// Policies by scores at tasks.
    Scores(Scores),
}

/// A map that holds its values.
#[derive(Debug)]
pub(crate) struct MapDrawing {
    /// Its title.
    pub(crate) title: String,
    /// What the colours measure, with the unit.
    pub(crate) unit: String,
    /// What it shows, in a sentence or two.
    pub(crate) description: String,
    /// Values, a row for each layer.
    pub(crate) values: Pyramid,
    /// The scale of the colours.
    pub(crate) scale: ScaleKind,
    /// Whether the first column is omitted.
    pub(crate) without_first: bool,
    /// Name of the column axis.
    pub(crate) column_name: String,
    /// A text for each column; may be empty.
    pub(crate) column_texts: Vec<String>,
    /// The cutoff.
    pub(crate) cutoff: Option<usize>,
}

impl MapDrawing {
    /// Calls `with` with the map.
    pub(crate) fn draw<T>(&self, with: impl FnOnce(&Map<'_>) -> T) -> T {
        let scale = Scale::fit(self.scale, &self.values, false, self.without_first);
        with(&Map {
            title: self.title.clone(),
            unit: self.unit.clone(),
            description: self.description.clone(),
            values: &self.values,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: ColumnRange { start: 0.0, end: self.values.columns() as f64 },
            without_first: self.without_first,
            column_name: self.column_name.clone(),
            column_texts: &self.column_texts,
            cutoff: self.cutoff,
        })
    }
}

/// Names of the axes of a pattern.
pub(crate) const QUERY: &str = "query (position)";
pub(crate) const KEY: &str = "prompt token (position)";

/// A part of an attention pattern that holds its cells.
#[derive(Debug)]
pub(crate) struct PatternDrawing {
    /// Its title.
    pub(crate) title: String,
    /// What the colours measure, with the unit.
    pub(crate) unit: String,
    /// What it shows, in a sentence or two.
    pub(crate) description: String,
    /// The cells. The colours are fitted without position 0.
    pub(crate) cells: Cells,
    /// A text for each position of the text.
    pub(crate) texts: Vec<String>,
}

impl PatternDrawing {
    fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        self.draw(|matrix| matrix.to_svg(canvas))
    }

    /// Calls `with` with the figure.
    pub(crate) fn draw<T>(&self, with: impl FnOnce(&Matrix<'_>) -> T) -> T {
        let lines = self.cells.values.chunks_exact(self.cells.columns.max(1));
        let known: Vec<f32> =
            lines.flat_map(|line| line.iter().skip(1)).copied().filter(|value| value.is_finite()).collect();
        let scale = Scale::fit(ScaleKind::Log, &Pyramid::from_rows(&known, 1, known.len()), false, false);
        let first = self.cells.first[0] as f64;
        with(&Matrix {
            title: self.title.clone(),
            unit: self.unit.clone(),
            description: self.description.clone(),
            cells: &self.cells,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: [
                ColumnRange { start: first, end: first + self.cells.rows() as f64 },
                ColumnRange { start: 0.0, end: (self.cells.columns * self.cells.cell[1]) as f64 },
            ],
            axes: [QUERY.into(), KEY.into()],
            texts: &self.texts,
            boundary: None,
            stripes: None,
            selected: [vec![], vec![]],
        })
    }
}

/// Two continuations of a prompt, token by token.
#[derive(Debug)]
pub(crate) struct Texts {
    /// Id of the prompt.
    pub(crate) prompt_id: String,
    /// The prompt, or its beginning and end.
    pub(crate) prompt: String,
    /// Name and tokens of each text.
    pub(crate) sides: Vec<(String, Vec<String>)>,
    /// Index of the first token that differs.
    pub(crate) first_difference: Option<usize>,
}

impl Texts {
    /// One of the texts, split at the first token that differs.
    pub(crate) fn apart<'a>(&self, tokens: &'a [String]) -> Apart<'a> {
        let at = self.first_difference.map_or(tokens.len(), |at| at.min(tokens.len()));
        let (before, from) = tokens.split_at(at);
        let (marked, after) = match from.split_first() {
            Some((token, after)) => (Marked::Token(token), after.concat()),
            None if self.first_difference.is_some() => (Marked::End, String::new()),
            None => (Marked::Nothing, String::new()),
        };
        Apart { before: before.concat(), marked, after }
    }
}

/// A text split around its mark.
#[derive(Debug)]
pub(crate) struct Apart<'a> {
    /// The text before the mark.
    pub(crate) before: String,
    /// What is marked.
    pub(crate) marked: Marked<'a>,
    /// The text after the mark.
    pub(crate) after: String,
}

/// What is marked in a text.
#[derive(Debug)]
pub(crate) enum Marked<'a> {
    /// Nothing.
    Nothing,
    /// A token.
    Token(&'a str),
    /// Its end; the other text is longer.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_that_count() {
        let shown = [0.0, 1.0, 0.99996, 0.04091234, 123.456, 12_345.6, 2.5e-7, -0.5, f64::NAN];
        let texts = ["0", "1.000", "1.000", "0.04091", "123.5", "12346", "2.500e-7", "-0.5000", "–"];
        assert_eq!(shown.map(four_digits), texts);
    }
}
