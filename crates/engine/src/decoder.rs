//! A decoder-only transformer: its config and weights, and what a forward pass runs with. The arithmetic is in `forward.rs`.
//!
//! The decoder knows the architecture, not prompts, policies or caches: attention is whatever [`Attend`] does with queries, keys
//! and values.

pub(crate) mod adapted;
pub(crate) mod experts;
mod forward;
mod keys_values;
pub(crate) mod layer;
mod load;
mod on_device;
mod parts;
pub(crate) mod rotary;

pub use keys_values::KeysValuesOf;
pub use on_device::RowsOnDevice;

use crate::adapter::AdapterRows;
use crate::hooks::Hooks;
use crate::tensor::Tensor;
use crate::weights::{Embedding, FileState, WeightsPrecision};
use crate::{ComputeType, Device, Error, KvPrecision, MemoryNeed, ModelConfig, Result};
use layer::{LayerWeights, Norm, Projection};
use layerscope_kernels::AttentionShape;
use layerscope_kernels::cuda::Buffer;
use layerscope_kernels::matmul::ProductRows;
use rotary::RotaryTables;
use std::sync::Arc;

/// Config and weights. `Send` and `Sync`: sequences on several threads can share one in an `Arc`.
pub struct Decoder {
    config: ModelConfig,
    embedding: Embedding,
    /// `[context, d]`, where positions are learned.
    position_embedding: Option<Embedding>,
    layers: Vec<LayerWeights>,
    final_norm: Norm,
    unembedding: Projection,
    rotary: RotaryTables,
    /// Where an adapter is beside the weights: the rows it acts on.
    adapter_rows: Option<AdapterRows>,
    precision: WeightsPrecision,
    /// The type of keys and values.
    kv: KvPrecision,
    device: Device,
    /// Files in which weights are read where they are.
    mapped_files: Vec<FileState>,
    /// The same for all that share the weights.
    weights: Arc<()>,
}

/// What attention does with new queries, keys and values: store them, choose the keys to see, attend.
pub trait Attend {
    /// `q [rows, H, head_dim]`, `k` and `v [rows, kv_heads, head_dim]`, rotated, to `[rows, H, head_dim]`. Keys and values
    /// are given unless [`Self::has_keys_values`].
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor>;

    /// Whether a layer projects no keys and values, since those of all rows are known already.
    fn has_keys_values(&self, _layer: usize) -> bool {
        false
    }
}

/// The rows of a layer that are being computed.
#[derive(Clone, Copy)]
pub struct Location<'a> {
    /// The layer.
    pub layer: usize,
    /// Position of each row.
    pub positions: &'a [usize],
    /// The same in a GPU's memory (i32), where the model runs on one.
    pub positions_on_device: Option<&'a Buffer>,
}

/// What a forward pass runs with.
pub struct Pass<'a, 'h> {
    /// Attention.
    pub attend: &'a mut dyn Attend,
    /// Hooks.
    pub hooks: &'a mut Hooks<'h>,
    /// The sequences that the rows belong to, in the order of the rows.
    pub sequences: &'a [SequenceRows],
    /// The type in which several rows are multiplied; f32 in any case where the weights are kept in f32.
    pub compute: ComputeType,
    /// On a GPU: positions and tokens, if they are there already.
    pub rows_on_device: Option<&'a RowsOnDevice>,
}

/// Rows of one sequence in a pass. On a CPU they get the same bits whatever other sequences share the pass; for that, sequences
/// with a single decode row come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRows {
    /// How many.
    pub rows: usize,
    /// Most tokens that the sequence will have: LongRoPE rotates long ones by other angles.
    pub sequence_len: usize,
    /// Position of its first decode row, p − 1: adapters of decode rows act from there on.
    pub first_decode: usize,
}

impl SequenceRows {
    /// Whether it is a single decode row, the first of these rows being at a position.
    pub(crate) fn is_alone(&self, position: usize) -> bool {
        self.rows == 1 && position >= self.first_decode
    }
}

impl Decoder {
    /// Checks that the files from which weights are read are as they were when the model was loaded.
    ///
    /// # Errors
    /// [`Error::Failure`] that names the file.
    pub fn check_files(&self) -> Result<()> {
        self.mapped_files.iter().try_for_each(FileState::check)
    }

    /// The same weights once more; clones share them.
    fn shared(&self) -> Self {
        Self {
            config: self.config.clone(),
            embedding: self.embedding.clone(),
            position_embedding: self.position_embedding.clone(),
            layers: self.layers.clone(),
            final_norm: self.final_norm.clone(),
            unembedding: self.unembedding.clone(),
            rotary: RotaryTables::new(&self.config),
            adapter_rows: self.adapter_rows,
            precision: self.precision,
            kv: self.kv,
            device: self.device.clone(),
            mapped_files: self.mapped_files.clone(),
            weights: Arc::clone(&self.weights),
        }
    }

