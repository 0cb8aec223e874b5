//! A matrix that multiplies rows: floats, or block-quantised as the file has it.

use super::bytes::FileBytes;
use crate::tensor::with_f32;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use layerscope_kernels::matmul::{Format, Precision, Product, Weights, multiply};
use std::ops::Range;
use std::sync::Arc;

/// `y = x·Wᵀ` with W `[out, in]`.
#[derive(Clone)]
pub struct Linear(Arc<Matrix>);

struct Matrix {
    bytes: Bytes,
    format: Format,
    rows: usize,
    columns: usize,
}

/// Where a matrix's elements are.
enum Bytes {
    /// In the file.
    InFile(Arc<FileBytes>, Range<usize>),
    /// In memory, as the file had them but for the order of rows.
    Owned(Vec<u8>),
    /// Widened.
    F32(Vec<f32>),
}

impl Linear {
    /// Weights `[rows, columns]` where they are in a file.
    pub(super) fn in_file(
        file: Arc<FileBytes>,
        range: Range<usize>,
        format: Format,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Self {
        if keep || format == Format::F32 {
            return Self(Arc::new(Matrix { bytes: Bytes::InFile(file, range), format, rows, columns }));
        }
        Self::from_blocks(&(*file).as_ref()[range], format, (rows, columns), keep)
    }

    /// From the bytes of `[rows, columns]` weights in a block type. They stay as they are where `keep`, else they
    /// become f32.
    pub(super) fn from_blocks(
        blocks: &[u8],
        format: Format,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Self {
        let (bytes, format) = match keep {
            true => (Bytes::Owned(blocks.to_vec()), format),
            false => (Bytes::F32(dequantized(blocks, format, rows * columns)), Format::F32),
        };
        Self(Arc::new(Matrix { bytes, format, rows, columns }))
    }

    /// `x [rows, in]` to `[rows, out]`.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub fn forward(&self, x: &Tensor, exact: bool) -> Result<Tensor> {
        let [y] = Self::forward_together([self], x, exact)?;
        Ok(y)
    }

    /// The products of several matrices with the same rows, shared out among threads together.
    ///
    /// Sums are in f32. Where not `exact`, several rows that meet quantised or bf16 weights are rounded to bf16 on
    /// processors that multiply these faster; a single row never is.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub fn forward_together<const N: usize>(
        matrices: [&Self; N],
        x: &Tensor,
        exact: bool,
    ) -> Result<[Tensor; N]> {
        let (rows, columns) = x.dims2()?;
        if let Some(other) = matrices.iter().find(|matrix| matrix.0.columns != columns) {
            return Err(Error::failure(format!(
                "rows of {columns} elements meet a matrix of {} columns; please report this",
                other.0.columns
            )));
        }
        let precision = if exact { Precision::Exact } else { Precision::Fast };
        let mut outputs = matrices.map(|matrix| vec![0.0; rows * matrix.0.rows]);
        with_f32(x, |x| {
            let mut products: Vec<Product<'_>> = matrices
                .iter()
                .zip(&mut outputs)
                .map(|(matrix, output)| Product { weights: matrix.0.weights(), output })
                .collect();
            multiply(x, rows, &mut products, precision);
        })?;
        let tensors = outputs
            .into_iter()
            .zip(matrices)
            .map(|(output, matrix)| Ok(Tensor::from_vec(output, (rows, matrix.0.rows), &Device::Cpu)?));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        tensors.try_into().map_err(|_| Error::failure("a product is missing; please report this"))
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.0.weights().data.len()
    }

    /// Rows of W by index, in f32: `[ids, in]`.
    fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let weights = self.0.weights();
        let mut rows = vec![0.0; ids.len() * weights.columns];
        for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(weights.columns)) {
            if id as usize >= weights.rows {
                return Err(Error::input(format!("token {id} is beyond the vocabulary of {}", weights.rows)));
            }
            weights.dequantize_row(id as usize, row);
        }
        Ok(Tensor::from_vec(rows, (ids.len(), weights.columns), &Device::Cpu)?)
    }

    /// All of W in f32, `[out, in]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn to_tensor(&self) -> Result<Tensor> {
        let Matrix { format, rows, columns, .. } = *self.0;
        let mut widened = vec![0.0; rows * columns];
        format.dequantize(self.0.weights().data, &mut widened);
        Ok(Tensor::from_vec(widened, (rows, columns), &Device::Cpu)?)
    }
}

impl Matrix {
    fn weights(&self) -> Weights<'_> {
        let data = match &self.bytes {
            Bytes::InFile(file, range) => &(**file).as_ref()[range.clone()],
            Bytes::Owned(bytes) => bytes,
            Bytes::F32(numbers) => bytemuck::cast_slice(numbers),
        };
        Weights { data, format: self.format, rows: self.rows, columns: self.columns }
    }
}

