//! Operations on activations between products: norms, rotary embedding, activation functions, sums. Many rows are split among
//! threads.

use crate::Instructions;
use crate::exp::exp_nonpositive;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use pulp::Simd;
use rayon::prelude::*;
use serde::Serialize;

pub mod cuda;

/// Fewest elements of a task.
const TASK: usize = 1 << 14;

/// Calls `f(first row, rows)` on runs of whole rows of `output`, on several threads if there are enough.
fn by_rows(output: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = (TASK / width.max(1)).max(1);
    if output.len() <= rows * width {
        return f(0, output);
    }
    output.par_chunks_mut(rows * width).enumerate().for_each(|(task, part)| f(task * rows, part));
}

/// RMSNorm (Zhang & Sennrich 2019) of rows `x [rows, d]`: x / √(mean(x²) + ε) · scale.
///
/// # Panics
/// If sizes do not agree.
pub fn rms_norm(x: &[f32], scale: &[f32], epsilon: f32, output: &mut [f32]) {
    assert_eq!(x.len(), output.len(), "input and output");
    assert!(x.len().is_multiple_of(scale.len()), "whole rows");
    by_rows(output, scale.len(), |first, output| {
        let x = &x[first * scale.len()..][..output.len()];
        Instructions::best().dispatch(RmsNorm { x, scale, epsilon, output });
    });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    scale: &'a [f32],
    epsilon: f32,
    output: &'a mut [f32],
}

impl Operation for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, _: L) {
        let width = self.scale.len();
        for (x, output) in self.x.chunks_exact(width).zip(self.output.chunks_exact_mut(width)) {
            let mean = crate::tile::dot(simd, x, x) / width as f32;
            let factor = 1.0 / (mean + self.epsilon).sqrt();
            for ((y, x), scale) in output.iter_mut().zip(x).zip(self.scale) {
                *y = x * factor * scale;
            }
        }
    }
}

/// LayerNorm (Ba et al. 2016) of rows `x [rows, d]`: (x − mean) / √(variance + ε) · scale + bias.
///
/// # Panics
/// If sizes do not agree.
pub fn layer_norm(x: &[f32], [scale, bias]: [&[f32]; 2], epsilon: f32, output: &mut [f32]) {
    assert!(x.len() == output.len() && scale.len() == bias.len(), "input and output, scale and bias");
    assert!(x.len().is_multiple_of(scale.len()), "whole rows");
    let width = scale.len();
    by_rows(output, width, |first, output| {
        let x = &x[first * width..][..output.len()];
        for (x, output) in x.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
            let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
            let mean = (sum / width as f64) as f32;
            let squares: f64 = x.iter().map(|&x| f64::from(x - mean).powi(2)).sum();
            let factor = 1.0 / ((squares / width as f64) as f32 + epsilon).sqrt();
            for (((y, x), scale), bias) in output.iter_mut().zip(x).zip(scale).zip(bias) {
                *y = (x - mean) * factor * scale + bias;
            }
        }
    });
}

/// Activation function of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x / (1 + e^−x).
    Silu,
    /// GELU (Hendrycks & Gimpel 2016): x·Φ(x).
    Gelu,
    /// Its approximation by tanh: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
    GeluTanh,
}

/// f(gate) · up (Shazeer 2020), in the place of the gate.
///
/// # Panics
/// If sizes do not agree.
pub fn gate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    by_rows(gate, 1, |first, gate| {
        let up = &up[first..first + gate.len()];
        Instructions::best().dispatch(Gate { activation, gate, up });
    });
}

struct Gate<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Operation for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        let each = self.gate.iter_mut().zip(self.up);
        // A loop for each, so that each vectorises.
        match self.activation {
            Activation::Silu => {
                for (gate, &up) in each {
                    *gate = silu(*gate) * up;
                }
            }
            Activation::Gelu => {
                for (gate, &up) in each {
                    *gate = gelu(*gate) * up;
                }
            }
            Activation::GeluTanh => {
                for (gate, &up) in each {
                    *gate = gelu_tanh(*gate) * up;
                }
            }
        }
    }
}

