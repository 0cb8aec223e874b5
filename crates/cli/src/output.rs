//! Tables and JSON on standard output.

pub(crate) use layerscope_engine::readable_bytes as bytes;

use crate::terminal;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use layerscope_engine::{Error, Result};
use serde::Serialize;
use std::path::Path;

/// Prints one JSON object on standard output.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    terminal::print_json(&json_text(value)?)
}

/// One JSON object as text.
pub(crate) fn json_text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|e| Error::failure(format!("cannot write JSON: {e}")))
}

/// Fails unless the folder of the file to write exists.
pub(crate) fn check_folder(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => Err(Error::input(format!(
            "there is no folder {} to write into; create it first",
            folder.display()
        ))),
        _ => Ok(()),
    }
}

/// JSON Lines: one object per line.
pub(crate) fn json_lines<T: Serialize>(rows: &[T]) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    for row in rows {
        serde_json::to_writer(&mut bytes, row)
            .map_err(|e| Error::failure(format!("cannot write JSON: {e}")))?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// A table of numbers, right-aligned; the first column is a name.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| terminal::line(cell)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A number with `decimals` decimals; a dash if it is undefined.
pub(crate) fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "–".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_bytes_read_well() {
        assert_eq!(figure(f64::NAN, 2), "–");
        assert_eq!(figure(0.125, 2), "0.12");
        assert_eq!(bytes(17.0), "17 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(3.0 * 1024.0 * 1024.0), "3.0 MiB");
    }
}
