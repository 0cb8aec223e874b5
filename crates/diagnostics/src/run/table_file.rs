//! One table open for reading, prompt by prompt.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{BooleanArray, RecordBatch, StringViewArray};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use layerscope_engine::{Error, Result, guarded};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowFilter,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::Length;

use super::row_groups::{check_ranges, may_hold, single_prompt};
use super::schema::{Column, schema_of};
use super::table_bytes::TableBytes;

/// Rows decoded at a time.
const BATCH_ROWS: usize = 1 << 16;

/// An open table.
#[derive(Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    bytes: TableBytes,
    metadata: ArrowReaderMetadata,
}

impl TableFile {
    /// Opens a table and checks its columns; `None` if there is no such file.
    pub(super) fn open(path: PathBuf, columns: &[Column]) -> Result<Option<Self>> {
        let bytes = match layerscope_files::source(&path).and_then(TableBytes::new) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let load = || {
            let metadata = ArrowReaderMetadata::load(&bytes, ArrowReaderOptions::new())?;
            check_ranges(metadata.metadata().row_groups(), bytes.len())?;
            let views = ArrowReaderOptions::new().with_schema(with_views(metadata.schema()));
            let viewed = ArrowReaderMetadata::try_new(metadata.metadata().clone(), views);
            Ok::<_, ParquetError>((Arc::clone(metadata.schema()), viewed))
        };
        let (schema, metadata) = guarded(load)
            .map_err(|problem| failure(&path, &bytes).unwrap_or_else(|| damaged(&path, &problem)))?;
        check_columns(&schema, columns).map_err(|problem| damaged(&path, &problem))?;
        let metadata = metadata.map_err(|problem| damaged(&path, &problem))?;
        Ok(Some(Self { path, bytes, metadata }))
    }

    /// The error that this file is damaged or was changed.
    pub(super) fn damaged(&self, problem: &dyn std::fmt::Display) -> Error {
        damaged(&self.path, problem)
    }

    /// The system's error where there was one while reading, else that this file is damaged.
    fn unreadable(&self, problem: &dyn std::fmt::Display) -> Error {
        self.failure().unwrap_or_else(|| self.damaged(problem))
    }

    /// The system's last error while reading.
    pub(super) fn failure(&self) -> Option<Error> {
        failure(&self.path, &self.bytes)
    }

    /// The sentence that a prompt's rows are not as layerscope wrote them.
    pub(super) fn damaged_rows(&self, prompt_id: &str, problem: &dyn std::fmt::Display) -> Error {
        self.damaged(&format!("prompt {prompt_id:?}: {problem}"))
    }

    /// The Parquet metadata.
    pub(super) fn metadata(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> &TableBytes {
        &self.bytes
    }

    /// The distinct prompt ids of the file, in order of first appearance.
    pub(super) fn prompt_ids(&self) -> Result<Vec<String>> {
        let mut ids: Vec<String> = Vec::new();
        let mut known = BTreeSet::new();
        let mut note = |id: &str| {
            if known.insert(id.to_owned()) {
                ids.push(id.to_owned());
            }
        };
        for (index, group) in self.metadata().row_groups().iter().enumerate() {
            match single_prompt(group) {
                Some(id) => note(id),
                None => self.decode(index, self.mask(&["prompt_id"]), None, &mut |batch| {
                    let column = id_column(&batch).map_err(|problem| self.damaged(&problem))?;
                    column.iter().flatten().for_each(&mut note);
                    Ok(())
                })?,
            }
        }
        Ok(ids)
    }

    /// Gives the rows of one prompt batch by batch, in file order; of the named columns only where there are `columns`.
    pub(super) fn each_batch(
        &self,
        prompt_id: &str,
        columns: &[&str],
        take: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for (index, group) in self.metadata().row_groups().iter().enumerate() {
            if may_hold(group, prompt_id) {
                // Another program may have written several prompts to one row group.
                let filter = (single_prompt(group) != Some(prompt_id)).then(|| self.only(prompt_id));
                self.decode(index, self.mask(columns), filter, take)?;
            }
        }
        Ok(())
    }

    /// The named columns; all if none is named.
    fn mask(&self, columns: &[&str]) -> ProjectionMask {
        if columns.is_empty() {
            return ProjectionMask::all();
        }
        ProjectionMask::columns(self.metadata.parquet_schema(), columns.iter().copied())
    }

    /// Filters the rows of one prompt.
    fn only(&self, prompt_id: &str) -> RowFilter {
        let prompt_id = prompt_id.to_owned();
        let own = move |batch: RecordBatch| {
            let ids = id_column(&batch)?.iter();
            Ok(ids.map(|id| Some(id == Some(prompt_id.as_str()))).collect::<BooleanArray>())
        };
        RowFilter::new(vec![Box::new(ArrowPredicateFn::new(self.mask(&["prompt_id"]), own))])
    }

    /// Decodes a row group batch by batch.
    fn decode(
        &self,
        group: usize,
        mask: ProjectionMask,
        filter: Option<RowFilter>,
        take: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let begin = || {
            let mut builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(self.bytes.clone(), self.metadata.clone())
                    .with_row_groups(vec![group])
                    .with_batch_size(BATCH_ROWS)
                    .with_projection(mask);
            if let Some(filter) = filter {
                builder = builder.with_row_filter(filter);
            }
            builder.build()
        };
        let mut batches = guarded(begin).map_err(|problem| self.unreadable(&problem))?;
        while let Some(batch) =
            guarded(|| batches.next().transpose()).map_err(|problem| self.unreadable(&problem))?
        {
            take(batch)?;
        }
        Ok(())
    }
}

/// The schema with texts as views of the file's own pages: rows that repeat one long text take no memory for it.
fn with_views(schema: &Schema) -> SchemaRef {
    let viewed = |data_type: &DataType| match data_type {
        DataType::Utf8 => DataType::Utf8View,
        other => other.clone(),
    };
    let fields = schema.fields().iter().map(|field| {
        let data_type = match field.data_type() {
            DataType::List(item) => {
                DataType::List(Arc::new(item.as_ref().clone().with_data_type(viewed(item.data_type()))))
            }
            other => viewed(other),
        };
        field.as_ref().clone().with_data_type(data_type)
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

fn id_column(batch: &RecordBatch) -> std::result::Result<&StringViewArray, ArrowError> {
    let column = batch.column_by_name("prompt_id").and_then(|ids| ids.as_string_view_opt());
    column.ok_or_else(|| ArrowError::SchemaError("it has no column prompt_id of text".into()))
}

fn failure(path: &Path, bytes: &TableBytes) -> Option<Error> {
    bytes.take_failure().map(|error| Error::io("read", path, &error))
}

fn damaged(path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::input(format!(
        "{} is damaged or was changed ({problem}); restore it or record the run again",
        path.display()
    ))
}

/// Allows additional columns, but no missing column or other type.
fn check_columns(schema: &Schema, columns: &[Column]) -> std::result::Result<(), String> {
    for (wanted, column) in schema_of(columns).fields().iter().zip(columns) {
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
            Err(_) if column.later => {}
            Err(_) => return Err(format!("the column {} is missing", wanted.name())),
        }
    }
    Ok(())
}