/// f(x).
///
/// # Panics
/// If sizes do not agree.
pub fn activate(activation: Activation, x: &[f32], output: &mut [f32]) {
    assert_eq!(x.len(), output.len(), "input and output");
    by_rows(output, 1, |first, output| {
        let x = &x[first..first + output.len()];
        Instructions::best().dispatch(Activate { activation, x, output });
    });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a [f32],
    output: &'a mut [f32],
}

impl Operation for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        let each = self.output.iter_mut().zip(self.x);
        match self.activation {
            Activation::Silu => {
                for (y, &x) in each {
                    *y = silu(x);
                }
            }
            Activation::Gelu => {
                for (y, &x) in each {
                    *y = gelu(x);
                }
            }
            Activation::GeluTanh => {
                for (y, &x) in each {
                    *y = gelu_tanh(x);
                }
            }
        }
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // √(8/π): (1 + tanh(u)) / 2 is the sigmoid of 2u.
    const TWICE_ROOT: f32 = 1.595_769_2;
    x * sigmoid(TWICE_ROOT * (x + 0.044_715 * x * x * x))
}

/// 1 / (1 + e^−x).
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // e^−|x| never overflows: the sigmoid of a negative x is e^x / (1 + e^x).
    let e = exp_nonpositive(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

/// e^x / Σ e^x; NaN where an x is NaN or +∞, or all are −∞.
pub fn softmax(x: &mut [f32]) {
    softmax_of_parts([x]);
}

/// [`softmax`] of numbers that lie in several parts.
pub fn softmax_of_parts<const N: usize>(parts: [&mut [f32]; N]) {
    Instructions::best().dispatch(Softmax(parts));
}

struct Softmax<'a, const N: usize>([&'a mut [f32]; N]);

impl<const N: usize> Operation for Softmax<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        const LANES: usize = 16;
        let mut parts = self.0;
        let (mut max, mut sum) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
        for chunk in parts.iter().flat_map(|x| x.chunks(LANES)) {
            max.iter_mut().zip(chunk).for_each(|(max, x)| *max = if *x > *max { *x } else { *max });
        }
        let max = max.into_iter().fold(f32::NEG_INFINITY, f32::max);
        for chunk in parts.iter_mut().flat_map(|x| x.chunks_mut(LANES)) {
            for (x, sum) in chunk.iter_mut().zip(&mut sum) {
                *x = exp_nonpositive(*x - max);
                *sum += *x;
            }
        }
        let factor = 1.0 / sum.into_iter().sum::<f32>();
        parts.into_iter().flatten().for_each(|x| *x *= factor);
    }
}

/// The gradient of a loss by the x of `p` = [`softmax`](x), times `factor`: `p·(∂L/∂p − dot)·factor` in place of ∂L/∂p, where `dot` is
/// Σ p·∂L/∂p.
///
/// # Panics
/// If sizes do not agree.
pub fn softmax_gradient(p: &[f32], gradient: &mut [f32], dot: f32, factor: f32) {
    assert_eq!(p.len(), gradient.len(), "probabilities and gradients");
    Instructions::best().dispatch(SoftmaxGradient { p, gradient, dot, factor });
}

struct SoftmaxGradient<'a> {
    p: &'a [f32],
    gradient: &'a mut [f32],
    dot: f32,
    factor: f32,
}

impl Operation for SoftmaxGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        for (gradient, p) in self.gradient.iter_mut().zip(self.p) {
            *gradient = p * (*gradient - self.dot) * self.factor;
        }
    }
}

/// c·tanh(x/c) of each x: the soft cap of scores and logits (Gemma 2).
pub fn soft_cap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = softly_capped(*x, cap));
}

/// c·tanh(x/c).
#[inline(always)]
pub(crate) fn softly_capped(x: f32, cap: f32) -> f32 {
    let ratio = x / cap;
    let e = exp_nonpositive(-2.0 * ratio.abs());
    cap * ((1.0 - e) / (1.0 + e)).copysign(ratio)
}

