//! The decoder: one forward pass, read from top to bottom. It knows the architecture and nothing of prompts, policies
//! or caches: attention is whatever [`Attend`] does with queries, keys and values.

mod block;
mod experts;
mod load;
pub(crate) mod rotary;

use crate::hooks::{Hooks, Site};
use crate::tensor::{self, Tensor};
use crate::weights::{Embedding, WeightsPrecision};
use crate::{ComputeType, Depth, Device, KvPrecision, MemoryNeed, ModelConfig, Result};
use block::{Block, Mlp, Norm, Projection};
use layerscope_kernels::AttentionShape;
use layerscope_kernels::cuda::Buffer;
use rotary::{Rotary, RotaryTables};
use std::ops::Range;
use std::sync::Arc;

/// Config and weights.
pub struct Decoder {
    config: ModelConfig,
    embedding: Embedding,
    /// `[context, d]`, where positions are learned.
    position_embedding: Option<Embedding>,
    blocks: Vec<Block>,
    final_norm: Norm,
    unembedding: Projection,
    rotary: RotaryTables,
    precision: WeightsPrecision,
    device: Device,
}

/// What attention does with new queries, keys and values: store them, choose the keys to see, attend.
pub trait Attend {
    /// `q [rows, H, head_dim]`, `k` and `v [rows, kv_heads, head_dim]`, rotated, to `[rows, H, head_dim]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn attend(&mut self, at: Location<'_>, qkv: [&Tensor; 3], hooks: &mut Hooks<'_>) -> Result<Tensor>;
}

/// Which rows of which layer are being computed.
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
    /// Most tokens that the sequence will have: LongRoPE turns long ones by other angles.
    pub sequence_len: usize,
    /// The type in which several rows are multiplied; f32 in any case where the weights are kept in f32.
    pub compute: ComputeType,
    /// On a GPU: where positions and tokens are, if they are there already.
    pub rows_on_device: Option<&'a RowsOnDevice>,
    /// What keys and values are projected from, `[rows, d]`, normalised; the layer's own input where it is `None`.
    pub keys_values_from: Option<&'a Tensor>,
}

/// What tells rows apart, in a GPU's memory: read when kernels run rather than when they are queued.
#[derive(Clone)]
pub struct RowsOnDevice {
    /// Position of each row, i32.
    pub positions: Arc<Buffer>,
    /// Token of each row, u32.
    pub tokens: Arc<Buffer>,
}

/// Layers whose keys and values are projected from one residual stream.
#[derive(Debug, Clone)]
pub struct KeysValuesOf {
    /// The layers.
    pub layers: Range<usize>,
    /// The layer whose attention norm all of them share; each its own where it is `None`.
    pub shared_norm: Option<usize>,
    /// As in [`Pass`].
    pub sequence_len: usize,
}

/// What happens to the output of attention or MLP before it joins the residual stream.
struct Half<'a> {
    norm: &'a Option<Norm>,
    /// Where the normalised output is shown, and where the whole is.
    normalized: Site,
    output: Site,
}

impl Decoder {
    /// Architecture numbers.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sizes of a layer's attention.
    pub fn attention_shape(&self, layer: usize) -> AttentionShape {
        AttentionShape {
            query_heads: self.config.heads,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
            scale: self.config.attention_scale as f32,
            soft_cap: self.config.attention_soft_cap.map(|cap| cap as f32),
            window: self.config.windows[layer],
            sinks: 0,
        }
    }

    /// The type of keys and values that goes with the weights.
    pub fn kv_precision(&self) -> KvPrecision {
        KvPrecision::with(self.precision, &self.device)
    }

    /// Memory that a sequence takes beside the weights where it keeps `kept` tokens at each layer.
    pub fn sequence_need(&self, kept: &[usize]) -> MemoryNeed {
        MemoryNeed::of_weights(&self.config, self.kv_precision(), 0, &self.device)
            .with_sequence(&self.config, kept)
    }

