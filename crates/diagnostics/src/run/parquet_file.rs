//! One Parquet file: written whole, read prompt by prompt, copied row group by row group.
//!
//! Every row group holds rows of one prompt only, so its `prompt_id` statistics say whose it is.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow_array::{Array, BooleanArray, RecordBatch, StringArray};
use arrow_schema::Schema;
use layerscope_engine::{Error, Result, guarded};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::basic::Compression;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use super::durable::write_error;
use super::schema::{Kind, Table};

/// Most rows of a row group; a longer prompt has several.
const ROW_GROUP_ROWS: usize = 1 << 20;

/// Rows decoded at a time.
const BATCH_ROWS: usize = 1 << 16;

fn properties(table: Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by("layerscope".into())
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        // Row groups are found by the exact prompt id in their statistics.
        .set_statistics_truncate_length(None)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(ColumnPath::from("prompt_id"), EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in table.columns() {
        // Hardly any two figures are equal.
        if matches!(column.kind, Kind::Float | Kind::Single) {
            properties = properties.set_column_dictionary_enabled(column.name.into(), false);
        }
    }
    properties.build()
}

/// The I/O error within a Parquet error, if that is what it is.
fn io_cause(error: &ParquetError) -> Option<&std::io::Error> {
    match error {
        ParquetError::External(cause) => cause.downcast_ref(),
        _ => None,
    }
}

fn parquet_write_error(path: &Path, error: &ParquetError) -> Error {
    match io_cause(error) {
        Some(io) => write_error(path, io),
        None => Error::failure(format!("cannot write {}: {error}", path.display())),
    }
}

/// Writes a new table from the batches that `fill` gives, synced.
pub(super) fn write(
    path: &Path,
    table: Table,
    fill: impl FnOnce(&mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let failed = |error: ParquetError| parquet_write_error(path, &error);
    let file = File::create(path).map_err(|error| write_error(path, &error))?;
    let mut writer = ArrowWriter::try_new(file, table.schema(), Some(properties(table))).map_err(failed)?;
    fill(&mut |batch| writer.write(&batch).map_err(failed))?;
    writer.finish().map_err(failed)?;
    writer.inner().sync_all().map_err(|error| write_error(path, &error))
}

/// A table being put together from row groups of other files, copied as they are.
pub(super) struct Merger {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
}

impl Merger {
    pub(super) fn create(path: &Path, table: Table) -> Result<Self> {
        let file = File::create(path).map_err(|error| write_error(path, &error))?;
        let (writer, _) = ArrowWriter::try_new(file, table.schema(), Some(properties(table)))
            .and_then(ArrowWriter::into_serialized_writer)
            .map_err(|error| parquet_write_error(path, &error))?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Appends the prompt's row groups of `source`, without decoding them.
    pub(super) fn append(&mut self, source: &TableFile, prompt_id: &str) -> Result<()> {
        let metadata = source.metadata.metadata();
        let here = self.writer.schema_descr().root_schema();
        if metadata.file_metadata().schema() != here {
            return Err(source.damaged(&"its columns are not those of this layerscope"));
        }
        let file = source.file.lock().unwrap_or_else(PoisonError::into_inner);
        for group in metadata.row_groups() {
            match single_prompt(group) {
                Some(id) if id == prompt_id.as_bytes() => {}
                Some(_) => continue,
                None => return Err(source.damaged(&"a row group mixes prompts")),
            }
            let mut copy = || {
                let mut out = self.writer.next_row_group()?;
                for column in group.columns() {
                    let close = ColumnCloseResult {
                        bytes_written: column.compressed_size() as u64,
                        rows_written: group.num_rows() as u64,
                        metadata: column.clone(),
                        bloom_filter: None,
                        column_index: None,
                        offset_index: None,
                    };
                    out.append_column(&*file, close)?;
                }
                out.close().map(drop)
            };
            copy().map_err(|error| parquet_write_error(&self.path, &error))?;
        }
        Ok(())
    }

    /// Completes and syncs the file.
    pub(super) fn finish(mut self) -> Result<()> {
        self.writer.finish().map_err(|error| parquet_write_error(&self.path, &error))?;
        self.writer.inner().sync_all().map_err(|error| write_error(&self.path, &error))
    }
}

/// An open table. Reading is exclusive, since copies of a file handle share one position.
#[derive(Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    file: Mutex<File>,
    metadata: ArrowReaderMetadata,
}

impl TableFile {
    /// Opens a table and checks its columns; `None` where there is no such file.
    pub(super) fn open(path: PathBuf, table: Table) -> Result<Option<Self>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let length = file.metadata().map_err(|error| Error::io("read", &path, &error))?.len();
        let load = || {
            let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?;
            check_ranges(metadata.metadata().row_groups(), length)?;
            Ok::<_, ParquetError>(metadata)
        };
        let metadata = guarded(load).map_err(|problem| damaged(&path, &problem))?;
        check_columns(metadata.schema(), table).map_err(|problem| damaged(&path, &problem))?;
        Ok(Some(Self { path, file: Mutex::new(file), metadata }))
    }

    /// The sentence that this file is not as layerscope wrote it.
    pub(super) fn damaged(&self, problem: &dyn std::fmt::Display) -> Error {
        damaged(&self.path, problem)
    }

    /// The distinct prompt ids of the file, in order of first appearance.
    pub(super) fn prompt_ids(&self) -> Result<Vec<String>> {
        let mut ids: Vec<String> = Vec::new();
        let mut known = BTreeSet::new();
        let groups = (0..self.metadata.metadata().num_row_groups()).collect();
        let schema = self.metadata.parquet_schema();
        let mask = ProjectionMask::columns(schema, ["prompt_id"]);
        for batch in self.decode(groups, Some(mask))? {
            for id in self.ids(&batch)?.iter().flatten() {
                if known.insert(id.to_owned()) {
                    ids.push(id.to_owned());
                }
            }
        }
        Ok(ids)
    }

    /// The rows of one prompt, in file order; of the named columns only where there are `columns`.
    pub(super) fn rows(&self, prompt_id: &str, columns: &[&str]) -> Result<Vec<RecordBatch>> {
        let groups = self.metadata.metadata().row_groups().iter().enumerate();
        let groups = groups.filter(|(_, group)| may_hold(group, prompt_id)).map(|(index, _)| index).collect();
        let mask = (!columns.is_empty()).then(|| {
            let columns = columns.iter().copied().chain(["prompt_id"]);
            ProjectionMask::columns(self.metadata.parquet_schema(), columns)
        });
        let mut rows = Vec::new();
        for batch in self.decode(groups, mask)? {
            let ids = self.ids(&batch)?;
            let own: BooleanArray = ids.iter().map(|id| Some(id == Some(prompt_id))).collect();
            if own.true_count() == batch.num_rows() {
                rows.push(batch);
            } else {
                // Another program wrote the file with several prompts in one row group.
                rows.extend(runs(&own).map(|(start, length)| batch.slice(start, length)));
            }
        }
        Ok(rows)
    }

    fn ids<'a>(&self, batch: &'a RecordBatch) -> Result<&'a StringArray> {
        batch
            .column_by_name("prompt_id")
            .and_then(|ids| ids.as_any().downcast_ref())
            .ok_or_else(|| self.damaged(&"it has no column prompt_id of text"))
    }

    fn decode(&self, groups: Vec<usize>, mask: Option<ProjectionMask>) -> Result<Vec<RecordBatch>> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || {
            let mut builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(file.try_clone()?, self.metadata.clone())
                    .with_row_groups(groups)
                    .with_batch_size(BATCH_ROWS);
            if let Some(mask) = mask {
                builder = builder.with_projection(mask);
            }
            let batches: std::result::Result<Vec<_>, _> = builder.build()?.collect();
            Ok::<_, ParquetError>(batches?)
        };
        guarded(read).map_err(|problem| self.damaged(&problem))
    }
}

