//! Products of activations with weight matrices in the formats of files: y = x·Wᵀ, W in any [`WeightFormat`].
//!
//! Many rows: 32 rows of W at a time are dequantised into a panel that stays in cache, which then multiplies all rows of x.
//! Processors with tiles (AMX) multiply the panels as bf16, and as three bf16 of each factor in f32.
//! Rows that are multiplied alone: each row of W is unpacked in registers, once for up to eight of them, and memory bandwidth
//! is the limit of one. Where activations may be rounded, quants that fit bytes are multiplied as whole numbers, sixteen rows of W
//! at a time. On a GPU ([`cuda`]) few rows are multiplied alone; for many, W is dequantised first.

mod blocks;
pub mod cuda;
mod dot;
mod format;
mod integer;
mod layout;
mod panel;
mod row;

pub use format::WeightFormat;
pub use layout::Layout;

use crate::Instructions;
use std::ops::Range;

/// A weight matrix, `[rows, columns]`, in blocks along the columns.
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
    /// The order of the bytes.
    pub layout: Layout,
}

impl<'a> Weights<'a> {
    /// Bytes of one row.
    #[inline(always)]
    pub fn row_bytes(&self) -> usize {
        self.format.bytes(self.columns)
    }

    /// The bytes of one row, which must be together.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// One row in f32, length `columns`.
    ///
    /// # Panics
    /// If the row does not exist or the output is of another length.
    pub fn dequantize_row(&self, row: usize, output: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.dequantize_rows(row..row + 1, output);
    }

    /// Some rows in f32, `[rows, columns]`.
    ///
    /// # Panics
    /// If they do not exist or the output is of another length.
    pub fn dequantize_rows(&self, rows: Range<usize>, output: &mut [f32]) {
        assert_eq!(output.len(), rows.len() * self.columns, "elements of the rows");
        let mut copy = vec![];
        let blocks = 0..self.columns / self.format.block().0;
        let bytes = self.blocks_of(Instructions::best(), rows, blocks, &mut copy);
        for (row, output) in output.chunks_exact_mut(self.columns.max(1)).enumerate() {
            self.format.dequantize(bytes.row(row), output);
        }
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

/// The type in which activations are multiplied; sums of products are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComputeType {
    /// f32, or three bf16 whose sum it is; sixteen bits for single rows with blocks of 256 elements.
    F32,
    /// Several rows in bf16, where weights are quantised or bf16 and the processor multiplies bf16; all else as in [`Self::F32`].
    Bf16,
    /// Eight bits, in units that each 32 elements have in common, where quants fit bytes: of single rows, and of several where the
    /// processor does not multiply bf16. All else as in [`Self::Bf16`].
    Int8,
}

impl ComputeType {
    /// Whether several rows, too, are multiplied in eight bits with given instructions: where they have no products of bf16, which are
    /// as fast.
    pub fn rounds_many(self, instructions: Instructions) -> bool {
        self == Self::Int8 && !instructions.has_bf16()
    }
}

/// Rows of activations. A single row is multiplied otherwise than several, and sums come in another order; rows that are
/// multiplied alone get the same bits whatever other rows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProductRows {
    /// Rows that are multiplied together, first. In f32 their number makes no difference to any of them, if they are two or more.
    pub together: usize,
    /// Rows behind these, each of which is multiplied as a single row is.
    pub alone: usize,
}

impl From<usize> for ProductRows {
    fn from(rows: usize) -> Self {
        match rows {
            1 => Self { together: 0, alone: 1 },
            together => Self { together, alone: 0 },
        }
    }
}

impl ProductRows {
    /// All of them.
    pub fn count(self) -> usize {
        self.together + self.alone
    }
}

