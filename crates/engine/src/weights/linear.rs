//! A matrix that multiplies rows: dense f32, or block-quantised as the file has it.

use crate::Result;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{D, Module, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// Most weights dequantised at once by one thread: what stays in cache, and far less than a whole unembedding.
const DEQUANTIZED_BLOCK: usize = 1 << 20;

/// `y = x·Wᵀ` with W `[out, in]`.
#[derive(Clone)]
pub enum Linear {
    /// f32 weights.
    Dense(Tensor),
    /// Block-quantised weights.
    Quantized(Arc<QTensor>),
}

impl Linear {
    /// Keeps block-quantised weights as they are; widens f16, bf16 and f32 ones, which the CPU would widen at every call.
    pub(super) fn from_quantized(tensor: QTensor, keep_quantized: bool) -> Result<Self> {
        let float = matches!(tensor.dtype(), GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        if float || !keep_quantized {
            Ok(Self::Dense(tensor.dequantize(&tensor.device())?))
        } else {
            Ok(Self::Quantized(Arc::new(tensor)))
        }
    }

    /// `x [rows, in]` to `[rows, out]`.
    ///
    /// Block-quantised weights multiply a single row directly (activations are rounded to 8 bits on the way); for more
    /// rows, or where `exact`, they are dequantised for the call and multiplied in f32.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub fn forward(&self, x: &Tensor, exact: bool) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Ok(x.matmul(&weight.t()?)?),
            Self::Quantized(weight) if exact || x.dim(0)? > 1 => dequantized_product(weight, x),
            Self::Quantized(weight) => Ok(QuantizedProduct(weight.clone()).forward(x)?),
        }
    }

    /// Bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(weight) => weight.elem_count() * weight.dtype().size_in_bytes(),
            Self::Quantized(weight) => weight.storage_size_in_bytes(),
        }
    }

    /// Rows of W by index, in f32: `[ids, in]`.
    fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(weight) => Ok(weight.index_select(ids, 0)?),
            Self::Quantized(weight) => Ok(weight.embedding(ids)?),
        }
    }
}

/// `x·Wᵀ` in f32, W dequantised block by block of its rows.
fn dequantized_product(weight: &QTensor, x: &Tensor) -> Result<Tensor> {
    let (rows, columns) = weight.shape().dims2()?;
    let share = rows.div_ceil(rayon::current_num_threads());
    let block = (DEQUANTIZED_BLOCK / columns).clamp(1, share);
    let starts: Vec<usize> = (0..rows).step_by(block).collect();
    let products = starts
        .into_par_iter()
        .map(|start| {
            let end = (start + block).min(rows);
            let ids = Tensor::arange(start as u32, end as u32, x.device())?;
            x.matmul(&weight.embedding(&ids)?.t()?)
        })
        .collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Tensor::cat(&products, D::Minus1)?)
}

/// `QMatMul` without its environment switches.
struct QuantizedProduct(Arc<QTensor>);

impl Module for QuantizedProduct {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        x.apply_op1_no_bwd(self.0.as_ref())
    }
}

/// Token embedding: a [`Linear`] read by row.
pub struct Embedding(pub(crate) Linear);

impl Embedding {
    /// Residual stream at the entrance of block 0, `[tokens, d]`.
    ///
    /// # Errors
    /// On a token id beyond the vocabulary.
    pub fn forward(&self, tokens: &[u32], device: &candle_core::Device) -> Result<Tensor> {
        self.0.rows(&Tensor::new(tokens, device)?)
    }
}
