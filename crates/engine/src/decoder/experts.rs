//! A mixture of experts (Shazeer et al. 2017; Fedus et al. 2022): a router picks a few MLPs for each token.

use super::block::Projection;
use crate::config::Activation;
use crate::tensor::{self, Tensor, with_f32};
use crate::weights::Linear;
use crate::{ComputeType, Result};

/// The experts of a layer.
pub(super) struct ExpertLayer {
    /// Scores, `[experts, d]`.
    pub(super) router: Linear,
    pub(super) experts: Vec<Expert>,
    /// Experts that each token passes through.
    pub(super) used: usize,
    /// Whether their weights are made to sum to 1.
    pub(super) normalized: bool,
}

/// One gated MLP.
pub(super) struct Expert {
    pub(super) gate: Projection,
    pub(super) up: Projection,
    pub(super) down: Projection,
}

impl ExpertLayer {
    /// Bytes of the matrices.
    pub(super) fn bytes(&self) -> usize {
        let expert = |expert: &Expert| expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
        self.router.bytes() + self.experts.iter().map(expert).sum::<usize>()
    }

    /// `x [rows, d]` to Σ weight·expert(x) over each row's experts, `[rows, d]`.
    pub(super) fn forward(&self, x: &Tensor, activation: Activation, compute: ComputeType) -> Result<Tensor> {
        let rows = x.rows();
        // Routing is decided in f32: a score that is rounded may choose another expert.
        let scores = self.router.forward(x, ComputeType::F32)?;
        let chosen = with_f32(&scores, |scores| self.choose(scores))?;
        let mut sum = tensor::WeightedRows::new(x, rows)?;
        for (expert, chosen) in self.experts.iter().zip(&chosen) {
            if chosen.is_empty() {
                continue;
            }
            let (ids, weights): (Vec<u32>, Vec<f32>) =
                chosen.iter().map(|&(row, weight)| (row as u32, weight)).unzip();
            sum.add(&expert.forward(&x.select(&ids)?, activation, compute)?, &ids, &weights)?;
        }
        sum.finish()
    }

    /// The rows of each expert, ascending, with the weight that it has there.
    fn choose(&self, scores: &[f32]) -> Vec<Vec<(usize, f32)>> {
        let count = self.experts.len();
        let mut chosen = vec![vec![]; count];
        for (row, scores) in scores.chunks_exact(count).enumerate() {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
            order.truncate(self.used);
            let sum: f32 = match self.normalized {
                true => order.iter().map(|&expert| weights[expert]).sum(),
                false => weights.iter().sum(),
            };
            for expert in order {
                chosen[expert].push((row, weights[expert] / sum));
            }
        }
        chosen
    }
}

impl Expert {
    fn forward(&self, x: &Tensor, activation: Activation, compute: ComputeType) -> Result<Tensor> {
        let gated = Projection::forward_gated(activation, [&self.gate, &self.up], x, compute)?;
        self.down.forward(&gated, compute)
    }
}
