//! Means of the probes' measurements by layer, by head and by decode step. Undefined values (NaN) are
//! skipped.

use crate::record::{
    AttentionFigures, AttentionMeans, LayerFigures, LensFigures, ProbedFigures, StepFigures,
};
use ndarray::{Array2, Array3, ArrayView3, Axis, Zip};

const HEADS: Axis = Axis(1);
const STEPS: Axis = Axis(2);

impl ProbedFigures {
    /// Means over heads and decode steps, by layer.
    pub fn by_layer(&self) -> LayerFigures {
        let selectivity = self.attention.selectivity();
        let over_heads_and_steps =
            |figure: &Array3<f32>| -> Vec<f64> { figure.outer_iter().map(mean).collect() };
        let attention = &self.attention;
        LayerFigures {
            bos_mass: over_heads_and_steps(&attention.bos_mass),
            prompt_mass: over_heads_and_steps(&attention.prompt_mass),
            decode_mass: over_heads_and_steps(&attention.decode_mass),
            prompt_entropy: over_heads_and_steps(&attention.prompt_entropy),
            prompt_entropy_nats: over_heads_and_steps(&attention.prompt_entropy_nats),
            selectivity: over_heads_and_steps(&selectivity),
            lens_kl: self.lens.kl.outer_iter().map(mean).collect(),
            lens_top1_agreement: self.lens.top1_agreement(),
            straightening_prompt_deg: straightening(&self.curvature_prompt_deg),
            curvature_prompt_deg: self.curvature_prompt_deg.clone(),
            straightening_decode_deg: straightening(&self.curvature_decode_deg),
            curvature_decode_deg: self.curvature_decode_deg.clone(),
        }
    }

    /// Means over decode steps, `[L, H]`.
    pub fn by_head(&self) -> AttentionMeans {
        self.attention.means_over(STEPS)
    }

    /// Means over heads, `[L, N]`, of a prompt of p tokens and its continuation.
    pub fn by_step(&self, p: usize, generated: &[u32]) -> StepFigures {
        StepFigures {
            positions: (p - 1..).take(generated.len()).collect(),
            token_ids: generated.to_vec(),
            attention: self.attention.by_step(),
            lens: self.lens.clone(),
        }
    }
}

impl AttentionFigures {
    /// prompt_mass · (1 − prompt_entropy), `[L, H, N]`; NaN if the entropy is NaN.
    fn selectivity(&self) -> Array3<f32> {
        Zip::from(&self.prompt_mass)
            .and(&self.prompt_entropy)
            .map_collect(|mass, entropy| mass * (1.0 - entropy))
    }

    /// Means over heads, `[L, N]`.
    pub fn by_step(&self) -> AttentionMeans {
        self.means_over(HEADS)
    }

    fn means_over(&self, axis: Axis) -> AttentionMeans {
        let means = |figure: ArrayView3<'_, f32>| -> Array2<f64> { figure.map_axis(axis, mean) };
        AttentionMeans {
            bos_mass: means(self.bos_mass.view()),
            prompt_mass: means(self.prompt_mass.view()),
            decode_mass: means(self.decode_mass.view()),
            prompt_entropy: means(self.prompt_entropy.view()),
            prompt_entropy_nats: means(self.prompt_entropy_nats.view()),
            selectivity: means(self.selectivity().view()),
        }
    }
}

impl LensFigures {
    /// Share of steps whose lens token is the last layer's, by layer, over the steps where the lens is defined. The lens after
    /// the last layer is the model's own output.
    fn top1_agreement(&self) -> Vec<f64> {
        let Some(last) = self.top1.outer_iter().next_back() else { return vec![] };
        let agreement = self.top1.outer_iter().zip(self.kl.outer_iter()).map(|(layer, kl)| {
            let defined = layer.iter().zip(last).zip(kl).filter(|(_, kl)| !kl.is_nan());
            let same: Vec<f32> = defined.map(|((a, b), _)| f32::from(u8::from(a == b))).collect();
            mean(&same)
        });
        agreement.collect()
    }
}

/// Curvature minus its value after layer 0.
fn straightening(curvature: &[f64]) -> Vec<f64> {
    let after_first = curvature.get(1).copied().unwrap_or(f64::NAN);
    curvature.iter().map(|degrees| degrees - after_first).collect()
}

/// Mean of the defined values; NaN if there are none.
fn mean<'a>(values: impl IntoIterator<Item = &'a f32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for value in values.into_iter().filter(|value| !value.is_nan()) {
        sum += f64::from(*value);
        count += 1;
    }
    sum / count as f64
}