/// Adds `x` to `sum`.
///
/// # Panics
/// If sizes do not agree.
pub fn add(sum: &mut [f32], x: &[f32]) {
    assert_eq!(sum.len(), x.len(), "summands");
    by_rows(sum, 1, |first, sum| {
        for (sum, x) in sum.iter_mut().zip(&x[first..]) {
            *sum += x;
        }
    });
}

/// x · factor.
///
/// # Panics
/// If sizes do not agree.
pub fn scale(x: &[f32], factor: f32, output: &mut [f32]) {
    assert_eq!(x.len(), output.len(), "input and output");
    by_rows(output, 1, |first, output| {
        for (y, x) in output.iter_mut().zip(&x[first..]) {
            *y = x * factor;
        }
    });
}

/// Adds `bias [d]` to each row of `x [rows, d]`.
///
/// # Panics
/// If sizes do not agree.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()), "whole rows");
    by_rows(x, bias.len(), |_, rows| {
        for row in rows.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
    });
}

/// Rotary embedding (Su et al. 2021) in rotate-half order: of each head of `x [rows, heads, head_dim]` the pairs
/// (i, i + n) among the first 2n elements are rotated by the angles whose `cos` and `sin` are `[rows, n]`; the others stay.
///
/// # Panics
/// If sizes do not agree.
pub fn rotate(
    x: &[f32],
    [heads, head_dim]: [usize; 2],
    [cos, sin]: [&[f32]; 2],
    half: usize,
    output: &mut [f32],
) {
    let width = heads * head_dim;
    assert!(x.len() == output.len() && x.len().is_multiple_of(width) && 2 * half <= head_dim, "whole rows");
    assert!(cos.len() == x.len() / width * half && sin.len() == cos.len(), "an angle for each pair");
    by_rows(output, width, |first, output| {
        let x = &x[first * width..][..output.len()];
        for (row, (output, x)) in output.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
            let angles = (first + row) * half..(first + row + 1) * half;
            let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
            for (output, x) in output.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim)) {
                let (turned, rest) = output.split_at_mut(2 * half);
                rest.copy_from_slice(&x[2 * half..]);
                let ((y0, y1), (x0, x1)) = (turned.split_at_mut(half), x[..2 * half].split_at(half));
                for i in 0..half {
                    y0[i] = x0[i] * cos[i] - x1[i] * sin[i];
                    y1[i] = x0[i] * sin[i] + x1[i] * cos[i];
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f32, b: f64) -> bool {
        (f64::from(a) - b).abs() <= 2e-6 * (1.0 + b.abs())
    }

    /// The activation functions by their definitions.
    fn plain(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
        }
    }

    #[test]
    fn softmax_is_pytorchs() {
        for len in [1, 15, 16, 17, 100] {
            let numbers: Vec<f32> = (0..len).map(|i| (i * 37 % 23) as f32 - 11.0).collect();
            let total: f64 = numbers.iter().map(|&x| f64::from(x).exp()).sum();
            let mut weights = numbers.clone();
            softmax(&mut weights);
            assert!(weights.iter().zip(&numbers).all(|(&w, &x)| close(w, f64::from(x).exp() / total)));
            weights[0] = f32::NAN;
            softmax(&mut weights);
            assert!(weights.iter().all(|weight| weight.is_nan()));
        }
        let mut hidden = [0.0, f32::NEG_INFINITY];
        softmax(&mut hidden);
        assert_eq!(hidden, [1.0, 0.0]);
        for undefined in [f32::INFINITY, f32::NEG_INFINITY] {
            let mut numbers = [undefined; 3];
            softmax(&mut numbers);
            assert!(numbers.iter().all(|weight| weight.is_nan()));
        }
    }

    proptest! {
        #[test]
        fn norms_gates_and_sums_equal_the_plain_ones(
            (rows, width, numbers) in (1usize..5, 1usize..80).prop_flat_map(|(rows, width)| (
                Just(rows), Just(width), proptest::collection::vec((-9f32..9.0, -30f32..30.0), rows * width),
            ))
        ) {
            let (a, b): (Vec<f32>, Vec<f32>) = numbers.into_iter().unzip();
            let mut y = vec![0.0; a.len()];
            rms_norm(&a, &b[..width], 1e-5, &mut y);
            for row in 0..rows {
                let x = &a[row * width..][..width];
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    prop_assert!(close(y[row * width + i], f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(b[i])));
                }
            }
            let bias: Vec<f32> = b[..width].iter().map(|x| x / 3.0).collect();
            layer_norm(&a, [&b[..width], &bias], 1e-5, &mut y);
            for row in 0..rows {
                let x: Vec<f64> = a[row * width..][..width].iter().map(|&x| f64::from(x)).collect();
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let expected = (x[i] - mean) / (variance + 1e-5).sqrt() * f64::from(b[i]) + f64::from(bias[i]);
                    prop_assert!((f64::from(y[row * width + i]) - expected).abs() < 1e-4 * (1.0 + expected.abs()));
                }
            }
            for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
                let mut gated = b.clone();
                gate(activation, &mut gated, &a);
                for i in 0..y.len() {
                    prop_assert!(close(gated[i], plain(activation, f64::from(b[i])) * f64::from(a[i])), "{activation:?}");
                }
                activate(activation, &b, &mut y);
                prop_assert!((0..y.len()).all(|i| close(y[i], plain(activation, f64::from(b[i])))));
            }
            let mut capped = b.clone();
            soft_cap(&mut capped, 7.0);
            prop_assert!((0..b.len()).all(|i| close(capped[i], 7.0 * (f64::from(b[i]) / 7.0).tanh())));
            scale(&a, 0.3, &mut y);
            prop_assert!((0..y.len()).all(|i| y[i] == a[i] * 0.3));
            let mut with_bias = a.clone();
            add_bias(&mut with_bias, &bias);
            prop_assert!((0..y.len()).all(|i| with_bias[i] == a[i] + bias[i % width]));
            let mut sum = a.clone();
            add(&mut sum, &b);
            prop_assert!((0..y.len()).all(|i| sum[i] == a[i] + b[i]));
        }

        #[test]
        fn rotation_turns_pairs(angle in -9f32..9.0, heads in 1usize..4, half in 1usize..9, rest in 0usize..5) {
            let (rows, head_dim) = (3, 2 * half + rest);
            let x: Vec<f32> = (0..rows * heads * head_dim).map(|i| (i * 37 % 11) as f32 - 5.0).collect();
            let angles: Vec<f32> = (0..rows * half).map(|i| angle * i as f32).collect();
            let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
            let mut y = vec![0.0; x.len()];
            rotate(&x, [heads, head_dim], [&cos, &sin], half, &mut y);
            for head in 0..rows * heads {
                let (x, y) = (&x[head * head_dim..][..head_dim], &y[head * head_dim..][..head_dim]);
                for i in 0..half {
                    let (x0, x1) = (f64::from(x[i]), f64::from(x[i + half]));
                    let (sin, cos) = f64::from(angles[head / heads * half + i]).sin_cos();
                    prop_assert!((f64::from(y[i]) - (x0 * cos - x1 * sin)).abs() < 1e-4);
                    prop_assert!((f64::from(y[i + half]) - (x0 * sin + x1 * cos)).abs() < 1e-4);
                }
                prop_assert_eq!(&x[2 * half..], &y[2 * half..]);
            }
        }
    }

    #[test]
    fn long_inputs_are_shared_out_and_extremes_stay_finite() {
        let n = 3 * TASK + 5;
        let a: Vec<f32> = (0..n).map(|i| i as f32 % 17.0 - 8.0).collect();
        let mut sum = a.clone();
        add(&mut sum, &a);
        assert!((0..n).all(|i| sum[i] == 2.0 * a[i]));
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            let mut gated = [-1e12, 1e12, -90.0, f32::NAN];
            gate(activation, &mut gated, &[1.0; 4]);
            assert_eq!(gated[..2], [0.0, 1e12], "{activation:?}");
            assert!(gated[2].abs() < 1e-30 && gated[3].is_nan(), "{activation:?}");
        }
    }
}
