//! The decoder: one forward pass, read from top to bottom. It knows the architecture and nothing of prompts, policies
//! or caches: attention is whatever [`Attend`] does with queries, keys and values.

use crate::hooks::{Hooks, Site};
use crate::weights::{Embedding, Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Depth, KvPrecision, ModelConfig, Result, tensor};
use candle_core::{Device, Tensor};
use layerscope_kernels::AttentionShape;
use std::ops::Range;

/// Config and weights.
pub struct Decoder {
    config: ModelConfig,
    embedding: Embedding,
    blocks: Vec<Block>,
    final_norm: Tensor,
    unembedding: Linear,
    /// Rotary frequencies, `[head_dim / 2]`, in f32 as the models were trained with.
    frequencies: Vec<f32>,
    precision: WeightsPrecision,
    device: Device,
}

struct Block {
    attention_norm: Tensor,
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    mlp_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
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
    /// Multiply block-quantised weights in f32 even for a single row.
    pub exact: bool,
    /// What keys and values are projected from, `[rows, d]`, normalised; the layer's own input where it is `None`.
    pub keys_values_from: Option<&'a Tensor>,
}

impl Decoder {
    /// Loads every weight; `progress(done, all)` is told after each block and may break off with an error.
    ///
    /// # Errors
    /// [`crate::Error::Input`] naming the file where a weight is missing, misshapen or cut short.
    pub fn load(
        config: ModelConfig,
        source: &dyn WeightSource,
        precision: WeightsPrecision,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let (d, f) = (config.hidden, config.feed_forward);
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let linear = |weight, rows, columns| source.linear(weight, (rows, columns), precision);
        let embedding = linear(Weight::Embedding, config.vocab, d)?;
        let unembedding = if config.tied_embeddings {
            embedding.clone()
        } else {
            linear(Weight::Unembedding, config.vocab, d)?
        };
        let mut blocks = Vec::with_capacity(config.layers);
        for l in 0..config.layers {
            blocks.push(Block {
                attention_norm: source.vector(Weight::AttentionNorm(l), d)?,
                query: linear(Weight::Query(l), q, d)?,
                key: linear(Weight::Key(l), kv, d)?,
                value: linear(Weight::Value(l), kv, d)?,
                attention_output: linear(Weight::AttentionOutput(l), d, q)?,
                mlp_norm: source.vector(Weight::MlpNorm(l), d)?,
                gate: linear(Weight::Gate(l), f, d)?,
                up: linear(Weight::Up(l), f, d)?,
                down: linear(Weight::Down(l), d, f)?,
            });
            progress(l + 1, config.layers)?;
        }
        Ok(Self {
            embedding: Embedding(embedding),
            blocks,
            final_norm: source.vector(Weight::FinalNorm, d)?,
            unembedding,
            frequencies: config.rope.frequencies(config.head_dim).iter().map(|&f| f as f32).collect(),
            precision,
            device: Device::Cpu,
            config,
        })
    }

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
            scale: 1.0 / (self.config.head_dim as f32).sqrt(),
            window: self.config.windows[layer],
        }
    }

    /// The type of keys and values that goes with the weights: f32 with f32, else f16.
    pub fn kv_precision(&self) -> KvPrecision {
        match self.precision {
            WeightsPrecision::F32 => KvPrecision::F32,
            WeightsPrecision::Native => KvPrecision::F16,
        }
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the weights in memory.
    pub fn weight_bytes(&self) -> usize {
        let blocks = self.blocks.iter().flat_map(|b| {
            [&b.query, &b.key, &b.value, &b.attention_output, &b.gate, &b.up, &b.down].map(Linear::bytes)
        });
        let unembedding = if self.config.tied_embeddings { 0 } else { self.unembedding.bytes() };
        blocks.sum::<usize>() + self.embedding.0.bytes() + unembedding
    }

    /// Residual stream at the entrance of block 0, `[tokens, d]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn embed(&self, tokens: &[u32], positions: &[usize], hooks: &mut Hooks<'_>) -> Result<Tensor> {
        hooks.visit(0, Site::Embed, positions, self.embedding.forward(tokens)?)
    }

    /// The residual stream `x [rows, d]` of rows at `positions` through the half-layers of `depth`.
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
        let rotary = self.rotary(positions);
        for half in Depth::halves(depth) {
            let at = Location { layer: half.layer(), positions };
            x = if half.is_attention() {
                self.attention_half(x, at, &rotary, pass)?
            } else {
                self.mlp_half(x, at, pass)?
            };
        }
        Ok(x)
    }

    fn attention_half(
        &self,
        x: Tensor,
        at: Location<'_>,
        rotary: &Rotary,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let x = pass.hooks.visit(layer, Site::ResidPre, positions, x)?;
        let attention_output = self.attention(&self.blocks[layer], &x, at, rotary, pass)?;
        pass.hooks.visit(layer, Site::ResidMid, positions, tensor::add(&x, &attention_output)?)
    }

    fn mlp_half(&self, x: Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let mlp_output = self.mlp(&self.blocks[at.layer], &x, at, pass)?;
        pass.hooks.visit(at.layer, Site::ResidPost, at.positions, tensor::add(&x, &mlp_output)?)
    }

    /// The residual stream `x [rows, d]` through the attention norm of a layer; no hook point.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn attention_norm(&self, layer: usize, x: &Tensor) -> Result<Tensor> {
        let epsilon = self.config.norm_epsilon as f32;
        tensor::rms_norm(x, &self.blocks[layer].attention_norm, epsilon)
    }

    /// K and V of rows that do not run through `layers`, projected from their residual stream `x [rows, d]` through each
    /// layer's own attention norm, or that of layer `shared_norm`; `keep` gets each layer's, as [`Attend`] would.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn project_keys_values(
        &self,
        x: &Tensor,
        positions: &[usize],
        (layers, shared_norm): (Range<usize>, Option<usize>),
        hooks: &mut Hooks<'_>,
        keep: &mut dyn FnMut(usize, [&Tensor; 2]) -> Result<()>,
    ) -> Result<()> {
        let rotary = self.rotary(positions);
        let shared = shared_norm.map(|layer| self.attention_norm(layer, x)).transpose()?;
        for layer in layers {
            let normed = match &shared {
                Some(shared) => shared,
                None => &self.attention_norm(layer, x)?,
            };
            let projections = [&self.blocks[layer].key, &self.blocks[layer].value];
            let projected = Linear::forward_together(projections, normed, false)?;
            let [k, v] = self.keys_values(projected, Location { layer, positions }, &rotary, hooks)?;
            keep(layer, [&k, &v])?;
        }
        Ok(())
    }

    fn attention(
        &self,
        weights: &Block,
        x: &Tensor,
        at: Location<'_>,
        rotary: &Rotary,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let (rows, config) = (positions.len(), &self.config);
        let normed =
            self.norm(x, &weights.attention_norm, layer, Site::AttentionNormalized, positions, pass.hooks)?;
        let Block { query, key, value, .. } = weights;
        let [q, k, v] = match pass.keys_values_from {
            None => Linear::forward_together([query, key, value], &normed, pass.exact)?,
            Some(source) => {
                let [k, v] = Linear::forward_together([key, value], source, pass.exact)?;
                [query.forward(&normed, pass.exact)?, k, v]
            }
        };
        let q = q.reshape((rows, config.heads, config.head_dim))?;
        let q = pass.hooks.visit(layer, Site::Query, positions, q)?;
        let q = pass.hooks.visit(layer, Site::RotatedQuery, positions, rotary.apply(&q)?)?;
        let [k, v] = self.keys_values([k, v], at, rotary, pass.hooks)?;
        let z = pass.attend.attend(at, [&q, &k, &v], pass.hooks)?;
        let z = pass.hooks.visit(layer, Site::WeightedValues, positions, z)?;
        let z = z.reshape((rows, config.heads * config.head_dim))?;
        let output = weights.attention_output.forward(&z, pass.exact)?;
        pass.hooks.visit(layer, Site::AttentionOutput, positions, output)
    }

    /// K, rotated, and V, `[rows, kv_heads, head_dim]`, of their projections.
    fn keys_values(
        &self,
        [k, v]: [Tensor; 2],
        at: Location<'_>,
        rotary: &Rotary,
        hooks: &mut Hooks<'_>,
    ) -> Result<[Tensor; 2]> {
        let Location { layer, positions } = at;
        let shape = (positions.len(), self.config.kv_heads, self.config.head_dim);
        let k = hooks.visit(layer, Site::Key, positions, k.reshape(shape)?)?;
        let v = hooks.visit(layer, Site::Value, positions, v.reshape(shape)?)?;
        Ok([hooks.visit(layer, Site::RotatedKey, positions, rotary.apply(&k)?)?, v])
    }

    /// down(silu(gate(x)) · up(x))
    fn mlp(&self, weights: &Block, x: &Tensor, at: Location<'_>, pass: &mut Pass<'_, '_>) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let normed = self.norm(x, &weights.mlp_norm, layer, Site::MlpNormalized, positions, pass.hooks)?;
        let [gate, up] = Linear::forward_together([&weights.gate, &weights.up], &normed, pass.exact)?;
        let gate = pass.hooks.visit(layer, Site::MlpPre, positions, gate)?;
        let up = pass.hooks.visit(layer, Site::MlpPreLinear, positions, up)?;
        let gated = tensor::silu_gate(&gate, &up)?;
        let gated = pass.hooks.visit(layer, Site::MlpPost, positions, gated)?;
        let output = weights.down.forward(&gated, pass.exact)?;
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
        let normed = self.norm(x, &self.final_norm, 0, Site::FinalNormalized, positions, hooks)?;
        self.unembedding.forward(&normed, exact)
    }

    /// RMSNorm (Zhang & Sennrich 2019); its point shows the value before the learned scale.
    fn norm(
        &self,
        x: &Tensor,
        scale: &Tensor,
        layer: usize,
        site: Site,
        positions: &[usize],
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let epsilon = self.config.norm_epsilon as f32;
        if !hooks.wants(layer, site) {
            return tensor::rms_norm(x, scale, epsilon);
        }
        let normalized = tensor::rms_norm(x, &scale.ones_like()?, epsilon)?;
        let normalized = hooks.visit(layer, site, positions, normalized)?;
        Ok(normalized.broadcast_mul(scale)?)
    }

    fn rotary(&self, positions: &[usize]) -> Rotary {
        let angles = positions.iter().flat_map(|&p| self.frequencies.iter().map(move |f| p as f32 * f));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                (sin as f32, cos as f32)
            })
            .unzip();
        Rotary { cos, sin }
    }
}

/// cos and sin of the rotary angles, `[rows, head_dim / 2]`.
struct Rotary {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotary {
    /// Rotates pairs (i, i + head_dim/2) of `x [rows, heads, head_dim]`.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        tensor::rotate(x, [&self.cos, &self.sin])
    }
}
