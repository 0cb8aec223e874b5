//! The arithmetic of the decoder, from tokens to logits. Every activation passes its hook point.

use super::layer::{LayerWeights, Mlp, Projection};
use super::parts::Output;
use super::rotary::Rotary;
use super::{Decoder, Location, Pass};
use crate::hooks::{Hooks, Site};
use crate::tensor::Tensor;
use crate::weights::LinearMode;
use crate::{ComputeType, Depth, ModelConfig, Result};
use layerscope_kernels::matmul::ProductRows;
use std::ops::Range;

impl Decoder {
    /// Residual stream at the entrance of layer 0, `[tokens, d]`.
    ///
    /// # Errors
    /// [`crate::Error::UnknownToken`]; [`crate::Error::Misuse`] where there is not a position for each token.
    pub fn embed(&self, tokens: &[u32], positions: &[usize], hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let x = self.embedding.forward(tokens)?.scaled(self.config.embedding_scale)?;
        self.check_residual(&x, positions.len())?;
        let x = hooks.visit(0, Site::Embed, positions, x)?;
        let Some(position_embedding) = &self.position_embedding else { return Ok(x) };
        let ids: Vec<u32> = positions.iter().map(|&position| position as u32).collect();
        x.add(&hooks.visit(0, Site::PositionEmbed, positions, position_embedding.forward(&ids)?)?)
    }

    /// The residual stream `x [rows, d]` of rows at `positions` through the half-layers of `depth`.
    ///
    /// Where attention and MLP are parallel, the attention half is the whole layer and the MLP half does nothing.
    ///
    /// # Errors
    /// [`crate::Error::UnknownLayer`], [`crate::Error::Misuse`] where `x` is not `[rows, d]`, and whatever [`super::Attend`] and
    /// hooks return.
    pub fn forward(
        &self,
        mut x: Tensor,
        positions: &[usize],
        depth: Range<Depth>,
        pass: &mut Pass<'_, '_>,
    ) -> Result<Tensor> {
        self.check_residual(&x, positions.len())?;
        let on_device = self.positions_on_device(positions, pass.rows_on_device)?;
        let angles = self.angles(positions, on_device.as_ref(), pass.sequences)?;
        let adapted = self.adapted_rows(positions, pass.sequences);
        let adapted = adapted.as_deref();
        pass.compute = self.compute_type(pass.compute);
        let rows = self.product_rows(pass.sequences, positions)?;
        for half in Depth::halves(depth) {
            let layer = half.layer();
            let at = Location { layer, positions, positions_on_device: on_device.as_deref() };
            let (weights, rotary) = (self.layer(layer)?, angles.of_layer(layer));
            let mut layer =
                Layer { config: &self.config, weights, at, rotary, rows, adapted, pass: &mut *pass };
            x = match (half.is_attention(), self.config.parallel_residual) {
                (true, false) => layer.attention_half(x)?,
                (false, false) => layer.mlp_half(x)?,
                (true, true) => layer.parallel_halves(x)?,
                (false, true) => x,
            };
        }
        Ok(x)
    }

    /// The residual stream `x [rows, d]` to logits `[rows, V]`: final norm and unembedding.
    ///
    /// # Errors
    /// [`crate::Error::Misuse`] where `x` is not `[rows, d]`.
    pub fn unembed(
        &self,
        x: &Tensor,
        positions: &[usize],
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<Tensor> {
        self.unembed_as(x, positions, hooks, compute.into())
    }

    /// [`Self::unembed`] of rows of which each is multiplied as if it were alone: in eight bits where a pass multiplies so, else in f32.
    pub(crate) fn unembed_each(
        &self,
        x: &Tensor,
        positions: &[usize],
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<Tensor> {
        let rows = ProductRows { together: 0, alone: positions.len() };
        let compute = if compute == ComputeType::Int8 { compute } else { ComputeType::F32 };
        let mode = LinearMode { rows: Some(rows), ..compute.into() };
        self.unembed_as(x, positions, hooks, mode)
    }

    fn unembed_as(
        &self,
        x: &Tensor,
        positions: &[usize],
        hooks: &mut Hooks<'_>,
        mode: LinearMode<'_>,
    ) -> Result<Tensor> {
        self.check_residual(x, positions.len())?;
        let at = Location { layer: 0, positions, positions_on_device: None };
        // Logits are f32, and so is what they are made from.
        let f32 = Some(ComputeType::F32);
        let normed = self.final_norm.forward_hooked(x, at, Site::FinalNormalized, hooks, f32)?;
        let logits = self.unembedding.forward(&normed, mode)?;
        logits.scaled(self.config.logit_scale)?.soft_capped(self.config.logit_soft_cap)
    }
}

/// One layer of a forward pass.
pub(super) struct Layer<'a, 'p, 'h> {
    pub(super) config: &'a ModelConfig,
    weights: &'a LayerWeights,
    pub(super) at: Location<'a>,
    rotary: Option<Rotary<'a>>,
    /// How rows are multiplied.
    pub(super) rows: ProductRows,
    /// The rows that an adapter acts on; `None`: all.
    pub(super) adapted: Option<&'a [u32]>,
    pub(super) pass: &'a mut Pass<'p, 'h>,
}

impl Layer<'_, '_, '_> {
    fn attention_half(&mut self, x: Tensor) -> Result<Tensor> {
        let x = self.hook(Site::ResidPre, x)?;
        let x = self.attention(&x)?;
        self.hook(Site::ResidMid, x)
    }

