//! Reads tables of HTML pages, Markdown files and Parquet files.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int32Type};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use scraper::{ElementRef, Html, Selector};
use std::collections::BTreeMap;
use std::path::Path;

pub fn select<'a>(page: &'a Html, selector: &str) -> Vec<ElementRef<'a>> {
    page.select(&Selector::parse(selector).unwrap()).collect()
}

pub fn within<'a>(element: ElementRef<'a>, selector: &str) -> Vec<ElementRef<'a>> {
    element.select(&Selector::parse(selector).unwrap()).collect()
}

pub fn text(element: ElementRef<'_>) -> String {
    element.text().collect()
}

/// A cell: the displayed text, and all digits of a number.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub text: String,
    pub value: Option<f64>,
}

#[derive(Debug)]
pub struct Table {
    pub id: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Numbers of a column; NaN for other cells.
    pub fn numbers(&self, column: usize) -> Vec<f64> {
        self.rows.iter().map(|row| row[column].value.unwrap_or(f64::NAN)).collect()
    }

    pub fn texts(&self, column: usize) -> Vec<&str> {
        self.rows.iter().map(|row| row[column].text.as_str()).collect()
    }
}

/// Every table of a page, by its id.
pub fn html_tables(page: &Html) -> BTreeMap<String, Table> {
    let table = |element: ElementRef<'_>| {
        let id = element.attr("id").unwrap().to_owned();
        let cell = |cell: ElementRef<'_>| {
            let data = within(cell, "data");
            let value = data.first().map(|data| data.attr("value").unwrap().parse().unwrap());
            Cell { text: text(cell), value }
        };
        let rows = within(element, "tbody tr");
        let rows = rows.into_iter().map(|row| within(row, "th, td").into_iter().map(cell).collect());
        let columns = within(element, "thead th").into_iter().map(text).collect();
        (id.clone(), Table { id, columns, rows: rows.collect() })
    };
    select(page, "table").into_iter().map(table).collect()
}

/// The cells of every table of a Markdown file, in order, header first.
pub fn markdown_tables(markdown: &str) -> Vec<Vec<Vec<String>>> {
    use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
    let (mut tables, mut cell) = (vec![], None::<String>);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Table(_)) => tables.push(vec![]),
            Event::Start(Tag::TableHead | Tag::TableRow) => tables.last_mut().unwrap().push(vec![]),
            Event::Start(Tag::TableCell) => cell = Some(String::new()),
            Event::End(TagEnd::TableCell) => {
                let row: &mut Vec<String> = tables.last_mut().unwrap().last_mut().unwrap();
                row.push(cell.take().unwrap());
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(cell) = &mut cell {
                    cell.push_str(&text);
                }
            }
            _ => {}
        }
    }
    tables
}

/// A Parquet file's columns: numbers (undefined: NaN) and texts.
pub struct Frame {
    numbers: BTreeMap<String, Vec<f64>>,
    texts: BTreeMap<String, Vec<String>>,
}

impl Frame {
    pub fn read(path: &Path) -> Self {
        let file = std::fs::File::open(path).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let mut frame = Self { numbers: BTreeMap::new(), texts: BTreeMap::new() };
        for batch in reader {
            let batch = batch.unwrap();
            for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                let name = field.name().clone();
                let mut numbers = |values: Vec<f64>| {
                    frame.numbers.entry(name.clone()).or_default().extend(values);
                };
                match field.data_type() {
                    DataType::Float64 => numbers(
                        column.as_primitive::<Float64Type>().iter().map(|v| v.unwrap_or(f64::NAN)).collect(),
                    ),
                    DataType::Float32 => numbers(
                        column
                            .as_primitive::<Float32Type>()
                            .iter()
                            .map(|v| v.map_or(f64::NAN, f64::from))
                            .collect(),
                    ),
                    DataType::Int32 => numbers(
                        column
                            .as_primitive::<Int32Type>()
                            .iter()
                            .map(|v| v.map_or(f64::NAN, f64::from))
                            .collect(),
                    ),
                    DataType::Utf8 => {
                        let texts =
                            column.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned());
                        frame.texts.entry(name).or_default().extend(texts);
                    }
                    _ => {}
                }
            }
        }
        frame
    }

    pub fn numbers(&self, column: &str) -> &[f64] {
        &self.numbers[column]
    }

    pub fn texts(&self, column: &str) -> &[String] {
        &self.texts[column]
    }

    /// Mean of a column over the rows that `of` accepts, without undefined values.
    pub fn mean(&self, column: &str, of: impl Fn(usize) -> bool) -> f64 {
        let values = self.numbers[column].iter().enumerate();
        let values: Vec<f64> =
            values.filter(|(row, value)| of(*row) && value.is_finite()).map(|(_, v)| *v).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Asserts that numbers are equal up to the rounding of sums; NaN equals NaN.
pub fn equal(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= 1e-9 * expected.abs().max(1e-6);
        assert!(near || found.is_nan() && expected.is_nan(), "{what} [{index}]: {found}, not {expected}");
    }
}
