//! What is asked of a pattern, and what comes back.

use std::ops::Range;

/// Which heads of a layer a cell is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum PatternHeads {
    /// A query head.
    One(usize),
    /// The mean over all query heads; a head that does not read a key counts as 0.
    Mean,
    /// The largest of all query heads.
    Max,
}

/// A rectangle of queries × keys, and the size of its cells.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TileRequest {
    /// The layer.
    pub layer: usize,
    /// The heads.
    pub heads: PatternHeads,
    /// Positions of queries; those beyond the text are left out.
    pub rows: Range<usize>,
    /// Positions of keys; those beyond the text are left out.
    pub keys: Range<usize>,
    /// Queries and keys of a cell; the last ones may have fewer.
    pub cell: [usize; 2],
}

/// What stands for a cell all of whose keys come after its queries.
pub const UNSEEN: f32 = f32::NEG_INFINITY;

/// Cells of attention probabilities, row by row. [`UNSEEN`] where all keys come after the queries; NaN where a key before a query
/// exists and none of them is read — it does not exist, or lies beyond a window — or where a softmax is undefined.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PatternTile {
    /// Rows of cells.
    pub rows: usize,
    /// Columns of cells.
    pub columns: usize,
    /// The largest probability of each cell.
    pub max: Vec<f32>,
    /// The mean probability over the pairs of a cell that are read.
    pub mean: Vec<f32>,
}

impl PatternTile {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        (self.max.len() + self.mean.len()) * size_of::<f32>()
    }

    /// The largest probability of a cell; [`UNSEEN`] outside.
    pub fn at(&self, row: usize, column: usize) -> f32 {
        if column >= self.columns {
            return UNSEEN;
        }
        self.max.get(row * self.columns + column).copied().unwrap_or(UNSEEN)
    }
}
