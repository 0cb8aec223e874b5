//! Small tables that are written whole, such as measurements: Parquet in which every column carries `unit` and `description`.

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Metadata, Schema};
use layerscope_engine::{Error, Result};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// A column, with a value for each row.
#[derive(Debug)]
pub struct Column {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    values: ArrayRef,
}

impl Column {
    /// Texts; null where there is none.
    pub fn text(
        name: &'static str,
        description: &'static str,
        values: impl Iterator<Item = Option<String>>,
    ) -> Self {
        Self { name, unit: "none", description, values: Arc::new(values.collect::<StringArray>()) }
    }

    /// Yes or no; null where unknown.
    pub fn truth(
        name: &'static str,
        description: &'static str,
        values: impl Iterator<Item = Option<bool>>,
    ) -> Self {
        Self { name, unit: "none", description, values: Arc::new(values.collect::<BooleanArray>()) }
    }

    /// Whole numbers; null where unknown or beyond 63 bits.
    pub fn count(
        name: &'static str,
        unit: &'static str,
        description: &'static str,
        values: impl Iterator<Item = Option<u64>>,
    ) -> Self {
        let values = values.map(|value| value.and_then(|value| i64::try_from(value).ok()));
        Self { name, unit, description, values: Arc::new(values.collect::<Int64Array>()) }
    }

    /// Numbers; null where undefined.
    pub fn number(
        name: &'static str,
        unit: &'static str,
        description: &'static str,
        values: impl Iterator<Item = f64>,
    ) -> Self {
        let values = values.map(|value| Some(value).filter(|value| value.is_finite()));
        Self { name, unit, description, values: Arc::new(values.collect::<Float64Array>()) }
    }
}

/// Encodes a table in memory; `what` it holds is named in errors.
///
/// # Errors
/// [`Error::Failure`] if it cannot be encoded.
pub fn to_parquet(what: &str, columns: Vec<Column>) -> Result<Vec<u8>> {
    encode(columns).map_err(|error| Error::failure(format!("cannot write the {what} as Parquet: {error}")))
}

fn encode(columns: Vec<Column>) -> std::result::Result<Vec<u8>, ParquetError> {
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns
        .into_iter()
        .map(|column| {
            let metadata: Metadata =
                [("unit", column.unit), ("description", column.description)].into_iter().collect();
            let data_type = column.values.data_type().clone();
            (Field::new(column.name, data_type, true).with_metadata(metadata), column.values)
        })
        .unzip();
    let schema = Arc::new(Schema::new(fields));
    let properties =
        WriterProperties::builder().set_created_by("layerscope".into()).set_compression(Compression::SNAPPY);
    let mut file = vec![];
    let mut writer = ArrowWriter::try_new(&mut file, schema.clone(), Some(properties.build()))?;
    writer.write(&RecordBatch::try_new(schema, columns)?)?;
    writer.close()?;
    Ok(file)
}