fn damaged(path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::input(format!(
        "{} is damaged or was changed ({problem}); restore it or record the run again",
        path.display()
    ))
}

/// Refuses column chunks outside the file, whose sizes a reader would allocate.
fn check_ranges(groups: &[RowGroupMetaData], length: u64) -> std::result::Result<(), ParquetError> {
    let fits = |start: i64, size: i64| {
        let end = start.checked_add(size);
        start >= 0 && size >= 0 && end.is_some_and(|end| end as u64 <= length)
    };
    for column in groups.iter().flat_map(RowGroupMetaData::columns) {
        let data = column.data_page_offset();
        let start = column.dictionary_page_offset().unwrap_or(data);
        if !fits(start, column.compressed_size()) || !fits(data, 0) || column.num_values() < 0 {
            return Err(ParquetError::General("a column lies outside the file".into()));
        }
    }
    if groups.iter().any(|group| group.num_rows() < 0) {
        return Err(ParquetError::General("a negative number of rows".into()));
    }
    Ok(())
}

/// Columns may be added, never missing or of another type.
fn check_columns(schema: &Schema, table: Table) -> std::result::Result<(), String> {
    for wanted in table.schema().fields() {
        match schema.field_with_name(wanted.name()) {
            Ok(field) if field.data_type().equals_datatype(wanted.data_type()) => {}
            Ok(field) => {
                return Err(format!(
                    "the column {} is {}, not {}",
                    wanted.name(),
                    field.data_type(),
                    wanted.data_type()
                ));
            }
            Err(_) => return Err(format!("the column {} is missing", wanted.name())),
        }
    }
    Ok(())
}

fn id_statistics(group: &RowGroupMetaData) -> Option<&Statistics> {
    group
        .columns()
        .iter()
        .find(|column| column.column_path().string() == "prompt_id")
        .and_then(|column| column.statistics())
}

/// The one prompt of the row group, if its statistics say so.
fn single_prompt(group: &RowGroupMetaData) -> Option<&[u8]> {
    let statistics = id_statistics(group)?;
    let (min, max) = (statistics.min_bytes_opt()?, statistics.max_bytes_opt()?);
    (statistics.min_is_exact() && statistics.max_is_exact() && min == max).then_some(min)
}

/// Whether the row group may hold rows of the prompt.
fn may_hold(group: &RowGroupMetaData, prompt_id: &str) -> bool {
    let range = id_statistics(group)
        .and_then(|statistics| Some((statistics.min_bytes_opt()?, statistics.max_bytes_opt()?)));
    range.is_none_or(|(min, max)| min <= prompt_id.as_bytes() && prompt_id.as_bytes() <= max)
}

/// The runs of true values: (start, length).
fn runs(mask: &BooleanArray) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = (at..mask.len()).find(|&row| mask.value(row))?;
        at = (start..mask.len()).find(|&row| !mask.value(row)).unwrap_or(mask.len());
        Some((start, at - start))
    })
}
