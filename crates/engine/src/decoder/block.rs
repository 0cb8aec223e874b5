//! The parts of a block.

use super::Location;
use super::experts::ExpertLayer;
use crate::hooks::{Hooks, Site};
use crate::weights::Linear;
use crate::{Result, tensor};
use candle_core::Tensor;

/// Weights of one block.
pub(super) struct Block {
    pub(super) attention_norm: Option<Norm>,
    pub(super) query: Projection,
    pub(super) key: Projection,
    pub(super) value: Projection,
    /// Of queries and of keys.
    pub(super) query_key_norms: Option<[Norm; 2]>,
    pub(super) attention_output: Projection,
    pub(super) attention_post_norm: Option<Norm>,
    pub(super) mlp_norm: Option<Norm>,
    pub(super) mlp: Mlp,
    pub(super) mlp_post_norm: Option<Norm>,
}

/// What a block does after attention.
pub(super) enum Mlp {
    /// With a gate.
    Gated { gate: Projection, up: Projection, down: Projection },
    /// Without.
    Plain { up: Projection, down: Projection },
    /// A few of many.
    Experts(ExpertLayer),
}

/// A matrix and perhaps a bias.
#[derive(Clone)]
pub(super) struct Projection {
    pub(super) matrix: Linear,
    /// `[out]`.
    pub(super) bias: Option<Tensor>,
}

/// RMSNorm, or LayerNorm where there is a bias.
pub(super) struct Norm {
    /// `[d]`.
    pub(super) scale: Tensor,
    /// `[d]`.
    pub(super) bias: Option<Tensor>,
    pub(super) epsilon: f32,
}

impl Block {
    /// Bytes of the matrices.
    pub(super) fn bytes(&self) -> usize {
        let attention = [&self.query, &self.key, &self.value, &self.attention_output];
        let mlp = match &self.mlp {
            Mlp::Gated { gate, up, down } => gate.bytes() + up.bytes() + down.bytes(),
            Mlp::Plain { up, down } => up.bytes() + down.bytes(),
            Mlp::Experts(experts) => experts.bytes(),
        };
        attention.map(Projection::bytes).iter().sum::<usize>() + mlp
    }

    /// Queries `[rows, H, head_dim]` through their norm.
    pub(super) fn query_norm(&self, q: &Tensor) -> Result<Tensor> {
        self.query_key_norm(0, q)
    }

    /// Keys `[rows, kv_heads, head_dim]` through their norm.
    pub(super) fn key_norm(&self, k: &Tensor) -> Result<Tensor> {
        self.query_key_norm(1, k)
    }

    fn query_key_norm(&self, which: usize, x: &Tensor) -> Result<Tensor> {
        match &self.query_key_norms {
            // Over as many elements as the norm has: those of a head, or of all heads.
            Some(norms) => norms[which].forward(x),
            None => Ok(x.clone()),
        }
    }
}

impl Projection {
    /// Bytes of the matrix.
    pub(super) fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    /// `x [rows, in]` to `[rows, out]`.
    pub(super) fn forward(&self, x: &Tensor, exact: bool) -> Result<Tensor> {
        tensor::add_bias(self.matrix.forward(x, exact)?, self.bias.as_ref())
    }

    /// Several projections of the same rows, shared out among threads together.
    pub(super) fn forward_together<const N: usize>(
        projections: [&Self; N],
        x: &Tensor,
        exact: bool,
    ) -> Result<[Tensor; N]> {
        let mut outputs = Linear::forward_together(projections.map(|p| &p.matrix), x, exact)?;
        for (output, projection) in outputs.iter_mut().zip(projections) {
            if projection.bias.is_some() {
                *output = tensor::add_bias(output.clone(), projection.bias.as_ref())?;
            }
        }
        Ok(outputs)
    }
}

impl Norm {
    /// `x` in rows as long as the scale.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.with_scale(x, &self.scale, self.bias.as_ref())
    }

    /// The same past a hook point, which shows the value before the learned scale and bias.
    pub(super) fn forward_shown(
        &self,
        x: &Tensor,
        at: Location<'_>,
        site: Site,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        if !hooks.wants(at.layer, site) {
            return self.forward(x);
        }
        let zeros = self.bias.as_ref().map(Tensor::zeros_like).transpose()?;
        let normalized = self.with_scale(x, &self.scale.ones_like()?, zeros.as_ref())?;
        let normalized = hooks.visit(at.layer, site, at.positions, normalized)?;
        tensor::add_bias(normalized.broadcast_mul(&self.scale)?, self.bias.as_ref())
    }

    fn with_scale(&self, x: &Tensor, scale: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match bias {
            Some(bias) => tensor::layer_norm(x, scale, bias, self.epsilon),
            None => tensor::rms_norm(x, scale, self.epsilon),
        }
    }
}