/// x `[rows, columns]` times each of `products`, which all have as many columns.
///
/// # Panics
/// If sizes do not agree.
pub fn multiply(x: &[f32], rows: impl Into<ProductRows>, products: &mut [Product<'_>], compute: ComputeType) {
    multiply_with(Instructions::best(), x, rows, products, compute);
}

/// [`multiply`] with given instructions, which the processor must have.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_with(
    instructions: Instructions,
    x: &[f32],
    rows: impl Into<ProductRows>,
    products: &mut [Product<'_>],
    compute: ComputeType,
) {
    let counts = rows.into();
    let rows = counts.count();
    let Some(columns) = check(x, rows, products.iter().map(|product| product.weights)) else { return };
    for Product { weights, output } in &*products {
        assert_eq!(output.len(), rows * weights.rows, "output");
    }
    for (rows, alone) in [(0..counts.together, false), (counts.together..rows, true)] {
        if rows.is_empty() {
            continue;
        }
        let x = &x[rows.start * columns..rows.end * columns];
        let rounded = if alone { compute == ComputeType::Int8 } else { compute.rounds_many(instructions) };
        let (mut of_bytes, mut others): (Vec<_>, Vec<_>) =
            products.iter_mut().partition(|product| rounded && product.weights.format.has_bytes());
        if !of_bytes.is_empty() {
            integer::multiply(instructions, x, &mut parts(&mut of_bytes, rows.clone()));
        }
        if others.is_empty() {
            continue;
        }
        let products = &mut parts(&mut others, rows.clone());
        if alone {
            row::multiply(instructions, x, products);
            continue;
        }
        let products: Vec<_> =
            products.iter_mut().map(|product| (product.weights, product.output.as_mut_ptr())).collect();
        // SAFETY: outputs have as many rows, and nobody else has them.
        unsafe { panel::multiply(instructions, x, rows.len(), &products, compute) };
    }
}

/// x `[rows, columns]` times each of some matrices, which all have as many columns: `[rows of x, rows of W]` each.
///
/// # Panics
/// As [`multiply`].
pub fn products(
    x: &[f32],
    rows: impl Into<ProductRows>,
    matrices: &[Weights<'_>],
    compute: ComputeType,
) -> Vec<Vec<f32>> {
    let (instructions, counts) = (Instructions::best(), rows.into());
    let rows = counts.count();
    let columns = check(x, rows, matrices.iter().copied());
    if rows == 0 || columns == Some(0) || counts.alone > 0 || compute.rounds_many(instructions) {
        let mut outputs: Vec<_> = matrices.iter().map(|weights| vec![0.0; rows * weights.rows]).collect();
        let mut products: Vec<_> =
            matrices.iter().zip(&mut outputs).map(|(&weights, output)| Product { weights, output }).collect();
        multiply_with(instructions, x, counts, &mut products, compute);
        return outputs;
    }
    // Zeroing outputs of many rows first would take several percent of a prefill.
    let mut outputs: Vec<Vec<f32>> =
        matrices.iter().map(|weights| Vec::with_capacity(rows * weights.rows)).collect();
    let products: Vec<_> =
        matrices.iter().zip(&mut outputs).map(|(&weights, output)| (weights, output.as_mut_ptr())).collect();
    // SAFETY: there is space for as many numbers, and all of them are written.
    unsafe {
        panel::multiply(instructions, x, rows, &products, compute);
        for (weights, output) in matrices.iter().zip(&mut outputs) {
            output.set_len(rows * weights.rows);
        }
    }
    outputs
}

/// The columns of all matrices, if there is one.
///
/// # Panics
/// If sizes do not agree.
fn check<'a>(x: &[f32], rows: usize, matrices: impl Iterator<Item = Weights<'a>> + Clone) -> Option<usize> {
    let columns = matrices.clone().next()?.columns;
    assert_eq!(x.len(), rows * columns, "activations");
    matrices.for_each(|weights| {
        assert_eq!(weights.columns, columns, "columns of every matrix");
        assert!(columns.is_multiple_of(weights.format.block().0), "whole blocks");
        assert_eq!(weights.data.len(), weights.rows * weights.row_bytes(), "bytes of the matrix");
    });
    Some(columns)
}

/// The products of some of the rows.
fn parts<'a>(products: &'a mut [&mut Product<'_>], rows: Range<usize>) -> Vec<Product<'a>> {
    let part = |product: &'a mut &mut Product<'_>| {
        let (weights, width) = (product.weights, product.weights.rows);
        Product { weights, output: &mut product.output[rows.start * width..rows.end * width] }
    };
    products.iter_mut().map(part).collect()
}

#[cfg(test)]
mod tests;
