//! The parts of a block.

use super::Location;
use super::experts::ExpertLayer;
use crate::config::Activation;
use crate::hooks::{Hooks, Site};
use crate::tensor::{self, Tensor};
use crate::weights::{Linear, LinearCall};
use crate::{ComputeType, Device, Result};

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
            Some(norms) => norms[which].forward(x, None),
            None => Ok(x.clone()),
        }
    }
}

impl Projection {
    /// Bytes of the matrix.
    pub(super) fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    fn call(&self) -> LinearCall<'_> {
        LinearCall { weight: &self.matrix, bias: self.bias.as_ref(), residual: None }
    }

    /// `x [rows, in]` to `[rows, out]`.
    pub(super) fn forward(&self, x: &Tensor, compute: ComputeType) -> Result<Tensor> {
        let [y] = Self::forward_together([self], x, compute)?;
        Ok(y)
    }

    /// The same added to `residual [rows, out]`.
    pub(super) fn forward_with_residual(
        &self,
        x: &Tensor,
        residual: &Tensor,
        compute: ComputeType,
    ) -> Result<Tensor> {
        let [y] = Linear::multiply([LinearCall { residual: Some(residual), ..self.call() }], x, compute)?;
        Ok(y)
    }

    /// f(gate(x)) · up(x).
    pub(super) fn forward_gated(
        activation: Activation,
        [gate, up]: [&Self; 2],
        x: &Tensor,
        compute: ComputeType,
    ) -> Result<Tensor> {
        if gate.bias.is_none() && up.bias.is_none() {
            let at_once = Linear::multiply_gated(activation, [&gate.matrix, &up.matrix], x)?;
            if let Some(gated) = at_once {
                return Ok(gated);
            }
        }
        let [gate, up] = Self::forward_together([gate, up], x, compute)?;
        tensor::gate(activation, &gate, &up)
    }

    /// Several projections of the same rows, shared out among threads together.
    pub(super) fn forward_together<const N: usize>(
        projections: [&Self; N],
        x: &Tensor,
        compute: ComputeType,
    ) -> Result<[Tensor; N]> {
        Linear::multiply(projections.map(Self::call), x, compute)
    }
}

impl Norm {
    /// `x` in rows as long as the scale; in the type of products in `compute`, where they follow.
    pub(super) fn forward(&self, x: &Tensor, compute: Option<ComputeType>) -> Result<Tensor> {
        tensor::norm(x, &self.scale, self.bias.as_ref(), self.epsilon, compute)
    }

    /// The same past a hook point, which shows the value before the learned scale and bias.
    pub(super) fn forward_shown(
        &self,
        x: &Tensor,
        at: Location<'_>,
        site: Site,
        hooks: &mut Hooks<'_>,
        compute: Option<ComputeType>,
    ) -> Result<Tensor> {
        if !hooks.wants(at.layer, site) {
            return self.forward(x, compute);
        }
        let ones = Tensor::from_vec(vec![1.0; self.scale.elements()], self.scale.dims())?;
        let zeros = Tensor::from_vec(vec![0.0; self.scale.elements()], self.scale.dims())?;
        let zeros = self.bias.as_ref().map(|_| &zeros);
        let shown = x.to_device(&Device::Cpu)?;
        let normalized = tensor::norm(&shown, &ones, zeros, self.epsilon, None)?;
        let normalized = hooks.visit(at.layer, site, at.positions, normalized)?.to_host()?;
        let scaled = normalized.broadcast_mul(&self.scale.to_host()?)?;
        let scaled = match &self.bias {
            Some(bias) => scaled.broadcast_add(&bias.to_host()?)?,
            None => scaled,
        };
        let scaled = Tensor::from(scaled).like(x)?;
        match compute {
            Some(compute) => tensor::for_products(&scaled, compute),
            None => Ok(scaled),
        }
    }
}
