//! Derivatives of the small operations of a layer.

use super::attention::numbers;
use crate::config::Activation;
use ndarray::{Array2, ArrayView2};

/// The gradient of a norm's input from that of its output, both `[rows, …]`; each row is as many runs of the norm's length as fit.
pub(super) fn norm(
    weight: &[f32],
    is_centred: bool,
    epsilon: f32,
    x: &ArrayView2<'_, f32>,
    dy: &Array2<f32>,
) -> Array2<f32> {
    let n = weight.len();
    let (mut dx, mut x) = (dy.clone(), x.to_owned());
    for (dx, x) in numbers(&mut dx).chunks_exact_mut(n).zip(numbers(&mut x).chunks_exact(n)) {
        let mean = if is_centred { x.iter().sum::<f32>() / n as f32 } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n as f32;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        dx.iter_mut().zip(weight).for_each(|(dx, weight)| *dx *= weight);
        let along = dx.iter().zip(x).map(|(g, x)| g * (x - mean) * inverse).sum::<f32>() / n as f32;
        let shift = if is_centred { dx.iter().sum::<f32>() / n as f32 } else { 0.0 };
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = inverse * (*dx - shift - (x - mean) * inverse * along);
        }
    }
    dx
}

/// f and its derivative at x.
pub(super) fn activation(f: Activation, x: f32) -> [f32; 2] {
    match f {
        Activation::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            [x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))]
        }
        Activation::Gelu => {
            let x = f64::from(x);
            let cumulative = 0.5 * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2));
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            [(x * cumulative) as f32, (cumulative + x * density) as f32]
        }
        Activation::GeluTanh => {
            let (slope, cubic) = ((2.0 / std::f32::consts::PI).sqrt(), 0.044_715);
            let tanh = (slope * (x + cubic * x * x * x)).tanh();
            let inner = slope * (1.0 + 3.0 * cubic * x * x);
            [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner]
        }
    }
}

/// The gradient of what a rotation of pairs (i, i + half) by `[cos, sin]` `[rows, half]` was applied to, in place.
pub(super) fn rotation([cos, sin]: [&[f32]; 2], head_dim: usize, dx: &mut Array2<f32>) {
    let (rows, width) = dx.dim();
    let half = cos.len() / rows.max(1);
    for (row, dx) in numbers(dx).chunks_exact_mut(width).enumerate() {
        let angles = cos[row * half..].iter().zip(&sin[row * half..]).take(half);
        for head in dx.chunks_exact_mut(head_dim) {
            for (i, (cos, sin)) in angles.clone().enumerate() {
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos + b * sin;
                head[i + half] = b * cos - a * sin;
            }
        }
    }
}
