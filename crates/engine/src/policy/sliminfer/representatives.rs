//! What stands for prompt blocks when they are scored.

use super::{BLOCK, Pooling, UNIT};
use crate::kv::LayerKeys;
use crate::tensor::Tensor;
use crate::weights::Linear;
use crate::{ComputeType, Device, Result};
use layerscope_kernels::AttentionShape;
use rayon::prelude::*;

/// Rows `[blocks · per block, kv_heads · head_dim]` made of the blocks' keys, where the model runs. A block's score is the
/// largest product of its rows with the query.
pub(super) struct Representatives {
    rows: Linear,
    per_block: usize,
    device: Device,
}

impl Representatives {
    /// Of blocks of a layer that holds block i in slots 64·i ….
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn of(
        keys: &LayerKeys<'_>,
        blocks: &[usize],
        pooling: Pooling,
        width: usize,
        device: &Device,
    ) -> Result<Self> {
        let per_block = if pooling == Pooling::Units { BLOCK / UNIT } else { 1 };
        let tokens = BLOCK / per_block;
        let mut rows = vec![0.0; blocks.len() * per_block * width];
        rows.par_chunks_exact_mut(width).enumerate().for_each(|(index, row)| {
            let mut key = vec![0.0; width];
            let first = blocks[index / per_block] * BLOCK + index % per_block * tokens;
            for token in 0..tokens {
                keys.key(first + token, &mut key);
                let pairs = row.iter_mut().zip(&key);
                match pooling {
                    Pooling::Max if token == 0 => row.copy_from_slice(&key),
                    Pooling::Max => pairs.for_each(|(most, key)| *most = most.max(*key)),
                    Pooling::Units | Pooling::Mean => {
                        pairs.for_each(|(sum, key)| *sum += key / tokens as f32)
                    }
                }
            }
        });
        let rows = Linear::from_numbers(rows, (blocks.len() * per_block, width)).to_device(device)?;
        Ok(Self { rows, per_block, device: device.clone() })
    }

    /// Score of each block by a query as [`folded`] makes it.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn scores(&self, query: &[f32]) -> Result<Vec<f32>> {
        let query = Tensor::from_vec(query.to_vec(), &[1, query.len()])?.to_device(&self.device)?;
        let products = self.rows.forward(&query, ComputeType::F32)?.to_vec()?;
        Ok(products.chunks_exact(self.per_block).map(largest).collect())
    }
}

/// NaN, which only damaged weights yield, is the least.
fn largest(scores: &[f32]) -> f32 {
    scores.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// A query `[H, head_dim]` as it meets keys `[kv_heads, head_dim]`, so that one product is the mean over heads of q·k: the
/// queries that share a KV head are added up and divided by H.
pub(super) fn folded(query: &[f32], shape: &AttentionShape) -> Vec<f32> {
    let (dim, group) = (shape.head_dim, shape.query_heads / shape.kv_heads);
    let mut folded = vec![0.0; shape.kv_heads * dim];
    for (head, query) in query.chunks_exact(dim).enumerate() {
        let at = head / group * dim;
        for (sum, x) in folded[at..at + dim].iter_mut().zip(query) {
            *sum += x / shape.query_heads as f32;
        }
    }
    folded
}
