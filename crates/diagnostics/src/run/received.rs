//! Attention received per prompt position, read without holding the table in memory twice.
//!
//! 131,072 tokens and 64 layers give 8.4 million rows; each value is stored at its final index as it is
//! decoded.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{Array, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use layerscope_engine::Result;
use ndarray::{Array2, s};

use super::manifest::ModelInfo;
use super::table_file::TableFile;
use crate::record::ReceivedFigures;

/// What is wrong with the rows.
type Checked<T> = std::result::Result<T, String>;

/// Reads the figures of a prompt, `[layers, p]`.
pub(super) fn received(file: &TableFile, prompt_id: &str, layers: usize) -> Result<ReceivedFigures> {
    let damaged = |problem: String| file.damaged_rows(prompt_id, &problem);
    // Allocates by decoded rows, not by the row count in the metadata, which may be wrong.
    let mut rows = 0;
    file.each_batch(prompt_id, &["layer"], &mut |batch| {
        rows += batch.num_rows();
        Ok(())
    })?;
    let mut grid = Grid::new(layers, rows).map_err(damaged)?;
    let columns = ["layer", "position", "received_mean", "received_max"];
    file.each_batch(prompt_id, &columns, &mut |batch| grid.put(&batch).map_err(damaged))?;
    grid.finish().map_err(damaged)
}

impl ReceivedFigures {
    /// The same for drawing: positions outside a layer's window for all decode queries are undefined (NaN)
    /// instead of 0. The first decode query, at p − 1, sees positions from p − window on; the others see
    /// fewer.
    #[must_use]
    pub fn undefined_beyond_windows(mut self, model: &ModelInfo) -> Self {
        let (layers, positions) = self.mean.dim();
        let passed = model.window.map_or(0, |window| positions.saturating_sub(window));
        for &layer in model.windowed_layers.iter().filter(|layer| **layer < layers) {
            for figures in [&mut self.mean, &mut self.max] {
                figures.slice_mut(s![layer, ..passed]).fill(f32::NAN);
            }
        }
        self
    }
}

/// The figures by layer and position, and which of them have been read.
struct Grid {
    layers: usize,
    positions: usize,
    mean: Vec<f32>,
    max: Vec<f32>,
    taken: Vec<bool>,
    rows: usize,
}

impl Grid {
    /// Allocates `rows` rows.
    fn new(layers: usize, rows: usize) -> Checked<Self> {
        let positions = rows / layers;
        if rows != layers * positions {
            return Err(format!("{rows} rows instead of {}", layers * positions));
        }
        let (mean, max, taken) = (room(rows)?, room(rows)?, room(rows)?);
        Ok(Self { layers, positions, mean, max, taken, rows: 0 })
    }

    /// Stores rows at their indices.
    fn put(&mut self, batch: &RecordBatch) -> Checked<()> {
        let (layers, positions) = (keys(batch, "layer")?, keys(batch, "position")?);
        let places = layers.iter().zip(positions).map(|(layer, position)| self.take(*layer, *position));
        let places: Option<Vec<usize>> = places.collect();
        let places = places.ok_or("a position out of range or twice")?;
        self.rows += places.len();
        for (name, figure) in [("received_mean", &mut self.mean), ("received_max", &mut self.max)] {
            for (place, value) in places.iter().zip(column::<Float32Type>(batch, name)?) {
                figure[*place] = value.unwrap_or(f32::NAN);
            }
        }
        Ok(())
    }

    /// The index of a row; `None` if it is out of range or already filled.
    fn take(&mut self, layer: i32, position: i32) -> Option<usize> {
        let layer = usize::try_from(layer).ok().filter(|layer| *layer < self.layers)?;
        let position = usize::try_from(position).ok().filter(|position| *position < self.positions)?;
        let place = layer * self.positions + position;
        let taken = std::mem::replace(&mut self.taken[place], true);
        (!taken).then_some(place)
    }

    /// The figures, if every index is filled.
    fn finish(self) -> Checked<ReceivedFigures> {
        if self.rows != self.taken.len() {
            return Err(format!("{} rows instead of {}", self.rows, self.taken.len()));
        }
        let array = |values| Array2::from_shape_vec((self.layers, self.positions), values);
        match (array(self.mean), array(self.max)) {
            (Ok(mean), Ok(max)) => Ok(ReceivedFigures { mean, max }),
            _ => Err("its rows are not a full grid".into()),
        }
    }
}

/// `len` default values; an error if the allocation fails.
fn room<T: Clone + Default>(len: usize) -> Checked<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| format!("{len} rows are too many"))?;
    values.resize(len, T::default());
    Ok(values)
}

/// A column of integers that cannot be undefined.
fn keys<'a>(batch: &'a RecordBatch, name: &str) -> Checked<&'a [i32]> {
    let column = column::<Int32Type>(batch, name)?;
    match column.null_count() {
        0 => Ok(column.values()),
        _ => Err(format!("the column {name} holds other values")),
    }
}

fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Checked<&'a PrimitiveArray<T>> {
    let column = batch.column_by_name(name).and_then(|column| column.as_primitive_opt());
    column.ok_or_else(|| format!("the column {name} is missing"))
}
