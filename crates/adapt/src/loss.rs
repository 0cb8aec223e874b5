//! How far the adapted model under a policy is from the full model, along the continuations, and the gradient of that.

use layerscope_kernels::distribution::{Distribution, DistributionComparison};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What is learned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Objective {
    /// Weight of the cross-entropy of the continuation's tokens, 0 to 1; the rest is the KL divergence's.
    pub(crate) sft: f32,
}

/// Of one decode row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowLoss {
    pub(crate) kl: f64,
    /// Cross-entropy of the continuation's token.
    pub(crate) nll: f64,
    pub(crate) same_top: bool,
    /// Whether the continuation's token is the top token.
    pub(crate) is_token: bool,
}

impl Objective {
    /// The loss of rows, from logits of the full model and of the adapted `[rows, V]`, whose place the gradient of the mean takes.
    pub(crate) fn gradient(self, teacher: &[f32], student: &mut [f32], tokens: &[u32]) -> Vec<RowLoss> {
        let vocab = student.len() / tokens.len().max(1);
        let factor = 1.0 / tokens.len().max(1) as f32;
        let rows = teacher.par_chunks_exact(vocab).zip(student.par_chunks_exact_mut(vocab)).zip(tokens);
        rows.map(|((teacher, student), &token)| self.of_row(teacher, student, token as usize, factor))
            .collect()
    }

    fn of_row(self, teacher: &[f32], student: &mut [f32], token: usize, factor: f32) -> RowLoss {
        let full = Distribution::new(teacher);
        let DistributionComparison { kl, same_argmax, argmax, log_normaliser } = full.compare(student);
        let nll = log_normaliser - f64::from(student[token]);
        // ∂KL/∂logit = q − p, and ∂NLL/∂logit = q − 1 at the token and q elsewhere.
        full.difference(student, log_normaliser, 1.0 - self.sft, factor);
        student[token] -= factor * self.sft;
        RowLoss { kl, nll, same_top: same_argmax, is_token: argmax == token }
    }

    pub(crate) fn of(self, row: &RowLoss) -> f64 {
        let sft = f64::from(self.sft);
        sft * row.nll + (1.0 - sft) * row.kl
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By differences of the loss.
    #[test]
    fn the_gradient_is_the_losss_derivative() {
        let teacher = [0.5, -1.0, 2.0, 0.25, 1.5, -0.5, 0.0, 1.0];
        let student = [1.0, 0.5, -0.25, 0.75, 0.5, 1.25, -1.0, 0.25];
        let tokens = [2, 0];
        for sft in [0.0, 0.3, 1.0] {
            let objective = Objective { sft };
            let loss = |student: &[f32]| -> f64 {
                let rows = objective.gradient(&teacher, &mut student.to_vec(), &tokens);
                rows.iter().map(|row| objective.of(row)).sum::<f64>() / 2.0
            };
            let mut gradient = student;
            objective.gradient(&teacher, &mut gradient, &tokens);
            for index in 0..student.len() {
                let moved = |by: f32| {
                    let mut student = student;
                    student[index] += by;
                    loss(&student)
                };
                let expected = (moved(0.01) - moved(-0.01)) / 0.02;
                assert!((f64::from(gradient[index]) - expected).abs() < 1e-4, "{sft} {index}");
            }
        }
        let same = Objective { sft: 0.0 }.gradient(&teacher, &mut teacher.clone(), &tokens);
        assert!(same.iter().all(|row| row.kl < 1e-6 && row.same_top));
    }
}
