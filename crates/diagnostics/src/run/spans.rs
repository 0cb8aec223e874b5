//! `spans.parquet`: the divergence when spans of prompts are removed, by layer. Recording does not write it;
//! each removed span is added to it.

use layerscope_engine::Result;

use super::added_table::{AddedTable, count_of_prompt, each_prompt};
use super::rows::Columns;
use super::rows_read::PromptRows;
use super::schema::{SPANS as COLUMNS, schema_of};
use super::{Run, figures};
use crate::record::{SpanMasses, SpanRecord, SpanRow};

/// The file's name in a run folder.
pub const SPANS: &str = "spans.parquet";

/// The spans of a run, in the order of prompts and positions; empty if there is no file.
pub(super) fn read(run: &Run) -> Result<Vec<SpanRecord>> {
    let mut records = vec![];
    each_prompt(run, run.prompt_ids(), (SPANS, &COLUMNS), |id, rows| {
        let p = count_of_prompt(run, id, "p")?;
        records.extend(spans(rows, id, p, run.manifest().model.layers)?);
        Ok(())
    })?;
    Ok(records)
}

/// The spans of a prompt of p tokens.
fn spans(rows: &PromptRows<'_>, prompt_id: &str, p: usize, layers: usize) -> Result<Vec<SpanRecord>> {
    let mut records: Vec<SpanRecord> = vec![];
    let spans = rows.counts("first")?.into_iter().zip(rows.counts("end")?).zip(rows.texts("text")?);
    let costs = rows.counts("layer")?.into_iter().zip(figures::divergences(rows)?);
    let seen = rows.figures("decode_mass")?.into_iter().zip(rows.optional_bools("found")?).zip(masses(rows)?);
    for ((((first, end), text), (layer, divergence)), ((decode_mass, found), masses)) in
        spans.zip(costs).zip(seen)
    {
        if first >= end || end >= p {
            return Err(rows.damaged(format!("{first} to {end} is no span of {p} tokens")));
        }
        let row = SpanRow { layer, divergence, decode_mass, masses, found };
        match records.iter_mut().find(|known| (known.first, known.end) == (first, end)) {
            Some(known) if known.text != text => {
                return Err(rows.damaged(format!("the span {first} to {end} has two texts")));
            }
            Some(known) => known.layers.push(row),
            None => {
                let layers = vec![row];
                records.push(SpanRecord { prompt_id: prompt_id.to_owned(), first, end, text, layers });
            }
        }
    }
    records.sort_by_key(|record| (record.first, record.end));
    for SpanRecord { first, end, layers: rows_of_span, .. } in &mut records {
        rows_of_span.sort_by_key(|row| row.layer);
        let ascends = rows_of_span.windows(2).all(|pair| pair[0].layer < pair[1].layer);
        if !ascends || rows_of_span.last().is_none_or(|row| row.layer != layers) {
            return Err(rows.damaged(format!(
                "the span {first} to {end} has a layer twice or does not end at layer {layers}"
            )));
        }
    }
    Ok(records)
}

fn masses(rows: &PromptRows<'_>) -> Result<Vec<SpanMasses>> {
    let [span_full, rest_full] =
        [rows.optional_figures("span_mass_full")?, rows.optional_figures("rest_mass_full")?];
    let [bos, rest] = [rows.optional_figures("bos_mass_after")?, rows.optional_figures("rest_mass_after")?];
    let decode = rows.optional_figures("decode_mass_after")?;
    let of_row = |row: usize| SpanMasses {
        span_full: span_full[row],
        rest_full: rest_full[row],
        bos_after: bos[row],
        rest_after: rest[row],
        decode_after: decode[row],
    };
    Ok((0..rows.len()).map(of_row).collect())
}

/// Adds spans to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct SpansWriter {
    table: AddedTable,
    records: Vec<SpanRecord>,
}

impl SpansWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Input`] if the file is damaged, or another process is writing to the
    /// folder; [`layerscope_engine::Error::Failure`] if it cannot be written.
    pub fn open(run: &Run) -> Result<Self> {
        Ok(Self { table: AddedTable::lock(run, SPANS, &COLUMNS)?, records: read(run)? })
    }

    /// Adds a span, or replaces its earlier rows; durable once this returns.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Failure`] if the folder cannot be written; the earlier file is kept.
    pub fn put(&mut self, record: SpanRecord) -> Result<()> {
        let key = |of: &SpanRecord| (self.table.place(&of.prompt_id), of.first, of.end);
        let mut records = self.records.clone();
        records.retain(|known| key(known) != key(&record));
        records.push(record);
        records.sort_by_key(key);
        self.table.replace(records.iter().map(batch))?;
        self.records = records;
        Ok(())
    }
}

fn batch(record: &SpanRecord) -> Result<arrow_array::RecordBatch> {
    let rows = &record.layers;
    let mut columns = Columns::of_prompt(SPANS, schema_of(&COLUMNS), &record.prompt_id, rows.len());
    columns.ints(rows.iter().map(|_| record.first))?;
    columns.ints(rows.iter().map(|_| record.end))?;
    columns.texts(rows.iter().map(|_| &record.text));
    columns.ints(rows.iter().map(|row| row.layer))?;
    columns.divergences(&rows.iter().map(|row| row.divergence).collect::<Vec<_>>());
    columns.figures(rows.iter().map(|row| row.decode_mass));
    columns.figures(rows.iter().map(|row| row.masses.span_full));
    columns.figures(rows.iter().map(|row| row.masses.rest_full));
    columns.figures(rows.iter().map(|row| row.masses.bos_after));
    columns.figures(rows.iter().map(|row| row.masses.rest_after));
    columns.figures(rows.iter().map(|row| row.masses.decode_after));
    columns.bools(rows.iter().map(|row| row.found));
    columns.finish()
}
