//! Maps of patches as a Parquet table.

use std::path::Path;

use arrow_array::RecordBatch;
use layerscope_engine::Result;

use super::durable::{rename, temporary_name};
use super::parquet_file;
use super::rows::Columns;
use super::schema::{PATCHING as COLUMNS, schema_of};
use crate::patching::{PatchMap, PatchSite};

/// Writes the cells of a map that are computed, a row each; an earlier file is replaced once all is written.
///
/// # Errors
/// [`layerscope_engine::Error::Failure`] if it cannot be written.
pub fn write_patching(path: &Path, map: &PatchMap) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(temporary_name(&name));
    parquet_file::write(&temporary, &COLUMNS, |take| take(batch(map)?))?;
    rename(&temporary, path)
}

fn batch(map: &PatchMap) -> Result<RecordBatch> {
    let is_head = map.site == PatchSite::Head;
    let cells: Vec<(usize, usize, _)> = (0..map.layers.len())
        .flat_map(|row| (0..map.columns.len()).map(move |column| (row, column)))
        .filter_map(|(row, column)| Some((map.layers[row], map.columns[column], map.cell(row, column)?)))
        .collect();
    let same = |text: &str| vec![text.to_owned(); cells.len()];
    let mut columns = Columns::of_prompt("patches", schema_of(&COLUMNS), &map.clean.id, cells.len());
    columns.texts(same(&map.corrupted.id));
    columns.texts(same(map.site.name()));
    columns.texts(same(map.direction.name()));
    columns.texts(same(map.metric.name()));
    columns.texts(same(&map.answer.text));
    columns.texts(same(&map.wrong.text));
    columns.ints(cells.iter().map(|(layer, ..)| *layer))?;
    columns.optional_ints(cells.iter().map(|(_, column, _)| (!is_head).then_some(*column)))?;
    columns.optional_ints(cells.iter().map(|(_, column, _)| is_head.then_some(*column)))?;
    let token = |column: usize| map.clean.tokens.get(column).map(|token| token.text.clone());
    columns.optional_texts(cells.iter().map(|(_, column, _)| token(*column).filter(|_| !is_head)));
    columns.figures(cells.iter().map(|(.., cell)| cell.logit_diff));
    columns.figures(cells.iter().map(|(.., cell)| cell.kl));
    columns.figures(cells.iter().map(|(.., cell)| map.effect(*cell)));
    columns.finish()
}