    /// Where the weights are and the model runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> usize {
        let unembedding = if self.config.tied_embeddings { 0 } else { self.unembedding.bytes() };
        let positions = self.position_embedding.as_ref().map_or(0, |positions| positions.0.bytes());
        self.blocks.iter().map(Block::bytes).sum::<usize>()
            + self.embedding.0.bytes()
            + positions
            + unembedding
    }

    /// Residual stream at the entrance of block 0, `[tokens, d]`.
    ///
    /// # Errors
    /// On a token beyond the vocabulary.
    pub fn embed(&self, tokens: &[u32], positions: &[usize], hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let x = tensor::scale(self.embedding.forward(tokens)?, self.config.embedding_scale)?;
        let x = hooks.visit(0, Site::Embed, positions, x)?;
        let Some(position_embedding) = &self.position_embedding else { return Ok(x) };
        let ids: Vec<u32> = positions.iter().map(|&position| position as u32).collect();
        let learned = hooks.visit(0, Site::PositionEmbed, positions, position_embedding.forward(&ids)?)?;
        tensor::add(&x, &learned)
    }

    /// [`Self::embed`] of `count` rows whose tokens, within the vocabulary, and positions are on the GPU; without hooks.
    pub(crate) fn embed_on_device(&self, rows: &RowsOnDevice, count: usize) -> Result<Tensor> {
        let x = self.embedding.forward_on_device(&rows.tokens, count)?;
        let x = tensor::scale(x, self.config.embedding_scale)?;
        let Some(position_embedding) = &self.position_embedding else { return Ok(x) };
        tensor::add(&x, &position_embedding.forward_on_device(&rows.positions, count)?)
    }

    /// The residual stream `x [rows, d]` of rows at `positions` through the half-layers of `depth`.
    ///
    /// Where attention and MLP are parallel, the attention half is the whole block and the MLP half does nothing.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn forward(
        &self,
        mut x: Tensor,
        positions: &[usize],
        depth: Range<Depth>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let on_device = self.positions_on_device(positions, pass.rows_on_device)?;
        let angles = self.angles(positions, on_device.as_ref(), pass.sequence_len)?;
        pass.compute = self.compute_type(pass.compute);
        for half in Depth::halves(depth) {
            let layer = half.layer();
            let at = Location { layer, positions, positions_on_device: on_device.as_deref() };
            let rotary = angles.of_layer(layer);
            x = match (half.is_attention(), self.config.parallel_residual) {
                (true, false) => self.attention_half(x, at, rotary, pass)?,
                (false, false) => self.mlp_half(x, at, pass)?,
                (true, true) => self.parallel_block(x, at, rotary, pass)?,
                (false, true) => x,
            };
        }
        Ok(x)
    }

    fn attention_half(
        &self,
        x: Tensor,
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let x = pass.hooks.visit(at.layer, Site::ResidPre, at.positions, x)?;
        let x = self.attention(&x, at, rotary, pass)?;
        pass.hooks.visit(at.layer, Site::ResidMid, at.positions, x)
    }

    fn mlp_half(&self, x: Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let x = self.mlp(&x, &x, at, pass)?;
        pass.hooks.visit(at.layer, Site::ResidPost, at.positions, x)
    }

    fn parallel_block(
        &self,
        x: Tensor,
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let x = pass.hooks.visit(at.layer, Site::ResidPre, at.positions, x)?;
        let attended = self.attention(&x, at, rotary, pass)?;
        let x = self.mlp(&x, &attended, at, pass)?;
        pass.hooks.visit(at.layer, Site::ResidPost, at.positions, x)
    }

    /// The residual stream `x [rows, d]` as attention of a layer reads it, for products in `compute`; no hook point.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn attention_norm(&self, layer: usize, x: &Tensor, compute: ComputeType) -> Result<Tensor> {
        let compute = self.compute_type(compute);
        match &self.blocks[layer].attention_norm {
            Some(norm) => norm.forward(x, Some(compute)),
            None => tensor::for_products(x, compute),
        }
    }

    /// The type in which several rows are multiplied, where `wanted` is asked for.
    fn compute_type(&self, wanted: ComputeType) -> ComputeType {
        match self.precision {
            WeightsPrecision::F32 => ComputeType::F32,
            WeightsPrecision::Native => wanted,
        }
    }

    /// Positions in the memory of the GPU that the model runs on, if it runs on one.
    pub(crate) fn positions_on_device(
        &self,
        positions: &[usize],
        given: Option<&RowsOnDevice>,
    ) -> Result<Option<Arc<Buffer>>> {
        match (&self.device, given) {
            (Device::Cpu, _) => Ok(None),
            (_, Some(rows)) => Ok(Some(Arc::clone(&rows.positions))),
            (Device::Cuda(device), None) => {
                let positions: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
                Ok(Some(Arc::new(device.upload(&positions)?)))
            }
        }
    }

    fn angles(
        &self,
        positions: &[usize],
        on_device: Option<&Arc<Buffer>>,
        sequence_len: usize,
    ) -> Result<rotary::Angles<'_>> {
        match on_device {
            None => Ok(self.rotary.angles(positions, sequence_len)),
            Some(positions) => self.rotary.angles_on_device(Arc::clone(positions), sequence_len),
        }
    }

    /// K and V of rows that do not run through the layers, projected from their residual stream `x [rows, d]`; `keep` gets
    /// each layer's, as [`Attend`] would.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn project_keys_values(
        &self,
        x: &Tensor,
        positions: &[usize],
        of: KeysValuesOf,
        hooks: &mut Hooks<'_>,
        keep: &mut dyn FnMut(usize, [&Tensor; 2]) -> Result<()>,
    ) -> Result<()> {
        let on_device = self.positions_on_device(positions, None)?;
        let angles = self.angles(positions, on_device.as_ref(), of.sequence_len)?;
        let shared =
            of.shared_norm.map(|layer| self.attention_norm(layer, x, ComputeType::Bf16)).transpose()?;
        for layer in of.layers {
            let normed = match &shared {
                Some(shared) => shared,
                None => &self.attention_norm(layer, x, ComputeType::Bf16)?,
            };
            let projections = [&self.blocks[layer].key, &self.blocks[layer].value];
            let compute = self.compute_type(ComputeType::Bf16);
            let projected = Projection::forward_together(projections, normed, compute)?;
            let at = Location { layer, positions, positions_on_device: on_device.as_deref() };
            let [k, v] = self.keys_values(projected, at, hooks)?;
            let k = match angles.of_layer(layer) {
                Some(rotary) => rotary.apply(&k)?,
                None => k,
            };
            let k = hooks.visit(layer, Site::RotatedKey, positions, k)?;
            keep(layer, [&k, &v])?;
        }
        Ok(())
    }

    /// The residual stream `x [rows, d]` with what attention adds to it.
    fn attention(
        &self,
        x: &Tensor,
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        let (block, config) = (&self.blocks[layer], &self.config);
        let normed = through(&block.attention_norm, x, at, Site::AttentionNormalized, pass)?;
        let Block { query, key, value, .. } = block;
        let [q, k, v] = match pass.keys_values_from {
            None => Projection::forward_together([query, key, value], &normed, pass.compute)?,
            Some(source) => {
                let [k, v] = Projection::forward_together([key, value], source, pass.compute)?;
                [query.forward(&normed, pass.compute)?, k, v]
            }
        };
        let shape = [positions.len(), config.heads, config.head_dim];
        let q = pass.hooks.visit(layer, Site::Query, positions, q.reshape(&shape)?)?;
        let q = block.query_norm(&q)?;
        let [k, v] = self.keys_values([k, v], at, pass.hooks)?;
        let [q, k] = match rotary {
            Some(rotary) => rotary.apply_to_both([&q, &k])?,
            None => [q, k],
        };
        let q = pass.hooks.visit(layer, Site::RotatedQuery, positions, q)?;
        let k = pass.hooks.visit(layer, Site::RotatedKey, positions, k)?;
        let z = pass.attend.attend(at, [&q, &k, &v], pass.hooks)?;
        let z = pass.hooks.visit(layer, Site::WeightedValues, positions, z)?;
        let z = z.reshape(&[positions.len(), config.query_width()])?;
        let half = Half {
            norm: &block.attention_post_norm,
            normalized: Site::AttentionPostNormalized,
            output: Site::AttentionOutput,
        };
        self.add_projected(&block.attention_output, &z, x, &half, at, pass)
    }

    /// K, normalised, and V, `[rows, kv_heads, head_dim]`, of their projections.
    fn keys_values(
        &self,
        [k, v]: [Tensor; 2],
        at: Location<'_>,
        hooks: &mut Hooks<'_>,
    ) -> Result<[Tensor; 2]> {
        let Location { layer, positions, .. } = at;
        let shape = [positions.len(), self.config.kv_heads, self.config.head_dim];
        let k = hooks.visit(layer, Site::Key, positions, k.reshape(&shape)?)?;
        let v = hooks.visit(layer, Site::Value, positions, v.reshape(&shape)?)?;
        Ok([self.blocks[layer].key_norm(&k)?, v])
    }

    /// `onto [rows, d]` with what the MLP makes of the residual stream `x [rows, d]`.
    fn mlp(&self, x: &Tensor, onto: &Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let Location { layer, positions, .. } = at;
        let block = &self.blocks[layer];
        let normed = through(&block.mlp_norm, x, at, Site::MlpNormalized, pass)?;
        let activation = self.config.activation;
        let half =
            Half { norm: &block.mlp_post_norm, normalized: Site::MlpPostNormalized, output: Site::MlpOutput };
        match &block.mlp {
            // down(f(gate(x)) · up(x))
            Mlp::Gated { gate, up, down } => {
                let shown = [Site::MlpPre, Site::MlpPreLinear];
                let gated = if shown.iter().any(|&site| pass.hooks.wants(layer, site)) {
                    let [gate, up] = Projection::forward_together([gate, up], &normed, pass.compute)?;
                    let gate = pass.hooks.visit(layer, Site::MlpPre, positions, gate)?;
                    let up = pass.hooks.visit(layer, Site::MlpPreLinear, positions, up)?;
                    tensor::gate(activation, &gate, &up)?
                } else {
                    Projection::forward_gated(activation, [gate, up], &normed, pass.compute)?
                };
                let gated = pass.hooks.visit(layer, Site::MlpPost, positions, gated)?;
                self.add_projected(down, &gated, onto, &half, at, pass)
            }
            // down(f(up(x)))
            Mlp::Plain { up, down } => {
                let up = up.forward(&normed, pass.compute)?;
                let up = pass.hooks.visit(layer, Site::MlpPre, positions, up)?;
                let activated = tensor::activate(activation, &up)?;
                let activated = pass.hooks.visit(layer, Site::MlpPost, positions, activated)?;
                self.add_projected(down, &activated, onto, &half, at, pass)
            }
            Mlp::Experts(experts) => {
                let output = experts.forward(&normed, activation, pass.compute)?;
                self.add_output(&output, onto, &half, at, pass)
            }
        }
    }

    /// `onto [rows, d]` with a projection of `x`: in one pass where nothing happens to it on the way.
    fn add_projected(
        &self,
        projection: &Projection,
        x: &Tensor,
        onto: &Tensor,
        half: &Half<'_>,
        at: Location<'_>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let direct = half.norm.is_none()
            && self.config.residual_scale == 1.0
            && !pass.hooks.wants(at.layer, half.output);
        if direct {
            return projection.forward_with_residual(x, onto, pass.compute);
        }
        self.add_output(&projection.forward(x, pass.compute)?, onto, half, at, pass)
    }

    /// `onto [rows, d]` with what a half of a block yields.
    fn add_output(
        &self,
        output: &Tensor,
        onto: &Tensor,
        half: &Half<'_>,
        at: Location<'_>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let output = match half.norm {
            Some(norm) => norm.forward_shown(output, at, half.normalized, pass.hooks, None)?,
            None => output.clone(),
        };
        let output = tensor::scale(output, self.config.residual_scale)?;
        tensor::add(onto, &pass.hooks.visit(at.layer, half.output, at.positions, output)?)
    }

    /// Final norm and unembedding: the residual stream `[rows, d]` to logits `[rows, V]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn unembed(
        &self,
        x: &Tensor,
        positions: &[usize],
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<Tensor> {
        let at = Location { layer: 0, positions, positions_on_device: None };
        // Logits are f32, and so is what they are made from.
        let f32 = Some(ComputeType::F32);
        let normed = self.final_norm.forward_shown(x, at, Site::FinalNormalized, hooks, f32)?;
        let logits = tensor::scale(self.unembedding.forward(&normed, compute)?, self.config.logit_scale)?;
        tensor::soft_cap(logits, self.config.logit_soft_cap)
    }
}

/// `x` through a norm that a block may lack, as products take it.
fn through(
    norm: &Option<Norm>,
    x: &Tensor,
    at: Location<'_>,
    site: Site,
    pass: &mut Pass<'_, '_>,
) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward_shown(x, at, site, pass.hooks, Some(pass.compute)),
        None => tensor::for_products(x, pass.compute),
    }
}
