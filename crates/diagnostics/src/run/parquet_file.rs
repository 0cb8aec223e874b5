//! Writes a Parquet table, from batches or by copying row groups of other files.
//!
//! Every row group has rows of one prompt only, so its `prompt_id` statistics identify the prompt.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use layerscope_engine::{Error, Result};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::basic::Compression;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use super::durable::write_error;
use super::row_groups::single_prompt;
use super::schema::{Column, Kind, Table, schema_of};
use super::table_file::TableFile;

/// Most rows of a row group; longer prompts have several.
const ROW_GROUP_ROWS: usize = 1 << 20;

fn properties(columns: &[Column]) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by("layerscope".into())
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        // Row groups are found by the exact prompt id in their statistics.
        .set_statistics_truncate_length(None)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled(ColumnPath::from("prompt_id"), EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in columns {
        // Values rarely repeat.
        if matches!(column.kind, Kind::Float | Kind::Single) {
            properties = properties.set_column_dictionary_enabled(column.name.into(), false);
        }
        if column.kind == Kind::SingleList {
            let item = ColumnPath::new(vec![column.name.into(), "list".into(), "item".into()]);
            properties = properties.set_column_dictionary_enabled(item, false);
        }
    }
    properties.build()
}

/// The I/O error within a Parquet error, if any.
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

/// Writes and syncs a new table from the batches of `fill`.
pub(super) fn write(
    path: &Path,
    columns: &[Column],
    fill: impl FnOnce(&mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let failed = |error: ParquetError| parquet_write_error(path, &error);
    let file = layerscope_files::create(path).map_err(|error| write_error(path, &error))?;
    let (schema, properties) = (schema_of(columns), properties(columns));
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).map_err(failed)?;
    fill(&mut |batch| writer.write(&batch).map_err(failed))?;
    writer.finish().map_err(failed)?;
    writer.inner().sync_all().map_err(|error| write_error(path, &error))
}

/// The bytes of a table without rows.
pub(super) fn empty(columns: &[Column]) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    let written = ArrowWriter::try_new(&mut bytes, schema_of(columns), Some(properties(columns)));
    let finished = written.and_then(|mut writer| writer.finish().map(drop));
    finished.map_err(|error| Error::failure(format!("cannot write an empty table: {error}")))?;
    Ok(bytes)
}

/// Assembles a table from row groups of other files, copied unchanged.
pub(super) struct Merger {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
}

impl Merger {
    pub(super) fn create(path: &Path, table: Table) -> Result<Self> {
        let file = layerscope_files::create(path).map_err(|error| write_error(path, &error))?;
        let (writer, _) = ArrowWriter::try_new(file, table.schema(), Some(properties(&table.columns())))
            .and_then(ArrowWriter::into_serialized_writer)
            .map_err(|error| parquet_write_error(path, &error))?;
        Ok(Self { path: path.to_owned(), writer })
    }

    /// Appends the prompt's row groups of `source`, without decoding them.
    pub(super) fn append(&mut self, source: &TableFile, prompt_id: &str) -> Result<()> {
        let metadata = source.metadata();
        let here = self.writer.schema_descr().root_schema();
        if metadata.file_metadata().schema() != here {
            return Err(source.damaged(&"its columns are not those of this layerscope"));
        }
        for group in metadata.row_groups() {
            match single_prompt(group) {
                Some(id) if id == prompt_id => {}
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
                    out.append_column(source.bytes(), close)?;
                }
                out.close().map(drop)
            };
            copy().map_err(|error| {
                source.failure().unwrap_or_else(|| parquet_write_error(&self.path, &error))
            })?;
        }
        Ok(())
    }

    /// Completes and syncs the file.
    pub(super) fn finish(mut self) -> Result<()> {
        self.writer.finish().map_err(|error| parquet_write_error(&self.path, &error))?;
        self.writer.inner().sync_all().map_err(|error| write_error(&self.path, &error))
    }
}
