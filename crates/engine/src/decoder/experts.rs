//! A mixture of experts (Shazeer et al. 2017; Fedus et al. 2022): a router picks a few MLPs for each token.

use super::block::Projection;
use crate::config::Activation;
use crate::tensor::with_f32;
use crate::weights::Linear;
use crate::{Result, tensor};
use candle_core::{Device, Tensor};

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
    pub(super) fn forward(&self, x: &Tensor, activation: Activation, exact: bool) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        // Routing is decided in f32: a score that is rounded may choose another expert.
        let scores = self.router.forward(x, true)?;
        let chosen = with_f32(&scores, |scores| self.choose(scores))?;
        let mut output = vec![0.0; rows * width];
        for (expert, chosen) in self.experts.iter().zip(&chosen) {
            if chosen.is_empty() {
                continue;
            }
            let ids: Vec<u32> = chosen.iter().map(|&(row, _)| row as u32).collect();
            let x = x.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?;
            with_f32(&expert.forward(&x, activation, exact)?, |found| {
                for (&(row, weight), found) in chosen.iter().zip(found.chunks_exact(width)) {
                    let output = &mut output[row * width..][..width];
                    output.iter_mut().zip(found).for_each(|(y, x)| *y += weight * x);
                }
            })?;
        }
        Ok(Tensor::from_vec(output, (rows, width), &Device::Cpu)?)
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
    fn forward(&self, x: &Tensor, activation: Activation, exact: bool) -> Result<Tensor> {
        let [gate, up] = Projection::forward_together([&self.gate, &self.up], x, exact)?;
        self.down.forward(&tensor::gate(activation, &gate, &up)?, exact)
    }
}
