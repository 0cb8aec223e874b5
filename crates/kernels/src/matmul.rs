//! Products of activations with weight matrices in the formats of files: y = x·Wᵀ, W in any [`WeightFormat`].
//!
//! Many rows: 32 rows of W at a time are dequantised into a panel that stays in cache, which then multiplies all rows of x.
//! One row: each row of W is dequantised in registers, so that memory bandwidth is the limit. On a GPU ([`cuda`]) few rows are
//! multiplied that way, too; for many, W is dequantised first.

mod blocks;
pub mod cuda;
mod dot;
mod format;
mod panel;
mod row;

pub use format::WeightFormat;

use crate::Instructions;

/// A weight matrix, `[rows, columns]`, row-major in blocks along the columns.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// Bytes of all rows, at any alignment.
    pub data: &'a [u8],
    /// What the bytes are.
    pub format: WeightFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs; whole blocks.
    pub columns: usize,
}

impl<'a> Weights<'a> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.format.bytes(self.columns)
    }

    /// The bytes of one row.
    fn row(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// One row in f32, length `columns`.
    ///
    /// # Panics
    /// If the row does not exist or the output is of another length.
    pub fn dequantize_row(&self, row: usize, output: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.format.dequantize(self.row(row), output);
    }
}

/// A matrix and its product with x, `[rows of x, rows of W]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// W.
    pub weights: Weights<'a>,
    /// y.
    pub output: &'a mut [f32],
}

/// The type in which several rows are multiplied. A single row is always f32: memory bandwidth is its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComputeType {
    /// f32.
    F32,
    /// bf16 with sums in f32, where weights are quantised or bf16 and the processor multiplies bf16; f32 otherwise.
    Bf16,
}

/// x `[rows, columns]` times each of `products`, which all have as many columns.
///
/// # Panics
/// If sizes do not agree.
pub fn multiply(x: &[f32], rows: usize, products: &mut [Product<'_>], compute: ComputeType) {
    multiply_with(Instructions::best(), x, rows, products, compute);
}

/// [`multiply`] with given instructions, which the processor must have.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_with(
    instructions: Instructions,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
    compute: ComputeType,
) {
    let Some(columns) = products.first().map(|product| product.weights.columns) else { return };
    assert_eq!(x.len(), rows * columns, "activations");
    for Product { weights, output } in &*products {
        assert_eq!(weights.columns, columns, "columns of every matrix");
        assert!(columns.is_multiple_of(weights.format.block().0), "whole blocks");
        assert_eq!(weights.data.len(), weights.rows * weights.row_bytes(), "bytes of the matrix");
        assert_eq!(output.len(), rows * weights.rows, "output");
    }
    match rows {
        0 => {}
        1 => row::multiply(instructions, x, products),
        _ => panel::multiply(instructions, x, rows, products, compute),
    }
}

#[cfg(test)]
mod tests;
