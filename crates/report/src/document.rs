//! The report as a document: headings, sentences, tables and figures, in no format yet.

use layerscope_figures::{Canvas, Chart, ColourMap, Map, Pyramid, Scale, ScaleKind, Span};

/// A document.
#[derive(Debug)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// What it rests on, in a line.
    pub subtitle: String,
    /// Its sections.
    pub sections: Vec<Section>,
}

/// A section.
#[derive(Debug)]
pub struct Section {
    /// Names it within the document.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its content.
    pub blocks: Vec<Block>,
}

/// What sections are made of.
#[derive(Debug)]
pub enum Block {
    /// A heading within the section.
    Heading(String),
    /// A paragraph.
    Paragraph(Vec<Inline>),
    /// Points.
    List(Vec<Vec<Inline>>),
    /// The answer, in large.
    Answer(Answer),
    /// A table.
    Table(Table),
    /// A figure with the table of its data. Boxed, since it is by far the largest.
    Figure(Box<Figure>),
    /// Two texts side by side.
    Texts(Texts),
    /// A command or a file's lines.
    Code(String),
}

/// A piece of a sentence.
#[derive(Debug, Clone, PartialEq)]
pub enum Inline {
    /// Our own words.
    Plain(String),
    /// Our own words, stressed.
    Strong(String),
    /// A name as it is typed.
    Code(String),
    /// Words of a model, a prompt or a user, which may hold anything.
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
pub fn plain(text: impl Into<String>) -> Vec<Inline> {
    vec![Inline::Plain(text.into())]
}

/// The answer that the report opens with.
#[derive(Debug)]
pub struct Answer {
    /// Whose it is.
    pub run: String,
    /// The answer in a few words.
    pub headline: String,
    /// How to use it, as a policy's name.
    pub policy: Option<String>,
    /// What it costs and saves: name, figure, and what to know of it.
    pub facts: Vec<Fact>,
}

/// A figure of the answer.
#[derive(Debug)]
pub struct Fact {
    /// What it is.
    pub name: &'static str,
    /// The figure.
    pub cell: Cell,
    /// Its unit; empty where it has none.
    pub unit: &'static str,
    /// What to know of it.
    pub note: String,
}

/// A table. Rows have as many cells as there are columns.
#[derive(Debug)]
pub struct Table {
    /// Names it within the document.
    pub id: String,
    /// What it holds.
    pub caption: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Whether a column holds numbers, so that their digits stand beneath each other. Words in place of single numbers,
    /// such as the embedding among layers, change nothing.
    pub fn is_numeric(&self, column: usize) -> bool {
        let numbers = self.rows.iter().filter(|row| row.get(column).is_some_and(Cell::is_number)).count();
        2 * numbers > self.rows.len() && !self.is_of_facts()
    }

    /// Whether it lists facts of any kind, one a row.
    fn is_of_facts(&self) -> bool {
        self.columns.len() == 2 && self.columns[1].name == "is"
    }
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its unit; empty where it has none.
    pub unit: String,
}

/// A column with a unit.
pub fn column(name: impl Into<String>, unit: impl Into<String>) -> Column {
    Column { name: name.into(), unit: unit.into() }
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Our own words.
    Text(String),
    /// Words of a model, a prompt or a user.
    Foreign(String),
    /// A count.
    Count(u64),
    /// A figure with all its digits, and how it is shown.
    Figure {
        /// The figure; NaN where it is undefined.
        value: f64,
        /// As it is shown.
        shown: String,
    },
}

impl Cell {
    /// A count.
    pub fn count(count: usize) -> Self {
        Self::Count(count as u64)
    }

    /// A figure with four digits that count.
    pub fn figure(value: f64) -> Self {
        Self::Figure { value, shown: four_digits(value) }
    }

    /// A share as per cent with one decimal.
    pub fn percent(share: f64) -> Self {
        let value = share * 100.0;
        Self::Figure {
            value,
            shown: if value.is_finite() { format!("{value:.1}") } else { UNDEFINED.into() },
        }
    }

    /// Its text.
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) | Self::Foreign(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Figure { shown, .. } => shown.clone(),
        }
    }

    /// Whether it is a number.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Count(_) | Self::Figure { .. })
    }
}

/// What stands in place of an undefined figure.
pub const UNDEFINED: &str = "–";

/// A figure with four digits that count.
pub fn four_digits(value: f64) -> String {
    if !value.is_finite() {
        return UNDEFINED.into();
    }
    // Rounding decides the power of ten: 0.99996 is 1.000.
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
pub struct Figure {
    /// Names it within the document.
    pub id: String,
    /// What is drawn.
    pub drawing: Drawing,
    /// Its data, or what stands out in it where the whole is in the run folder.
    pub table: Table,
    /// Whether it takes the whole width.
    pub wide: bool,
}

impl Figure {
    /// Its title.
    pub fn title(&self) -> &str {
        match &self.drawing {
            Drawing::Chart(chart) => &chart.title,
            Drawing::Map(map) => &map.title,
        }
    }

    /// What it shows, in a sentence or two.
    pub fn description(&self) -> &str {
        match &self.drawing {
            Drawing::Chart(chart) => &chart.description,
            Drawing::Map(map) => &map.description,
        }
    }

    /// The drawing as SVG.
    pub fn to_svg(&self, canvas: &Canvas<'_>) -> String {
        match &self.drawing {
            Drawing::Chart(chart) => chart.to_svg(canvas),
            Drawing::Map(map) => map.draw(|map| map.to_svg(canvas)),
        }
    }
}

/// What a figure draws.
#[derive(Debug)]
pub enum Drawing {
    /// Curves.
    Chart(Chart),
    /// Layers × columns.
    Map(MapDrawing),
}

/// A map that holds its values.
#[derive(Debug)]
pub struct MapDrawing {
    /// Its title.
    pub title: String,
    /// What the colours measure, with the unit.
    pub unit: String,
    /// What it shows, in a sentence or two.
    pub description: String,
    /// Values, a row for each layer.
    pub values: Pyramid,
    /// How values are laid out along the colours.
    pub scale: ScaleKind,
    /// Whether the first column is left out.
    pub without_first: bool,
    /// What columns are.
    pub column_name: String,
    /// A text for each column; may be empty.
    pub column_texts: Vec<String>,
    /// The cutoff.
    pub cutoff: Option<usize>,
}

impl MapDrawing {
    /// Gives the map to `with`.
    pub fn draw<T>(&self, with: impl FnOnce(&Map<'_>) -> T) -> T {
        let scale = Scale::fit(self.scale, &self.values, false, self.without_first);
        with(&Map {
            title: self.title.clone(),
            unit: self.unit.clone(),
            description: self.description.clone(),
            values: &self.values,
            scale: &scale,
            colours: ColourMap::Viridis,
            span: Span { start: 0.0, end: self.values.columns() as f64 },
            without_first: self.without_first,
            column_name: self.column_name.clone(),
            column_texts: &self.column_texts,
            cutoff: self.cutoff,
        })
    }
}

/// Two continuations of a prompt, token by token.
#[derive(Debug)]
pub struct Texts {
    /// Names the prompt.
    pub prompt_id: String,
    /// The prompt, or its beginning and end.
    pub prompt: String,
    /// Name and tokens of either text.
    pub sides: Vec<(String, Vec<String>)>,
    /// The first token that differs.
    pub first_difference: Option<usize>,
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
