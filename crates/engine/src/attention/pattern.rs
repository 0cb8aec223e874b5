//! Attention with its scores and probabilities as tensors, for the hooks that ask for them.

use super::LayerAttention;
use crate::Result;
use crate::hooks::{Hooks, Site};
use crate::kv::Gathered;
use crate::tensor::Tensor;
use candle_core::{Device, Tensor as HostTensor};
use std::collections::BTreeSet;

impl LayerAttention<'_> {
    /// Scores and pattern are `[H, rows, keys]`, on the CPU whatever the model runs on. Keys are in the order of their slots,
    /// or by position where KV heads store different ones.
    pub(super) fn with_pattern(&self, q: &Tensor, hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let (layer, positions) = (self.at.layer, self.at.positions);
        let stored = self.store.gathered(layer)?;
        let columns = columns(&stored);
        let (keys, values) = (
            self.by_query_head(&stored, &columns, |part| &part.keys)?,
            self.by_query_head(&stored, &columns, |part| &part.values)?,
        );
        let queries = q.to_host()?.transpose(0, 1)?.contiguous()?;
        let scores = (queries.matmul(&keys.t()?)? * f64::from(self.shape.scale))?;
        let scores = match self.shape.soft_cap.map(f64::from) {
            Some(cap) => ((scores / cap)?.tanh()? * cap)?,
            None => scores,
        };
        let shape = (self.shape.query_heads, positions.len(), columns.count);
        let mask = HostTensor::from_vec(self.mask(&columns), shape, &Device::Cpu)?;
        let scores = Tensor::from((scores + mask)?);
        let scores = hooks.visit(layer, Site::AttentionScores, positions, scores)?.to_host()?;
        let pattern = Tensor::from(candle_nn::ops::softmax_last_dim(&scores)?);
        let pattern = hooks.visit(layer, Site::Pattern, positions, pattern)?.to_host()?;
        Tensor::from(pattern.matmul(&values)?.transpose(0, 1)?.contiguous()?).like(q)
    }

    /// Keys or values `[H, keys, head_dim]`; zeros where a KV head does not have a key.
    fn by_query_head(
        &self,
        stored: &[Gathered],
        columns: &Columns,
        of: impl Fn(&Gathered) -> &Vec<f32>,
    ) -> Result<HostTensor> {
        let (dim, group) = (self.shape.head_dim, self.shape.query_heads / self.shape.kv_heads);
        let mut numbers = vec![0.0; self.shape.query_heads * columns.count * dim];
        for (part, columns_of_part) in stored.iter().zip(&columns.of_slots) {
            let heads = of(part).chunks_exact((part.positions.len() * dim).max(1));
            for (kv_head, slots) in part.heads.clone().zip(heads) {
                for query_head in kv_head * group..(kv_head + 1) * group {
                    for (slot, &column) in slots.chunks_exact(dim).zip(columns_of_part) {
                        numbers[(query_head * columns.count + column) * dim..][..dim].copy_from_slice(slot);
                    }
                }
            }
        }
        let shape = (self.shape.query_heads, columns.count, dim);
        Ok(HostTensor::from_vec(numbers, shape, &Device::Cpu)?)
    }

    /// 0 where a row of a head reads a key and −∞ elsewhere, `[H, rows, keys]`.
    fn mask(&self, columns: &Columns) -> Vec<f32> {
        let (rows, group) = (self.at.positions.len(), self.shape.query_heads / self.shape.kv_heads);
        let mut mask = vec![f32::NEG_INFINITY; self.shape.query_heads * rows * columns.count];
        for of_group in &self.groups {
            for keys in &of_group.keys {
                for row in of_group.rows.clone() {
                    let is_seen =
                        |key: &usize| self.shape.sees(self.at.positions[row], keys.first_position + key);
                    for key in (0..keys.len).filter(is_seen) {
                        let column = columns.of_slots[keys.group][keys.slot + key];
                        for head in keys.heads.start * group..keys.heads.end * group {
                            let key = keys.first_position + key;
                            if self.sparse.as_ref().is_some_and(|sparse| !sparse.reads(head, row, key)) {
                                continue;
                            }
                            mask[(head * rows + row) * columns.count + column] = 0.0;
                        }
                    }
                }
            }
        }
        mask
    }
}

/// Where each stored key is among the columns of the pattern.
struct Columns {
    count: usize,
    /// Of each group of KV heads, by slot.
    of_slots: Vec<Vec<usize>>,
}

fn columns(stored: &[Gathered]) -> Columns {
    if let [all] = stored {
        let count = all.positions.len();
        return Columns { count, of_slots: vec![(0..count).collect()] };
    }
    let positions: BTreeSet<usize> = stored.iter().flat_map(|part| &part.positions).copied().collect();
    let positions: Vec<usize> = positions.into_iter().collect();
    let column = |position: &usize| positions.binary_search(position).unwrap_or_default();
    let of_slots = stored.iter().map(|part| part.positions.iter().map(column).collect()).collect();
    Columns { count: positions.len(), of_slots }
}
