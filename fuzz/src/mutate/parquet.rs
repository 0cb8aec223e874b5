//! Parquet files: cells, columns and row groups are changed in a file that is whole; or bytes of the footer.

use super::{Random, below, bytes, integer, one_in, real, text};
use ::bytes::Bytes;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int32Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, ListArray, PrimitiveArray, RecordBatch, StringArray,
    new_null_array,
};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use rand::RngExt;
use std::sync::Arc;

/// A file with a column, rows or its footer changed; `None` where the bytes are no Parquet file.
pub fn changed(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if one_in(3, random) {
        return with_other_footer(file, random);
    }
    // The readers panic on some files.
    layerscope_engine::guarded(|| with_other_cells(file, random).ok_or("no table")).ok()
}

/// The table read, changed and written again.
fn with_other_cells(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut batch = read(file)?;
    for _ in 0..=below(2, random) {
        batch = changed_batch(&batch, random)?;
    }
    write(&batch, random)
}

/// Bytes of the footer, in Thrift's compact form, changed; its length stays right.
fn with_other_footer(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const TRAILER: usize = 8;
    let end = file.len().checked_sub(TRAILER)?;
    let length = u32::from_le_bytes(file[end..end + 4].try_into().ok()?) as usize;
    let start = end.checked_sub(length)?;
    let mut footer = file[start..end].to_vec();
    bytes::change(&mut footer, random);
    let length = (footer.len() as u32).to_le_bytes();
    Some([&file[..start], &footer, &length, &file[end + 4..]].concat())
}

fn read(file: &[u8]) -> Option<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(file)).ok()?;
    // A damaged file may promise more rows than memory holds.
    let rows: i64 =
        builder.metadata().row_groups().iter().map(|group| group.num_rows().clamp(0, 1 << 20)).sum();
    let mut batches = builder.with_batch_size((rows as usize).clamp(1, 1 << 16)).build().ok()?;
    batches.next()?.ok()
}

fn write(batch: &RecordBatch, random: &mut Random) -> Option<Vec<u8>> {
    let mut properties = WriterProperties::builder();
    if one_in(3, random) {
        properties = properties.set_max_row_group_row_count(Some(1 + below(batch.num_rows(), random)));
    }
    let mut out = vec![];
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties.build())).ok()?;
    writer.write(batch).ok()?;
    writer.close().ok()?;
    Some(out)
}

/// Types that a column can be given.
static KINDS: [DataType; 4] = [DataType::Utf8, DataType::Int32, DataType::Float64, DataType::Boolean];

fn changed_batch(batch: &RecordBatch, random: &mut Random) -> Option<RecordBatch> {
    let mut fields: Vec<Arc<Field>> = batch.schema().fields().iter().cloned().collect();
    let mut columns = batch.columns().to_vec();
    let (rows, at) = (batch.num_rows(), below(columns.len(), random));
    if columns.is_empty() {
        return None;
    }
    match random.random_range(0..12) {
        0 => {
            columns.remove(at);
            fields.remove(at);
        }
        1 => {
            let name = text::changed(fields[at].name(), &[], random);
            fields[at] = Arc::new(fields[at].as_ref().clone().with_name(name));
        }
        2 => {
            columns[at] = new_null_array(fields[at].data_type(), rows);
            fields[at] = Arc::new(fields[at].as_ref().clone().with_nullable(true));
        }
        3 => {
            let kind = super::pick(&KINDS, random);
            columns[at] = new_null_array(&kind, rows);
            fields[at] = Arc::new(Field::new(fields[at].name(), kind, true));
        }
        4 => return Some(some_rows(batch, random)),
        _ => {
            columns[at] = with_another_cell(&columns[at], random);
            let nullable = fields[at].is_nullable() || columns[at].null_count() > 0;
            fields[at] = Arc::new(fields[at].as_ref().clone().with_nullable(nullable));
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).ok()
}

/// The rows from one to another.
fn some_rows(batch: &RecordBatch, random: &mut Random) -> RecordBatch {
    let from = below(batch.num_rows(), random);
    batch.slice(from, below(batch.num_rows() - from + 1, random))
}

fn with_another_cell(column: &ArrayRef, random: &mut Random) -> ArrayRef {
    let null = one_in(8, random);
    match column.data_type() {
        DataType::Int32 => {
            changed_number::<Int32Type>(column, random, |n, random| integer(n as u64, random) as i32)
        }
        DataType::UInt32 => {
            changed_number::<UInt32Type>(column, random, |n, random| integer(n.into(), random) as u32)
        }
        DataType::Float32 => {
            changed_number::<Float32Type>(column, random, |n, random| real(n.into(), random) as f32)
        }
        DataType::Float64 => changed_number::<Float64Type>(column, random, real),
        DataType::Boolean => {
            let mut cells: Vec<Option<bool>> = column.as_boolean().iter().collect();
            change_cell(
                &mut cells,
                random,
                |truth, _| if null { None } else { Some(!truth.unwrap_or(true)) },
            );
            Arc::new(BooleanArray::from(cells))
        }
        DataType::Utf8 => {
            let cells = column.as_string::<i32>().iter();
            let mut cells: Vec<Option<String>> = cells.map(|cell| cell.map(str::to_owned)).collect();
            change_cell(&mut cells, random, |cell, random| {
                if null { None } else { Some(text::changed(&cell.unwrap_or_default(), &[], random)) }
            });
            Arc::new(StringArray::from(cells))
        }
        DataType::List(_) => changed_list(column, random),
        _ => Arc::clone(column),
    }
}

/// A list column whose elements are changed, or whose rows are moved against each other.
fn changed_list(column: &ArrayRef, random: &mut Random) -> ArrayRef {
    let list: &ListArray = column.as_list();
    let (DataType::List(field), offsets) = (list.data_type(), list.offsets()) else {
        return Arc::clone(column);
    };
    let values = with_another_cell(list.values(), random);
    let field = Arc::new(field.as_ref().clone().with_nullable(values.null_count() > 0));
    ListArray::try_new(field, offsets.clone(), values, list.nulls().cloned())
        .map_or_else(|_| Arc::clone(column), |list| Arc::new(list) as ArrayRef)
}

fn changed_number<T: ArrowPrimitiveType>(
    column: &ArrayRef,
    random: &mut Random,
    change: impl Fn(T::Native, &mut Random) -> T::Native,
) -> ArrayRef {
    let null = one_in(8, random);
    let mut cells: Vec<Option<T::Native>> = column.as_primitive::<T>().iter().collect();
    change_cell(
        &mut cells,
        random,
        |cell, random| {
            if null { None } else { Some(change(cell.unwrap_or_default(), random)) }
        },
    );
    Arc::new(cells.into_iter().collect::<PrimitiveArray<T>>())
}

fn change_cell<T: Clone>(
    cells: &mut [Option<T>],
    random: &mut Random,
    change: impl Fn(Option<T>, &mut Random) -> Option<T>,
) {
    let (at, other) = (below(cells.len(), random), below(cells.len(), random));
    if cells.is_empty() {
        return;
    }
    if one_in(6, random) {
        cells[at] = cells[other].clone()
    } else {
        cells[at] = change(cells[at].clone(), random)
    }
}
