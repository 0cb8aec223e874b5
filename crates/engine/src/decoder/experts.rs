//! A mixture of experts (Shazeer et al. 2017; Fedus et al. 2022): a router picks a few MLPs for each row.

use super::layer::Projection;
use crate::weights::Linear;

/// The experts of a layer.
#[derive(Clone)]
pub(crate) struct ExpertLayer {
    /// Scores, `[experts, d]`.
    pub(crate) router: Linear,
    pub(crate) experts: Vec<Expert>,
    /// Experts that each row passes through.
    pub(crate) used: usize,
    /// Whether their weights are made to sum to 1.
    pub(crate) normalized: bool,
}

/// One gated MLP.
#[derive(Clone)]
pub(crate) struct Expert {
    pub(crate) gate: Projection,
    pub(crate) up: Projection,
    pub(crate) down: Projection,
}

/// The rows that pass through an expert, ascending, and its weight for each.
#[derive(Clone, Default)]
pub(crate) struct Route {
    pub(crate) rows: Vec<u32>,
    pub(crate) weights: Vec<f32>,
}

impl ExpertLayer {
    /// Bytes of the matrices.
    pub(crate) fn bytes(&self) -> usize {
        let expert = |expert: &Expert| expert.gate.bytes() + expert.up.bytes() + expert.down.bytes();
        self.router.bytes() + self.experts.iter().map(expert).sum::<usize>()
    }

    /// Bytes that one token reads: the router, and the experts that it chooses, which are equally large.
    pub(crate) fn step_bytes(&self) -> usize {
        let router = self.router.bytes();
        router + (self.bytes() - router) / self.experts.len().max(1) * self.used.min(self.experts.len())
    }

    /// The route of each expert, from the router's scores `[rows, experts]`.
    pub(crate) fn route(&self, scores: &[f32]) -> Vec<Route> {
        let count = self.experts.len();
        let mut routes = vec![Route::default(); count];
        for (row, scores) in (0u32..).zip(scores.chunks_exact(count)) {
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
            order.truncate(self.used);
            let all: f32 = weights.iter().sum();
            // One undefined score makes the whole softmax undefined, also where its expert is not used.
            let sum: f32 = match self.normalized && !all.is_nan() {
                true => order.iter().map(|&expert| weights[expert]).sum(),
                false => all,
            };
            for expert in order {
                routes[expert].rows.push(row);
                routes[expert].weights.push(weights[expert] / sum);
            }
        }
        routes
    }
}
