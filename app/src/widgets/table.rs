//! Data as a table: for screen readers, exact values and CSV export.

use crate::data::exact;
use eframe::egui::{Align, Layout, RichText, ScrollArea, TextStyle, Ui};
use egui_extras::{Column as TableColumn, TableBuilder};
use std::ops::Range;

/// A column's name and unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Unit; empty if it has none.
    pub unit: &'static str,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit }
    }
}

/// A view's data as rows. Cells are computed on demand, because there may be millions.
pub struct Figures<'a> {
    /// The columns.
    pub columns: Vec<Column>,
    /// Number of rows.
    pub rows: usize,
    /// The text of a row's cells.
    pub row: Box<dyn Fn(usize) -> Vec<String> + 'a>,
}

impl Figures<'_> {
    /// As CSV (RFC 4180), with the units in the header.
    pub fn to_csv(&self) -> String {
        let header: Vec<String> = self
            .columns
            .iter()
            .map(|column| match column.unit {
                "" => quoted(&column.name),
                unit => quoted(&format!("{} ({unit})", column.name)),
            })
            .collect();
        let mut csv = header.join(",");
        csv.push_str("\r\n");
        for row in 0..self.rows {
            let cells: Vec<String> = (self.row)(row).iter().map(|cell| quoted(cell)).collect();
            csv.push_str(&cells.join(","));
            csv.push_str("\r\n");
        }
        csv
    }
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// A number as a cell; empty if undefined.
pub fn cell(value: f64) -> String {
    if value.is_nan() { String::new() } else { exact(value as f32) }
}

/// Shows the table; computes only visible rows, and returns which these are.
pub fn figures_table(ui: &mut Ui, figures: &Figures<'_>) -> Range<usize> {
    let mut visible = 0..0;
    let height = ui.text_style_height(&TextStyle::Body) + 2.0;
    ScrollArea::horizontal().show(ui, |ui| {
        TableBuilder::new(ui)
            .striped(true)
            .cell_layout(Layout::left_to_right(Align::Center))
            .columns(TableColumn::auto().at_least(70.0).resizable(true), figures.columns.len())
            .header(height * 2.0, |mut header| {
                for column in &figures.columns {
                    header.col(|ui| {
                        ui.vertical(|ui| {
                            ui.label(RichText::new(&column.name).strong());
                            ui.label(RichText::new(column.unit).small().weak());
                        });
                    });
                }
            })
            .body(|body| {
                body.rows(height, figures.rows, |mut row| {
                    let index = row.index();
                    visible = if visible.is_empty() { index..index + 1 } else { visible.start..index + 1 };
                    for text in (figures.row)(index) {
                        row.col(|ui| {
                            ui.label(RichText::new(text).monospace());
                        });
                    }
                });
            });
    });
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_must_be_quoted() {
        let figures = Figures {
            columns: vec![Column::new("token", ""), Column::new("mass", "share")],
            rows: 2,
            row: Box::new(|row| vec![["a,b", "say \"hi\"\n"][row].into(), cell([0.5, f64::NAN][row])]),
        };
        assert_eq!(figures.to_csv(), "token,mass (share)\r\n\"a,b\",0.500000\r\n\"say \"\"hi\"\"\n\",\r\n");
    }
}
