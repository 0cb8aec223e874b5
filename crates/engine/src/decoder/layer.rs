//! Weights of a layer, and the small operations they stand for.

use super::Location;
use super::adapted::Addition;
use super::experts::ExpertLayer;
use crate::adapter::Target;
use crate::config::Activation;
use crate::hooks::{Hooks, Site};
use crate::tensor::Tensor;
use crate::weights::{Linear, LinearCall, LinearMode};
use crate::{ComputeType, Device, Result};

/// Weights of one layer.
#[derive(Clone)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Option<Norm>,
    pub(crate) query: Projection,
    pub(crate) key: Projection,
    pub(crate) value: Projection,
    /// Of queries and of keys.
    pub(crate) query_key_norms: Option<[Norm; 2]>,
    pub(crate) attention_output: Projection,
    pub(crate) attention_post_norm: Option<Norm>,
    pub(crate) mlp_norm: Option<Norm>,
    pub(crate) mlp: Mlp,
    pub(crate) mlp_post_norm: Option<Norm>,
}

/// What a layer does after attention.
#[derive(Clone)]
pub(crate) enum Mlp {
    /// With a gate.
    Gated { gate: Projection, up: Projection, down: Projection },
    /// Without.
    Plain { up: Projection, down: Projection },
    /// A mixture of experts.
    Experts(ExpertLayer),
}

/// x·Wᵀ + bias.
#[derive(Clone)]
pub(crate) struct Projection {
    pub(crate) weight: Linear,
    /// `[out]`.
    pub(crate) bias: Option<Tensor>,
    /// What an adapter adds.
    pub(crate) addition: Option<Addition>,
}

/// RMSNorm, or LayerNorm where there is a bias.
#[derive(Clone)]
pub(crate) struct Norm {
    /// `[d]`.
    pub(crate) weight: Tensor,
    /// `[d]`.
    pub(crate) bias: Option<Tensor>,
    pub(crate) epsilon: f32,
}

impl LayerWeights {
    /// Bytes of the matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes_with(ExpertLayer::bytes)
    }

    /// Bytes of the matrices that one token is multiplied with.
    pub(crate) fn step_bytes(&self) -> usize {
        self.bytes_with(ExpertLayer::step_bytes)
    }

    fn bytes_with(&self, of_experts: impl Fn(&ExpertLayer) -> usize) -> usize {
        let attention = [&self.query, &self.key, &self.value, &self.attention_output];
        let mlp = match &self.mlp {
            Mlp::Gated { gate, up, down } => gate.bytes() + up.bytes() + down.bytes(),
            Mlp::Plain { up, down } => up.bytes() + down.bytes(),
            Mlp::Experts(experts) => of_experts(experts),
        };
        attention.map(Projection::bytes).iter().sum::<usize>() + mlp
    }

    /// The matrix of a target; `None` where the layer has none, or has experts in its place.
    pub(crate) fn projection(&self, target: Target) -> Option<&Projection> {
        match (target, &self.mlp) {
            (Target::Query, _) => Some(&self.query),
            (Target::Key, _) => Some(&self.key),
            (Target::Value, _) => Some(&self.value),
            (Target::AttentionOutput, _) => Some(&self.attention_output),
            (Target::Gate, Mlp::Gated { gate, .. }) => Some(gate),
            (Target::Up, Mlp::Gated { up, .. } | Mlp::Plain { up, .. }) => Some(up),
            (Target::Down, Mlp::Gated { down, .. } | Mlp::Plain { down, .. }) => Some(down),
            _ => None,
        }
    }

    /// As [`Self::projection`].
    pub(crate) fn projection_mut(&mut self, target: Target) -> Option<&mut Projection> {
        match (target, &mut self.mlp) {
            (Target::Query, _) => Some(&mut self.query),
            (Target::Key, _) => Some(&mut self.key),
            (Target::Value, _) => Some(&mut self.value),
            (Target::AttentionOutput, _) => Some(&mut self.attention_output),
            (Target::Gate, Mlp::Gated { gate, .. }) => Some(gate),
            (Target::Up, Mlp::Gated { up, .. } | Mlp::Plain { up, .. }) => Some(up),
            (Target::Down, Mlp::Gated { down, .. } | Mlp::Plain { down, .. }) => Some(down),
            _ => None,
        }
    }

    /// The norm of queries `[rows, H, head_dim]`, over as many elements as it has: those of a head, or of all heads.
    pub(crate) fn query_norm(&self, q: Tensor) -> Result<Tensor> {
        match &self.query_key_norms {
            Some([norm, _]) => norm.forward(&q, None),
            None => Ok(q),
        }
    }

    /// [`Self::query_norm`] of keys `[rows, kv_heads, head_dim]`.
    pub(crate) fn key_norm(&self, k: Tensor) -> Result<Tensor> {
        match &self.query_key_norms {
            Some([_, norm]) => norm.forward(&k, None),
            None => Ok(k),
        }
    }
}