    /// Architecture numbers.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sizes of a layer's attention; a layer beyond the last has no window.
    pub fn attention_shape(&self, layer: usize) -> AttentionShape {
        AttentionShape {
            query_heads: self.config.heads,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
            scale: self.config.attention_scale as f32,
            soft_cap: self.config.attention_soft_cap.map(|cap| cap as f32),
            window: self.config.windows.get(layer).copied().flatten(),
            sinks: 0,
        }
    }

    /// The type of keys and values.
    pub fn kv_precision(&self) -> KvPrecision {
        self.kv
    }

    /// The same model, which keeps keys and values in a type.
    ///
    /// # Errors
    /// As [`KvPrecision::check`].
    pub fn with_kv(&self, kv: KvPrecision) -> Result<Self> {
        kv.check(&self.config, self.precision, &self.device)?;
        Ok(Self { kv, ..self.shared() })
    }

    /// Memory that a sequence takes beside the weights where it keeps `kept` tokens at each layer.
    pub fn sequence_need(&self, kept: &[usize]) -> MemoryNeed {
        MemoryNeed::of_weights(&self.config, self.kv_precision(), 0, &self.device)
            .with_sequence(&self.config, kept)
    }

    /// Whether an adapter is beside the weights.
    pub fn has_adapter(&self) -> bool {
        self.adapter_rows.is_some()
    }

    /// Where the weights are and the model runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> usize {
        let unembedding = if self.config.tied_embeddings { 0 } else { self.unembedding.bytes() };
        let positions = self.position_embedding.as_ref().map_or(0, |positions| positions.0.bytes());
        self.layers.iter().map(LayerWeights::bytes).sum::<usize>()
            + self.embedding.0.bytes()
            + positions
            + unembedding
    }

    /// Bytes of the weights that a decode step reads: of experts those that a token chooses, of an embedding that is not the
    /// unembedding next to nothing.
    pub fn step_weight_bytes(&self) -> usize {
        self.layers.iter().map(LayerWeights::step_bytes).sum::<usize>() + self.unembedding.bytes()
    }

    pub(crate) fn final_norm(&self) -> &Norm {
        &self.final_norm
    }

    pub(crate) fn unembedding(&self) -> &Projection {
        &self.unembedding
    }

    /// cos and sin `[rows, half]` by which queries and keys of a layer are rotated, times the embedding's magnitude; `None` where
    /// they are not.
    pub(crate) fn rotation_of(
        &self,
        layer: usize,
        positions: &[usize],
        sequences: &[SequenceRows],
    ) -> Result<Option<[Vec<f32>; 2]>> {
        let angles = self.rotary.angles(positions, sequences);
        angles.of_layer(layer).map(|rotary| rotary.on_host()).transpose()
    }

    /// The type in which several rows are multiplied, where `wanted` is asked for.
    fn compute_type(&self, wanted: ComputeType) -> ComputeType {
        match self.precision {
            WeightsPrecision::F32 => ComputeType::F32,
            WeightsPrecision::Native => wanted,
        }
    }

    /// Weights of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Result<&LayerWeights> {
        self.layers.get(layer).ok_or(Error::UnknownLayer { layer, layers: self.layers.len() })
    }

    /// That rows at these positions are those of the sequences, single decode rows last; how they are multiplied: single decode
    /// rows alone, all others together.
    fn product_rows(&self, sequences: &[SequenceRows], positions: &[usize]) -> Result<ProductRows> {
        let mut at = 0;
        let alone: Vec<bool> = sequences
            .iter()
            .map(|sequence| {
                let position = positions.get(at).copied().unwrap_or(0);
                at += sequence.rows;
                sequence.is_alone(position)
            })
            .collect();
        let count = alone.iter().filter(|alone| **alone).count();
        if at != positions.len() || !alone.is_sorted() {
            return Err(Error::misuse("the rows of a pass are not those of its sequences, single ones last"));
        }
        Ok(ProductRows { together: at - count, alone: count })
    }

    /// That `x` is a residual stream `[rows, d]`.
    fn check_residual(&self, x: &Tensor, rows: usize) -> Result<()> {
        let expected = [rows, self.config.hidden];
        match x.dims() == expected {
            true => Ok(()),
            false => Err(Error::misuse(format!(
                "a residual stream is {:?}, where {expected:?} is expected",
                x.dims()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_decoder_can_be_shared_by_threads() {
        fn check<T: Send + Sync>() {}
        check::<Decoder>();
        check::<Arc<Decoder>>();
        check::<Tensor>();
        check::<Error>();
    }
}
