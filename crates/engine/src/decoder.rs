//! The decoder: one forward pass, read from top to bottom. It knows the architecture and nothing of prompts, policies
//! or caches: attention is whatever [`Attend`] does with queries, keys and values.

mod block;
mod experts;
mod load;
mod rotary;

use crate::hooks::{Hooks, Site};
use crate::weights::{Embedding, WeightsPrecision};
use crate::{Depth, KvPrecision, MemoryNeed, ModelConfig, Result, tensor};
use block::{Block, Mlp, Norm, Projection};
use candle_core::{Device, Tensor};
use layerscope_kernels::AttentionShape;
use rotary::{Rotary, RotaryTables};
use std::ops::Range;

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
#[derive(Debug, Clone, Copy)]
pub struct Location<'a> {
    /// The layer.
    pub layer: usize,
    /// Position of each row.
    pub positions: &'a [usize],
}

/// What a forward pass runs with.
pub struct Pass<'a, 'h> {
    /// Attention.
    pub attend: &'a mut dyn Attend,
    /// Hooks.
    pub hooks: &'a mut Hooks<'h>,
    /// Most tokens that the sequence will have: LongRoPE turns long ones by other angles.
    pub sequence_len: usize,
    /// Multiply block-quantised weights in f32 even for a single row.
    pub exact: bool,
    /// What keys and values are projected from, `[rows, d]`, normalised; the layer's own input where it is `None`.
    pub keys_values_from: Option<&'a Tensor>,
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
        }
    }

    /// The type of keys and values that goes with the weights: f32 with f32, else f16.
    pub fn kv_precision(&self) -> KvPrecision {
        KvPrecision::with(self.precision)
    }

    /// Memory that a sequence takes beside the weights where it keeps `kept` tokens at each layer.
    pub fn sequence_need(&self, kept: &[usize]) -> MemoryNeed {
        MemoryNeed::of_weights(&self.config, self.kv_precision(), 0).with_sequence(&self.config, kept)
    }

    /// Where the weights are.
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
        let angles = self.rotary.angles(positions, pass.sequence_len);
        for half in Depth::halves(depth) {
            let layer = half.layer();
            let at = Location { layer, positions };
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
        let attention_output = self.attention(&x, at, rotary, pass)?;
        pass.hooks.visit(at.layer, Site::ResidMid, at.positions, tensor::add(&x, &attention_output)?)
    }

    fn mlp_half(&self, x: Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let mlp_output = self.mlp(&x, at, pass)?;
        pass.hooks.visit(at.layer, Site::ResidPost, at.positions, tensor::add(&x, &mlp_output)?)
    }

    fn parallel_block(
        &self,
        x: Tensor,
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let x = pass.hooks.visit(at.layer, Site::ResidPre, at.positions, x)?;
        let attention_output = self.attention(&x, at, rotary, pass)?;
        let mlp_output = self.mlp(&x, at, pass)?;
        let x = tensor::add(&tensor::add(&x, &attention_output)?, &mlp_output)?;
        pass.hooks.visit(at.layer, Site::ResidPost, at.positions, x)
    }

    /// The residual stream `x [rows, d]` as attention of a layer reads it; no hook point.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn attention_norm(&self, layer: usize, x: &Tensor) -> Result<Tensor> {
        match &self.blocks[layer].attention_norm {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
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
        let angles = self.rotary.angles(positions, of.sequence_len);
        let shared = of.shared_norm.map(|layer| self.attention_norm(layer, x)).transpose()?;
        for layer in of.layers {
            let normed = match &shared {
                Some(shared) => shared,
                None => &self.attention_norm(layer, x)?,
            };
            let projections = [&self.blocks[layer].key, &self.blocks[layer].value];
            let projected = Projection::forward_together(projections, normed, false)?;
            let at = Location { layer, positions };
            let [k, v] = self.keys_values(projected, at, angles.of_layer(layer), hooks)?;
            keep(layer, [&k, &v])?;
        }
        Ok(())
    }

    /// What attention adds to the residual stream `x [rows, d]`.
    fn attention(
        &self,
        x: &Tensor,
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let (block, config) = (&self.blocks[layer], &self.config);
        let normed = through(&block.attention_norm, x, at, Site::AttentionNormalized, pass.hooks)?;
        let Block { query, key, value, .. } = block;
        let [q, k, v] = match pass.keys_values_from {
            None => Projection::forward_together([query, key, value], &normed, pass.exact)?,
            Some(source) => {
                let [k, v] = Projection::forward_together([key, value], source, pass.exact)?;
                [query.forward(&normed, pass.exact)?, k, v]
            }
        };
        let shape = (positions.len(), config.heads, config.head_dim);
        let q = pass.hooks.visit(layer, Site::Query, positions, q.reshape(shape)?)?;
        let q = block.query_norm(&q)?;
        let q = pass.hooks.visit(layer, Site::RotatedQuery, positions, rotated(q, rotary)?)?;
        let [k, v] = self.keys_values([k, v], at, rotary, pass.hooks)?;
        let z = pass.attend.attend(at, [&q, &k, &v], pass.hooks)?;
        let z = pass.hooks.visit(layer, Site::WeightedValues, positions, z)?;
        let z = z.reshape((positions.len(), config.query_width()))?;
        let output = block.attention_output.forward(&z, pass.exact)?;
        let output =
            through(&block.attention_post_norm, &output, at, Site::AttentionPostNormalized, pass.hooks)?;
        let output = tensor::scale(output, config.residual_scale)?;
        pass.hooks.visit(layer, Site::AttentionOutput, positions, output)
    }

    /// K, normalised and rotated, and V, `[rows, kv_heads, head_dim]`, of their projections.
    fn keys_values(
        &self,
        [k, v]: [Tensor; 2],
        at: Location<'_>,
        rotary: Option<Rotary<'_>>,
        hooks: &mut Hooks<'_>,
    ) -> Result<[Tensor; 2]> {
        let Location { layer, positions } = at;
        let shape = (positions.len(), self.config.kv_heads, self.config.head_dim);
        let k = hooks.visit(layer, Site::Key, positions, k.reshape(shape)?)?;
        let v = hooks.visit(layer, Site::Value, positions, v.reshape(shape)?)?;
        let k = self.blocks[layer].key_norm(&k)?;
        Ok([hooks.visit(layer, Site::RotatedKey, positions, rotated(k, rotary)?)?, v])
    }

    /// What the MLP adds to the residual stream `x [rows, d]`.
    fn mlp(&self, x: &Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let block = &self.blocks[layer];
        let normed = through(&block.mlp_norm, x, at, Site::MlpNormalized, pass.hooks)?;
        let activation = self.config.activation;
        let output = match &block.mlp {
            // down(f(gate(x)) · up(x))
            Mlp::Gated { gate, up, down } => {
                let [gate, up] = Projection::forward_together([gate, up], &normed, pass.exact)?;
                let gate = pass.hooks.visit(layer, Site::MlpPre, positions, gate)?;
                let up = pass.hooks.visit(layer, Site::MlpPreLinear, positions, up)?;
                let gated = tensor::gate(activation, &gate, &up)?;
                let gated = pass.hooks.visit(layer, Site::MlpPost, positions, gated)?;
                down.forward(&gated, pass.exact)?
            }
            // down(f(up(x)))
            Mlp::Plain { up, down } => {
                let up = up.forward(&normed, pass.exact)?;
                let up = pass.hooks.visit(layer, Site::MlpPre, positions, up)?;
                let activated = tensor::activate(activation, &up)?;
                let activated = pass.hooks.visit(layer, Site::MlpPost, positions, activated)?;
                down.forward(&activated, pass.exact)?
            }
            Mlp::Experts(experts) => experts.forward(&normed, activation, pass.exact)?,
        };
        let output = through(&block.mlp_post_norm, &output, at, Site::MlpPostNormalized, pass.hooks)?;
        let output = tensor::scale(output, self.config.residual_scale)?;
        pass.hooks.visit(layer, Site::MlpOutput, positions, output)
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
        exact: bool,
    ) -> Result<Tensor> {
        let at = Location { layer: 0, positions };
        let normed = self.final_norm.forward_shown(x, at, Site::FinalNormalized, hooks)?;
        let logits = tensor::scale(self.unembedding.forward(&normed, exact)?, self.config.logit_scale)?;
        tensor::soft_cap(logits, self.config.logit_soft_cap)
    }
}

/// `x` through a norm that a block may lack.
fn through(
    norm: &Option<Norm>,
    x: &Tensor,
    at: Location<'_>,
    site: Site,
    hooks: &mut Hooks<'_>,
) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward_shown(x, at, site, hooks),
        None => Ok(x.clone()),
    }
}

fn rotated(x: Tensor, rotary: Option<Rotary<'_>>) -> Result<Tensor> {
    match rotary {
        Some(rotary) => rotary.apply(&x),
        None => Ok(x),
    }
}
