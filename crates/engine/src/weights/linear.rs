//! A matrix that multiplies rows: floats, or block-quantised as the file has it.

use super::bytes::FileBytes;
use crate::tensor::with_f32;
use crate::{Error, Result};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use layerscope_kernels::matmul::{Format, Precision, Product, Weights, multiply};
use std::borrow::Cow;
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
        dtype: GgmlDType,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Result<Self> {
        match format(dtype) {
            Some(format) if keep || format == Format::F32 => {
                Ok(Self(Arc::new(Matrix { bytes: Bytes::InFile(file, range), format, rows, columns })))
            }
            _ => Self::from_blocks(&(*file).as_ref()[range], dtype, (rows, columns), keep),
        }
    }

    /// From the bytes of `[rows, columns]` weights in a GGUF block type. They stay as they are where `keep`, else they
    /// become f32.
    pub(super) fn from_blocks(
        blocks: &[u8],
        dtype: GgmlDType,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Result<Self> {
        let (bytes, format) = match format(dtype) {
            Some(format) if keep => (Bytes::Owned(blocks.to_vec()), format),
            // Types that only the library knows are always widened.
            _ => (Bytes::F32(dequantized(blocks, dtype, rows * columns)?), Format::F32),
        };
        Ok(Self(Arc::new(Matrix { bytes, format, rows, columns })))
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

/// A GGUF type as the kernels know it, if they do.
fn format(dtype: GgmlDType) -> Option<Format> {
    Some(match dtype {
        GgmlDType::F32 => Format::F32,
        GgmlDType::F16 => Format::F16,
        GgmlDType::BF16 => Format::BF16,
        GgmlDType::Q4_0 => Format::Q4_0,
        GgmlDType::Q4_1 => Format::Q4_1,
        GgmlDType::Q5_0 => Format::Q5_0,
        GgmlDType::Q5_1 => Format::Q5_1,
        GgmlDType::Q8_0 => Format::Q8_0,
        GgmlDType::Q2K => Format::Q2K,
        GgmlDType::Q3K => Format::Q3K,
        GgmlDType::Q4K => Format::Q4K,
        GgmlDType::Q5K => Format::Q5K,
        GgmlDType::Q6K => Format::Q6K,
        _ => return None,
    })
}

/// Blocks of `elements` weights in f32.
pub(super) fn dequantized(blocks: &[u8], dtype: GgmlDType, elements: usize) -> Result<Vec<f32>> {
    if let Some(format) = format(dtype) {
        let mut widened = vec![0.0; elements];
        format.dequantize(blocks, &mut widened);
        return Ok(widened);
    }
    // The blocks are copied from bytes of any alignment into storage of their own.
    let aligned = AlignedBytes::copy(blocks);
    let storage = QStorage::from_data(Cow::Borrowed(aligned.as_slice()), &Device::Cpu, dtype)?;
    let widened = QTensor::new(storage, elements)?.dequantize(&Device::Cpu)?;
    Ok(widened.to_vec1()?)
}

/// Bytes at an address that every block type may have.
struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    fn copy(bytes: &[u8]) -> Self {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { words, len: bytes.len() }
    }

    fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
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
    use super::*;

    #[test]
    fn aligned_copy_keeps_every_byte() {
        let bytes: Vec<u8> = (0..37).collect();
        assert_eq!(AlignedBytes::copy(&bytes).as_slice(), &bytes[..]);
    }

    /// Blocks that candle made, as candle unpacks them; products of kept and of widened weights.
    #[test]
    fn blocks_are_unpacked_as_candle_does_and_products_agree() {
        let (rows, columns) = (37, 512);
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.3;
        let weights: Vec<f32> = (0..rows * columns).map(value).collect();
        let dense = Tensor::from_vec(weights, (rows, columns), &Device::Cpu).unwrap();
        let x: Vec<f32> = (0..3 * columns).map(|i| value(i + 11)).collect();
        let x = Tensor::from_vec(x, (3, columns), &Device::Cpu).unwrap();
        use GgmlDType as T;
        let types = [
            T::F32,
            T::F16,
            T::BF16,
            T::Q4_0,
            T::Q4_1,
            T::Q5_0,
            T::Q5_1,
            T::Q8_0,
            T::Q2K,
            T::Q3K,
            T::Q4K,
            T::Q5K,
            T::Q6K,
            T::Q8K,
        ];
        for dtype in types {
            let quantized = QTensor::quantize(&dense, dtype).unwrap();
            let expected = quantized.dequantize(&Device::Cpu).unwrap();
            let blocks = quantized.data().unwrap();
            let load = |keep| Linear::from_blocks(&blocks, dtype, (rows, columns), keep).unwrap();
            let (kept, widened) = (load(true), load(false));
            let two = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
            for (found, expected) in
                two(&kept.to_tensor().unwrap()).iter().flatten().zip(two(&expected).iter().flatten())
            {
                assert!(
                    (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                    "{dtype:?}: {found} {expected}"
                );
            }
            let product = two(&x.matmul(&expected.t().unwrap()).unwrap());
            let scale = product.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
            for (linear, exact, tolerance) in
                [(&kept, true, 1e-5), (&kept, false, 1e-2), (&widened, false, 1e-5)]
            {
                for (a, b) in
                    two(&linear.forward(&x, exact).unwrap()).iter().flatten().zip(product.iter().flatten())
                {
                    assert!((a - b).abs() < tolerance * scale, "{dtype:?}: {a} {b}");
                }
            }
            let one = two(&kept.forward(&x.narrow(0, 1, 1).unwrap(), false).unwrap());
            for (a, b) in one[0].iter().zip(&product[1]) {
                assert!((a - b).abs() < 1e-4 * scale, "{dtype:?}: {a} {b}");
            }
            let all = two(&widened.to_tensor().unwrap());
            let row = two(&Embedding(kept).forward(&[36, 0, 36]).unwrap());
            for (row, id) in row.iter().zip([36, 0, 36]) {
                assert!(row.iter().zip(&all[id]).all(|(a, b)| (a - b).abs() < 1e-6), "{dtype:?}");
            }
        }
    }

    #[test]
    fn tokens_and_shapes_that_do_not_fit_are_refused() {
        let blocks = [0; 4 * 6];
        let linear = Linear::from_blocks(&blocks, GgmlDType::F32, (2, 3), true).unwrap();
        assert!(linear.rows(&[2]).unwrap_err().to_string().contains("token 2"));
        assert!(
            linear
                .forward(&Tensor::zeros((1, 4), candle_core::DType::F32, &Device::Cpu).unwrap(), true)
                .is_err()
        );
    }
}