    fn mlp_half(&mut self, x: Tensor) -> Result<Tensor> {
        let x = self.mlp(&x, &x)?;
        self.hook(Site::ResidPost, x)
    }

    fn parallel_halves(&mut self, x: Tensor) -> Result<Tensor> {
        let x = self.hook(Site::ResidPre, x)?;
        let attended = self.attention(&x)?;
        let x = self.mlp(&x, &attended)?;
        self.hook(Site::ResidPost, x)
    }

    /// x + output(attention(norm(x))).
    fn attention(&mut self, x: &Tensor) -> Result<Tensor> {
        let (weights, mode) = (self.weights, self.mode());
        let (heads, kv_heads) = (self.config.heads, self.config.kv_heads);
        let LayerWeights { query, key, value, .. } = weights;
        let normed = self.norm(&weights.attention_norm, x, Site::AttentionNormalized)?;
        let z = if self.pass.attend.has_keys_values(self.at.layer) {
            let q = self.by_head(&query.forward(&normed, mode)?, heads)?;
            let q = weights.query_norm(self.hook(Site::Query, q)?)?;
            let q = self.rotary.map_or_else(|| Ok(q.clone()), |rotary| rotary.apply(&q))?;
            let q = self.hook(Site::RotatedQuery, q)?;
            self.pass.attend.attend(self.at, &q, None, self.pass.hooks)?
        } else {
            let [q, k, v] = Projection::forward_together([query, key, value], &normed, mode)?;
            let q = self.hook(Site::Query, self.by_head(&q, heads)?)?;
            let k = self.hook(Site::Key, self.by_head(&k, kv_heads)?)?;
            let v = self.hook(Site::Value, self.by_head(&v, kv_heads)?)?;
            let (q, k) = (weights.query_norm(q)?, weights.key_norm(k)?);
            let [q, k] = match self.rotary {
                Some(rotary) => rotary.apply_to_both([&q, &k])?,
                None => [q, k],
            };
            let q = self.hook(Site::RotatedQuery, q)?;
            let k = self.hook(Site::RotatedKey, k)?;
            self.pass.attend.attend(self.at, &q, Some([&k, &v]), self.pass.hooks)?
        };
        let z = self.hook(Site::WeightedValues, z)?;
        let z = z.reshape(&[self.at.positions.len(), self.config.query_width()])?;
        let norm = &weights.attention_post_norm;
        let output = Output { norm, normalized: Site::AttentionPostNormalized, site: Site::AttentionOutput };
        self.add_projected(x, &weights.attention_output, &z, output)
    }

    /// residual + MLP(norm(x)).
    fn mlp(&mut self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let (weights, mode, f) = (self.weights, self.mode(), self.config.activation);
        let normed = self.norm(&weights.mlp_norm, x, Site::MlpNormalized)?;
        let norm = &weights.mlp_post_norm;
        let output = Output { norm, normalized: Site::MlpPostNormalized, site: Site::MlpOutput };
        match &weights.mlp {
            // down(f(gate(x)) · up(x))
            Mlp::Gated { gate, up, down } => {
                let gated = if self.hooked(Site::MlpPre) || self.hooked(Site::MlpPreLinear) {
                    let [gate, up] = Projection::forward_together([gate, up], &normed, mode)?;
                    let gate = self.hook(Site::MlpPre, gate)?;
                    let up = self.hook(Site::MlpPreLinear, up)?;
                    gate.gated(f, &up)?
                } else {
                    Projection::forward_gated(f, [gate, up], &normed, mode)?
                };
                let gated = self.hook(Site::MlpPost, gated)?;
                self.add_projected(residual, down, &gated, output)
            }
            // down(f(up(x)))
            Mlp::Plain { up, down } => {
                let up = self.hook(Site::MlpPre, up.forward(&normed, mode)?)?;
                let activated = self.hook(Site::MlpPost, up.activated(f)?)?;
                self.add_projected(residual, down, &activated, output)
            }
            Mlp::Experts(experts) => {
                let sum = self.experts(experts, &normed)?;
                self.add(residual, sum, output)
            }
        }
    }
}
