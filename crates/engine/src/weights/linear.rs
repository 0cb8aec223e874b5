//! A matrix that multiplies rows: dense f32, or block-quantised as the file has it.

use crate::Result;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{D, DType, Device, Tensor};
use rayon::prelude::*;
use std::borrow::Cow;
use std::sync::Arc;

/// Most weights dequantised at once by one thread: what stays in cache, and far less than a whole unembedding.
const DEQUANTIZED_BLOCK: usize = 1 << 20;

/// `y = x·Wᵀ` with W `[out, in]`.
#[derive(Clone)]
pub enum Linear {
    /// f32 weights.
    Dense(Tensor),
    /// Block-quantised weights.
    Quantized(Arc<QuantizedRows>),
}

/// Block-quantised W in slices of its rows, one for each thread.
pub struct QuantizedRows {
    slices: Vec<QTensor>,
    /// Rows of each slice but the last, which may have fewer.
    rows_per_slice: usize,
    columns: usize,
}

impl Linear {
    /// From the bytes of `[rows, columns]` weights in a GGUF block type. Block-quantised weights stay as they are where
    /// `keep_quantized`; f16, bf16 and f32 ones become f32, since the CPU would widen them at every call.
    pub(super) fn from_blocks(
        blocks: &[u8],
        dtype: GgmlDType,
        (rows, columns): (usize, usize),
        keep_quantized: bool,
    ) -> Result<Self> {
        let float = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        if float || !keep_quantized {
            return Ok(Self::Dense(qtensor(blocks, dtype, &[rows, columns])?.dequantize(&Device::Cpu)?));
        }
        let row_bytes = blocks.len() / rows;
        let rows_per_slice = rows.div_ceil(rayon::current_num_threads());
        let slices = blocks.chunks(rows_per_slice * row_bytes);
        let slices = slices.map(|slice| qtensor(slice, dtype, &[slice.len() / row_bytes, columns]));
        Ok(Self::Quantized(Arc::new(QuantizedRows {
            slices: slices.collect::<Result<_>>()?,
            rows_per_slice,
            columns,
        })))
    }

    /// `x [rows, in]` to `[rows, out]`.
    ///
    /// Block-quantised weights multiply a single row directly (activations are rounded to 8 bits on the way); for more
    /// rows, or where `exact`, they are dequantised block by block and multiplied in f32.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub fn forward(&self, x: &Tensor, exact: bool) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Ok(x.matmul(&weight.t()?)?),
            Self::Quantized(weight) if exact || x.dim(0)? > 1 => weight.dequantized_product(x),
            Self::Quantized(weight) => weight.quantized_product(x),
        }
    }

    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(weight) => weight.elem_count() * weight.dtype().size_in_bytes(),
            Self::Quantized(weight) => weight.slices.iter().map(QTensor::storage_size_in_bytes).sum(),
        }
    }

    /// Rows of W by index, in f32: `[ids, in]`.
    fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Ok(weight.index_select(&Tensor::new(ids, weight.device())?, 0)?),
            Self::Quantized(weight) => weight.rows(ids),
        }
    }
}

impl QuantizedRows {
    fn quantized_product(&self, x: &Tensor) -> Result<Tensor> {
        let products = self.slices.par_iter().map(|slice| x.apply_op1_no_bwd(slice));
        Ok(Tensor::cat(&products.collect::<candle_core::Result<Vec<_>>>()?, D::Minus1)?)
    }

    fn dequantized_product(&self, x: &Tensor) -> Result<Tensor> {
        let block = (DEQUANTIZED_BLOCK / self.columns).max(1);
        let mut blocks = vec![];
        for slice in &self.slices {
            let rows = slice.shape().dims2()?.0;
            blocks.extend((0..rows).step_by(block).map(|start| (slice, start, (start + block).min(rows))));
        }
        let products = blocks.into_par_iter().map(|(slice, start, end)| {
            let ids = Tensor::arange(start as u32, end as u32, &Device::Cpu)?;
            x.matmul(&slice.embedding(&ids)?.t()?)
        });
        Ok(Tensor::cat(&products.collect::<candle_core::Result<Vec<_>>>()?, D::Minus1)?)
    }

    fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        if ids.is_empty() {
            return Ok(Tensor::zeros((0, self.columns), DType::F32, &Device::Cpu)?);
        }
        let rows = ids.iter().map(|&id| {
            let (slice, row) = (id as usize / self.rows_per_slice, id as usize % self.rows_per_slice);
            let Some(slice) = self.slices.get(slice) else {
                candle_core::bail!("token {id} is beyond the vocabulary");
            };
            slice.embedding(&Tensor::new(&[row as u32], &Device::Cpu)?)
        });
        Ok(Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    }
}

/// Blocks as candle multiplies them.
pub(super) fn qtensor(blocks: &[u8], dtype: GgmlDType, shape: &[usize]) -> Result<QTensor> {
    // The blocks are copied from bytes of any alignment into storage of their own.
    let aligned = AlignedBytes::copy(blocks);
    let storage = QStorage::from_data(Cow::Borrowed(aligned.as_slice()), &Device::Cpu, dtype)?;
    Ok(QTensor::new(storage, shape)?)
}

/// Bytes at an address that every block type may have.
struct AlignedBytes {
    words: Vec<u64>,
    len: usize,
}

impl AlignedBytes {
    fn copy(bytes: &[u8]) -> Self {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut buffer = [0; 8];
            buffer[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_ne_bytes(buffer);
        }
        Self { words, len: bytes.len() }
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: u64 has no padding and no invalid byte values; the vector holds at least `len` bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
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

    /// Quantised, dequantised and dense products of the same weights, at a width that is no multiple of 256.
    #[test]
    fn products_agree_for_every_block_type() {
        let (rows, columns) = (37, 512);
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.3;
        let weights: Vec<f32> = (0..rows * columns).map(value).collect();
        let dense = Tensor::from_vec(weights, (rows, columns), &Device::Cpu).unwrap();
        let x: Vec<f32> = (0..3 * columns).map(|i| value(i + 11)).collect();
        let x = Tensor::from_vec(x, (3, columns), &Device::Cpu).unwrap();
        use GgmlDType as T;
        for dtype in [T::Q4_0, T::Q4_1, T::Q5_0, T::Q5_1, T::Q8_0, T::Q2K, T::Q3K, T::Q4K, T::Q5K, T::Q6K] {
            let quantized = QTensor::quantize(&dense, dtype).unwrap();
            let blocks = quantized.data().unwrap();
            let load = |keep| Linear::from_blocks(&blocks, dtype, (rows, columns), keep).unwrap();
            let (kept, widened) = (load(true), load(false));
            let expected = widened.forward(&x, false).unwrap().to_vec2::<f32>().unwrap();
            let many = kept.forward(&x, false).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(many, expected, "{dtype:?}");
            let one = kept.forward(&x.narrow(0, 1, 1).unwrap(), false).unwrap().to_vec2::<f32>().unwrap();
            let scale = expected[1].iter().fold(0f32, |m, x| m.max(x.abs()));
            for (a, b) in one[0].iter().zip(&expected[1]) {
                assert!((a - b).abs() < 0.02 * scale, "{dtype:?}: {a} {b}");
            }
            let row = Embedding(kept).forward(&[36, 0, 36]).unwrap().to_vec2::<f32>().unwrap();
            let Linear::Dense(widened) = widened else { panic!("widened weights are dense") };
            let widened = widened.to_vec2::<f32>().unwrap();
            assert_eq!(row, [&widened[36][..], &widened[0][..], &widened[36][..]], "{dtype:?}");
        }
    }
}
