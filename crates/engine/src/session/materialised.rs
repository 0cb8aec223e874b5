//! Attention with its scores and probabilities as tensors, for the hooks that ask for them.

use super::attention::{StoredAttention, shape_under};
use crate::Result;
use crate::decoder::Location;
use crate::hooks::{Hooks, Site};
use crate::tensor::Tensor;
use candle_core::{Device, Tensor as HostTensor};

impl StoredAttention<'_> {
    /// Scores and pattern are `[H, rows, keys]`, on the CPU whatever the model runs on.
    pub(super) fn materialised(&self, at: Location<'_>, q: &Tensor, hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        let shape = shape_under(self.rules, self.decoder, layer);
        let (key_positions, keys, values) = self.store.gathered(layer)?;
        let by_query_head = |numbers: Vec<f32>| -> Result<HostTensor> {
            let (group, keys) = (shape.query_heads / shape.kv_heads, key_positions.len());
            let all = HostTensor::from_vec(numbers, (shape.kv_heads, 1, keys, shape.head_dim), &Device::Cpu)?;
            let all = all.broadcast_as((shape.kv_heads, group, keys, shape.head_dim))?;
            Ok(all.reshape((shape.query_heads, keys, shape.head_dim))?)
        };
        let (keys, values) = (by_query_head(keys)?, by_query_head(values)?);
        let queries = q.to_host()?.transpose(0, 1)?.contiguous()?;
        let scores = (queries.matmul(&keys.t()?)? * f64::from(shape.scale))?;
        let scores = match shape.soft_cap.map(f64::from) {
            Some(cap) => ((scores / cap)?.tanh()? * cap)?,
            None => scores,
        };
        let mask: Vec<f32> = positions
            .iter()
            .flat_map(|&query| {
                let hidden = if self.is_alone(layer, query) { self.prompt_len - 1..query } else { 0..0 };
                key_positions.iter().map(move |&key| {
                    let seen = self.seen.and_then(|seen| seen.get(key)).is_none_or(|seen| *seen);
                    let visible = seen && shape.sees(query, key) && !hidden.contains(&key);
                    if visible { 0.0 } else { f32::NEG_INFINITY }
                })
            })
            .collect();
        let mask = HostTensor::from_vec(mask, (1, positions.len(), key_positions.len()), &Device::Cpu)?;
        let scores = Tensor::from(scores.broadcast_add(&mask)?);
        let scores = hooks.visit(layer, Site::AttentionScores, positions, scores)?.to_host()?;
        let pattern = Tensor::from(candle_nn::ops::softmax_last_dim(&scores)?);
        let pattern = hooks.visit(layer, Site::Pattern, positions, pattern)?.to_host()?;
        Tensor::from(pattern.matmul(&values)?.transpose(0, 1)?.contiguous()?).like(q)
    }
}
