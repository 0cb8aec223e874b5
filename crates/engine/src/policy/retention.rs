//! Retention: which KV stays after the prefill, by layer and KV head.

use super::SinksAndWindow;
use crate::decoder::SequenceRows;
use crate::kv::LayerKeys;
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, KvStore, Result};
use layerscope_kernels::AttentionShape;

/// Which KV stays after the prefill.
pub trait Retention: Send + Sync {
    /// When KV is evicted.
    fn eviction(&self) -> Eviction {
        Eviction::Never
    }

    /// Of the prefill tokens that a layer stores, how many stay; of its KV heads, for the one that keeps most, or in the mean where
    /// [`Self::shares_out`]. Not asked under [`Eviction::Sliding`], which says it. What a window of the model's has passed is not
    /// stored.
    fn kept(&self, layer: LayerKv) -> usize {
        layer.stored
    }

    /// The same for one KV head.
    fn kept_by_head(&self, layer: LayerKv, _kv_head: usize) -> usize {
        self.kept(layer)
    }

    /// Which tokens of a KV head stay under [`Eviction::BeforeDecode`], one answer for each; as many as
    /// [`Self::kept_by_head`] says.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn keep_mask(&self, stored: &StoredHead<'_>) -> Result<Vec<bool>> {
        Ok(vec![true; stored.positions.len()])
    }

    /// Whether KV heads of all layers compete for the tokens that [`Self::kept_by_head`] counts: those with the largest
    /// [`Self::scores`] stay. [`Self::keep_mask`] is not asked then, and nothing is evicted before all layers have run.
    fn shares_out(&self) -> bool {
        false
    }

    /// Scores of the tokens of a KV head where heads compete; an infinite one comes before all others.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn scores(&self, stored: &StoredHead<'_>) -> Result<Vec<f32>> {
        Ok(vec![0.0; stored.positions.len()])
    }

    /// Of how many of the last prefill rows [`Self::keep_mask`] or [`Self::scores`] looks at the queries.
    fn observed_rows(&self) -> usize {
        0
    }

    /// Whether the prompt but its last token runs twice, the second time behind the first, to look at what that reads. What the
    /// second reading stores is never kept.
    fn reads_twice(&self) -> bool {
        false
    }

    /// Tokens of one layer's KV that take memory of the device while they move elsewhere or come back.
    fn in_transit(&self, _prefill_len: usize) -> usize {
        0
    }
}

/// A layer as the prefill leaves it.
#[derive(Debug, Clone, Copy)]
pub struct LayerKv {
    /// The layer.
    pub layer: usize,
    /// Prefill tokens (the prompt but its last token).
    pub prefill_len: usize,
    /// Those of them that the layer stores KV of.
    pub stored: usize,
}

/// When KV is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// Not by the retention.
    Never,
    /// After each chunk of the prefill, as soon as no later row sees a key: all rows, prompt and decode rows alike, see sinks
    /// and a window.
    Sliding(SinksAndWindow),
    /// Once the prompt but its last token has run, before that token attends.
    BeforeDecode,
}

/// What a KV head of a layer stores of the prompt but its last token.
pub struct StoredHead<'a> {
    /// The layer.
    pub layer: usize,
    /// The KV head.
    pub kv_head: usize,
    /// Prefill tokens (the prompt but its last token).
    pub prefill_len: usize,
    /// Positions, in the order of their slots.
    pub positions: &'a [usize],
    /// Positions of the second reading's tokens, in the slots behind them.
    pub(crate) read_again: &'a [usize],
    pub(crate) keys: &'a LayerKeys<'a>,
    pub(crate) queries: Option<&'a Tensor>,
    pub(crate) shape: AttentionShape,
    pub(crate) store: &'a KvStore,
    pub(crate) decoder: &'a Decoder,
    pub(crate) sequence_len: usize,
}

impl StoredHead<'_> {
    /// KV heads of the layer. Before anything is evicted, all of them store the same positions.
    pub fn kv_heads(&self) -> usize {
        self.shape.kv_heads
    }

    /// Keys, rotated, `[stored, head_dim]`; then those of a second reading.
    pub fn keys(&self) -> Vec<f32> {
        self.keys_of(self.kv_head)
    }

    /// Keys of any KV head of the layer.
    pub(super) fn keys_of(&self, kv_head: usize) -> Vec<f32> {
        self.numbers(self.keys, kv_head)
    }

    /// Values, `[stored, head_dim]`; then those of a second reading.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn values(&self) -> Result<Vec<f32>> {
        Ok(self.numbers(&self.store.values(self.layer)?, self.kv_head))
    }

    fn numbers(&self, of_layer: &LayerKeys<'_>, kv_head: usize) -> Vec<f32> {
        let dim = self.shape.head_dim;
        let mut numbers = vec![0.0; (self.positions.len() + self.read_again.len()) * dim];
        for (slot, of_slot) in numbers.chunks_exact_mut(dim).enumerate() {
            of_layer.key_of_head(kv_head, slot, of_slot);
        }
        numbers
    }

    /// cos and sin `[positions, half]` by which the layer rotates queries and keys, pairs (i, i + half); `None` where it rotates none.
    pub(super) fn rotation(&self, positions: &[usize]) -> Result<Option<[Vec<f32>; 2]>> {
        let rows = SequenceRows {
            rows: positions.len(),
            sequence_len: self.sequence_len,
            first_decode: self.prefill_len,
        };
        self.decoder.rotation_of(self.layer, positions, &[rows])
    }

    /// Queries, rotated, of the heads that share this KV head, of the last [`Retention::observed_rows`] prefill rows:
    /// `[rows, H / kv_heads, head_dim]`.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn queries(&self) -> Result<Vec<f32>> {
        self.queries_of(self.kv_head)
    }

    /// Those of any KV head of the layer.
    pub(super) fn queries_of(&self, kv_head: usize) -> Result<Vec<f32>> {
        let Some(queries) = self.queries else { return Ok(vec![]) };
        let (dim, group) = (self.shape.head_dim, self.shape.query_heads / self.shape.kv_heads);
        with_f32(queries, |queries| {
            let rows = queries.chunks_exact(self.shape.query_heads * dim);
            rows.flat_map(|row| &row[kv_head * group * dim..][..group * dim]).copied().collect()
        })
    }
}
