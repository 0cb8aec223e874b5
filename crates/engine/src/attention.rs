//! Attention of one layer: a description of rows, the keys that they read and the statistics wanted, and two executors of
//! it, one on the CPU and one on a GPU.

pub(crate) mod device;
mod host;
mod pattern;

use crate::decoder::Location;
use crate::hooks::{Hooks, Site};
use crate::kv::{KeyRange, KvStore};
use crate::tensor::Tensor;
use crate::{Error, Result};
use layerscope_kernels::{AttentionShape, AttentionStatistics, ReadLimits, Received, SparseKeys};
use std::ops::Range;

/// What the rows of a layer attend to.
pub struct LayerAttention<'a> {
    /// Sizes, window and sinks.
    pub shape: AttentionShape,
    /// The layer, and the position of each row.
    pub at: Location<'a>,
    /// Where stored keys and values are.
    pub store: &'a KvStore,
    /// All rows, ascending.
    pub groups: Vec<RowGroup>,
    /// K and V `[rows, kv_heads, head_dim]` of rows that the store does not have: each group then reads its own too, at the
    /// positions of its rows. Groups have as many rows each.
    pub own: Option<[&'a Tensor; 2]>,
    /// What prompt rows read, of one group that reads all stored keys in the order of their positions; all where there is none.
    pub sparse: Option<SparseKeys>,
    /// AttentionStatistics of the groups that are measured, and attention received by prompt positions 0 … this−1; `None` where no
    /// statistics are wanted.
    pub statistics: Option<usize>,
    /// What is listed of the prompt positions that each measured row reads; only with attention received.
    pub reads: Option<ReadLimits>,
}

/// Rows that read the same keys, each those at or before its own position.
#[derive(Debug, Clone)]
pub struct RowGroup {
    /// Which rows; their positions ascend.
    pub rows: Range<usize>,
    /// Stored keys.
    pub keys: Vec<KeyRange>,
    /// Whether statistics are taken. Groups that are measured come last.
    pub measured: bool,
}

/// Attention statistics of one layer, over decode rows.
pub struct LayerStatistics {
    /// Mass and entropy, index `row · H + head`.
    pub rows: AttentionStatistics,
    /// Attention received by prompt positions 0 … p−1, and the strongest of them by row; without positions where it was not
    /// asked for.
    pub received: Received,
}

impl LayerAttention<'_> {
    /// Queries `[rows, H, head_dim]` to outputs of the same shape, and the statistics that are wanted.
    ///
    /// Scores and probabilities exist as tensors only where a hook asks for them.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn attend(&self, q: &Tensor, hooks: &mut Hooks<'_>) -> Result<(Tensor, Option<LayerStatistics>)> {
        let layer = self.at.layer;
        if hooks.wants(layer, Site::AttentionScores) || hooks.wants(layer, Site::Pattern) {
            return Ok((self.with_pattern(q, hooks)?, None));
        }
        let (output, statistics) = match q.on_device() {
            Some(q) => self.attend_on_device(q)?,
            None => self.attend_on_host(q)?,
        };
        Ok((output, statistics.map(|statistics| statistics.checked(layer)).transpose()?))
    }

    /// Whether a group reads all keys that are stored.
    fn reads_everything(&self, group: &RowGroup) -> bool {
        let read: usize = group.keys.iter().map(|keys| keys.heads.len() * keys.len).sum();
        read == self.store.stored_keys(self.at.layer)
    }
}

/// By how much the masses of a row may differ from 1 in sum.
const MASS_TOLERANCE: f32 = 1e-4;

impl LayerStatistics {
    /// Itself, if the masses of each row sum to 1. Those of an undefined softmax are NaN.
    ///
    /// # Errors
    /// [`Error::Misuse`] that names the layer.
    pub(crate) fn checked(self, layer: usize) -> Result<Self> {
        let sums = self.rows.mass.iter().map(|mass| mass.iter().sum::<f32>());
        match sums.into_iter().find(|sum| (sum - 1.0).abs() > MASS_TOLERANCE) {
            Some(sum) => Err(Error::misuse(format!("attention at layer {layer} sums to {sum} instead of 1"))),
            None => Ok(self),
        }
    }

    /// Those of rows that went through the layers one after the other.
    pub(crate) fn joined(of_rows: Vec<Vec<Self>>) -> Vec<Self> {
        let mut joined: Vec<Self> = vec![];
        for layers in of_rows {
            if joined.is_empty() {
                joined = layers;
                continue;
            }
            for (all, one) in joined.iter_mut().zip(layers) {
                all.rows.mass.extend(one.rows.mass);
                all.rows.entropy.extend(one.rows.entropy);
                all.received.add(&one.received);
            }
        }
        joined
    }
}