/// Blocks of `elements` weights in f32.
pub(super) fn dequantized(blocks: &[u8], format: Format, elements: usize) -> Vec<f32> {
    let mut widened = vec![0.0; elements];
    format.dequantize(blocks, &mut widened);
    widened
}

/// Token embedding: a [`Linear`] read by row.
pub struct Embedding(pub(crate) Linear);

impl Embedding {
    /// Residual stream at the entrance of block 0, `[tokens, d]`.
    ///
    /// # Errors
    /// On a token id beyond the vocabulary.
    pub fn forward(&self, tokens: &[u32]) -> Result<Tensor> {
        self.0.rows(tokens)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::file::TensorFiles;
    use super::super::gguf::GgufFile;
    use super::*;
    use std::path::Path;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The tensor of a type in `fixtures/block-types`, and what the gguf package unpacks it to.
    fn fixture(file: &GgufFile, name: &str, keep: bool) -> (Linear, Vec<f32>) {
        let (tensor, expected) =
            (file.tensor(name, false).unwrap(), file.tensor(&format!("{name}.f32"), true).unwrap());
        let &[rows, columns] = tensor.shape.as_slice() else { unreachable!("a matrix") };
        let linear = Linear::from_blocks(tensor.bytes(), tensor.format, (rows, columns), keep);
        (linear, dequantized(expected.bytes(), expected.format, rows * columns))
    }

    #[test]
    fn every_block_type_is_unpacked_as_the_gguf_package_does_and_products_agree() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-types/blocks.gguf");
        let file = GgufFile::open(&path).unwrap();
        let names: Vec<&str> = file.names().into_iter().filter(|name| !name.ends_with(".f32")).collect();
        let formats: Vec<Format> =
            names.iter().map(|name| file.tensor(name, false).unwrap().format).collect();
        assert!(Format::ALL.iter().all(|format| formats.contains(format)), "{names:?}");
        for name in names {
            let ((kept, expected), (widened, _)) = (fixture(&file, name, true), fixture(&file, name, false));
            let (rows, columns) = (kept.0.rows, kept.0.columns);
            for linear in [&kept, &widened] {
                for (at, (found, expected)) in
                    numbers(&linear.to_tensor().unwrap()).iter().zip(&expected).enumerate()
                {
                    let ulp = expected.abs() * f32::EPSILON;
                    assert!((found - expected).abs() <= ulp, "{name} {at}: {found} {expected}");
                }
            }
            let value = |i: usize| (i * 7919 % 1009) as f32 / 504.5 - 1.0;
            let x: Vec<f32> = (0..3 * columns).map(value).collect();
            let x = Tensor::from_vec(x, (3, columns), &Device::Cpu).unwrap();
            let w = Tensor::from_vec(expected.clone(), (rows, columns), &Device::Cpu).unwrap();
            let product = x.matmul(&w.t().unwrap()).unwrap();
            let scale = numbers(&product).iter().fold(0f32, |most, x| most.max(x.abs()));
            let close = |found: &Tensor, expected: &Tensor, tolerance: f32| {
                for (a, b) in numbers(found).iter().zip(numbers(expected)) {
                    assert!((a - b).abs() < tolerance * scale, "{name}: {a} {b}");
                }
            };
            close(&kept.forward(&x, true).unwrap(), &product, 1e-5);
            close(&kept.forward(&x, false).unwrap(), &product, 1e-2);
            close(&widened.forward(&x, false).unwrap(), &product, 1e-5);
            let row = x.narrow(0, 1, 1).unwrap();
            close(&kept.forward(&row, false).unwrap(), &product.narrow(0, 1, 1).unwrap(), 1e-4);
            let last = rows as u32 - 1;
            let read = numbers(&Embedding(kept).forward(&[last, 0, last]).unwrap());
            let all = numbers(&widened.to_tensor().unwrap());
            for (at, id) in [last, 0, last].into_iter().enumerate() {
                assert_eq!(
                    read[at * columns..][..columns],
                    all[id as usize * columns..][..columns],
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn tokens_and_shapes_that_do_not_fit_are_refused() {
        let blocks = [0; 4 * 6];
        let linear = Linear::from_blocks(&blocks, Format::F32, (2, 3), true);
        assert!(linear.rows(&[2]).unwrap_err().to_string().contains("token 2"));
        assert!(
            linear
                .forward(&Tensor::zeros((1, 4), candle_core::DType::F32, &Device::Cpu).unwrap(), true)
                .is_err()
        );
    }
}
