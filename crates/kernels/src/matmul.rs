//! Products of activations with weight matrices as files have them: y = x·Wᵀ, W in any [`Format`].
//!
//! Many rows: 32 rows of W at a time are unpacked into a panel that stays in cache, which then multiplies all rows of x;
//! W is never unpacked as a whole. One row: each row of W is unpacked in registers on its way from memory, so that memory
//! sets the pace. On a GPU ([`cuda`]) few rows are multiplied that way, too; for many, W is unpacked first.

mod blocks;
pub mod cuda;
mod dot;
mod format;
mod panel;
mod row;

pub use format::Format;

use crate::Instructions;

/// A weight matrix, `[rows, columns]`, row-major in blocks along the columns.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// Bytes of all rows, at any alignment.
    pub data: &'a [u8],
    /// What the bytes are.
    pub format: Format,
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

/// A matrix and where its product goes, `[rows of x, rows of W]`.
#[derive(Debug)]
pub struct Product<'a> {
    /// W.
    pub weights: Weights<'a>,
    /// y.
    pub output: &'a mut [f32],
}

/// In which precision many rows are multiplied. (A single row always is in f32: there, memory sets the pace.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// f32.
    Exact,
    /// Weights that are quantised or bf16, and the activations they meet, are rounded to bf16 and summed in f32, where the
    /// processor has such products.
    Fast,
}

/// x `[rows, columns]` times each of `products`, which all have as many columns.
///
/// # Panics
/// If sizes do not agree.
pub fn multiply(x: &[f32], rows: usize, products: &mut [Product<'_>], precision: Precision) {
    multiply_with(Instructions::best(), x, rows, products, precision);
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
    precision: Precision,
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
        _ => panel::multiply(instructions, x, rows, products, precision),
    }
}

#[cfg(test)]
mod tests;