impl Projection {
    /// Bytes of the matrix.
    pub(crate) fn bytes(&self) -> usize {
        self.weight.bytes() + self.addition.as_ref().map_or(0, Addition::bytes)
    }

    fn call(&self) -> LinearCall<'_> {
        LinearCall { weight: &self.weight, bias: self.bias.as_ref(), residual: None }
    }

    /// `x [rows, in]` to `[rows, out]`.
    pub(crate) fn forward(&self, x: &Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        let [y] = Self::forward_together([self], x, mode)?;
        Ok(y)
    }

    /// `residual [rows, out]` + the projection of `x [rows, in]`.
    pub(crate) fn forward_with_residual(
        &self,
        x: &Tensor,
        residual: &Tensor,
        mode: LinearMode<'_>,
    ) -> Result<Tensor> {
        let [y] = Linear::multiply([LinearCall { residual: Some(residual), ..self.call() }], x, mode)?;
        self.adapted(y, x, mode)
    }

    /// f(gate(x)) · up(x).
    pub(crate) fn forward_gated(
        activation: Activation,
        [gate, up]: [&Self; 2],
        x: &Tensor,
        mode: LinearMode<'_>,
    ) -> Result<Tensor> {
        let is_plain = |projection: &Self| projection.bias.is_none() && projection.addition.is_none();
        if is_plain(gate) && is_plain(up) {
            let fused = Linear::multiply_gated(activation, [&gate.weight, &up.weight], x, mode)?;
            if let Some(gated) = fused {
                return Ok(gated);
            }
        }
        let [gate, up] = Self::forward_together([gate, up], x, mode)?;
        gate.gated(activation, &up)
    }

    /// Several projections of the same rows, in one parallel operation.
    pub(crate) fn forward_together<const N: usize>(
        projections: [&Self; N],
        x: &Tensor,
        mode: LinearMode<'_>,
    ) -> Result<[Tensor; N]> {
        let mut products = Linear::multiply(projections.map(Self::call), x, mode)?;
        for (projection, product) in projections.into_iter().zip(&mut products) {
            if projection.addition.is_some() {
                *product = projection.adapted(product.clone(), x, mode)?;
            }
        }
        Ok(products)
    }

    /// `y`, the product of the rows `x`, with what an adapter adds.
    fn adapted(&self, y: Tensor, x: &Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        match &self.addition {
            Some(addition) => addition.add_to(y, x, mode),
            None => Ok(y),
        }
    }
}

impl Norm {
    /// `x` in rows as long as the weight; in the type in which rows are multiplied in `compute`, or in the type of `x`.
    pub(crate) fn forward(&self, x: &Tensor, compute: Option<ComputeType>) -> Result<Tensor> {
        x.norm(&self.weight, self.bias.as_ref(), self.epsilon, compute)
    }

    /// [`Self::forward`] with a hook point, which shows the value before the learned weight and bias.
    pub(crate) fn forward_hooked(
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
        let ones = Tensor::from_vec(vec![1.0; self.weight.elements()], self.weight.dims())?;
        let zeros = Tensor::from_vec(vec![0.0; self.weight.elements()], self.weight.dims())?;
        let zeros = self.bias.as_ref().map(|_| &zeros);
        let normalized = x.to_device(&Device::Cpu)?.norm(&ones, zeros, self.epsilon, None)?;
        let normalized = hooks.visit(at.layer, site, at.positions, normalized)?.to_host()?;
        let scaled = normalized.broadcast_mul(&self.weight.to_host()?)?;
        let scaled = match &self.bias {
            Some(bias) => scaled.broadcast_add(&bias.to_host()?)?,
            None => scaled,
        };
        let scaled = Tensor::from(scaled).like(x)?;
        match compute {
            Some(compute) => scaled.for_products(compute),
            None => Ok(scaled),
        }
    }
}
