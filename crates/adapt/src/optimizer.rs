//! AdamW (Loshchilov & Hutter 2019).

use layerscope_engine::training::Gradients;
use layerscope_engine::{LowRank, Target};
use std::collections::BTreeMap;

const BETAS: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-8;
/// Longest gradient, over all matrices.
const CLIP: f64 = 1.0;

/// First and second moments of each element of A and B.
#[derive(Debug, Clone, Default)]
pub struct AdamW {
    pub(crate) moments: BTreeMap<(usize, Target), [[Vec<f32>; 2]; 2]>,
    pub(crate) steps: usize,
}

impl AdamW {
    /// Moves matrices against their gradients.
    pub fn step(
        &mut self,
        matrices: &mut BTreeMap<(usize, Target), LowRank>,
        gradients: &Gradients,
        learning_rate: f32,
    ) {
        self.steps += 1;
        let square = |values: &ndarray::Array2<f32>| values.iter().map(|x| f64::from(x * x)).sum::<f64>();
        let norm =
            gradients.values().map(|gradient| square(&gradient.a) + square(&gradient.b)).sum::<f64>().sqrt();
        let clip = if norm > CLIP { (CLIP / norm) as f32 } else { 1.0 };
        let corrections = BETAS.map(|beta| 1.0 - beta.powi(self.steps as i32));
        for (key, gradient) in gradients {
            let Some(matrix) = matrices.get_mut(key) else { continue };
            let zeros = |values: &[f32]| [vec![0.0; values.len()], vec![0.0; values.len()]];
            let moments = self.moments.entry(*key).or_insert_with(|| [zeros(&matrix.a), zeros(&matrix.b)]);
            for ((values, gradient), [first, second]) in
                [(&mut matrix.a, &gradient.a), (&mut matrix.b, &gradient.b)].into_iter().zip(moments)
            {
                let gradient = gradient.iter().map(|x| x * clip);
                for (((value, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
                    *m = BETAS[0] * *m + (1.0 - BETAS[0]) * g;
                    *v = BETAS[1] * *v + (1.0 - BETAS[1]) * g * g;
                    *value -=
                        learning_rate * (*m / corrections[0]) / ((*v / corrections[1]).sqrt() + EPSILON);
                }
            }
        }
    }
}
