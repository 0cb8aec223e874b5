//! What happens to activations between products: norm, rotary embedding, gating, sums. Rows are shared out among threads
//! where there are enough of them.

use crate::Instructions;
use crate::exp::exp_nonpositive;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use pulp::Simd;
use rayon::prelude::*;

/// Fewest elements that are worth a task of their own.
const TASK: usize = 1 << 14;

/// Calls `f(first row, rows)` on runs of whole rows of `output`, on several threads where that pays.
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

/// SwiGLU's gate (Shazeer 2020): silu(gate) · up, with silu(x) = x / (1 + e^−x).
///
/// # Panics
/// If sizes do not agree.
pub fn silu_gate(gate: &[f32], up: &[f32], output: &mut [f32]) {
    assert!(gate.len() == output.len() && up.len() == output.len(), "gate, up and output");
    by_rows(output, 1, |first, output| {
        let part = first..first + output.len();
        Instructions::best().dispatch(SiluGate { gate: &gate[part.clone()], up: &up[part], output });
    });
}

struct SiluGate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    output: &'a mut [f32],
}

impl Operation for SiluGate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        for ((y, &gate), &up) in self.output.iter_mut().zip(self.gate).zip(self.up) {
            // e^−|x| never overflows: the sigmoid of a negative x is e^x / (1 + e^x).
            let e = exp_nonpositive(-gate.abs());
            let sigmoid = if gate >= 0.0 { 1.0 } else { e } / (1.0 + e);
            *y = gate * sigmoid * up;
        }
    }
}

/// a + b.
///
/// # Panics
/// If sizes do not agree.
pub fn add(a: &[f32], b: &[f32], output: &mut [f32]) {
    assert!(a.len() == output.len() && b.len() == output.len(), "summands and sum");
    by_rows(output, 1, |first, output| {
        for ((y, a), b) in output.iter_mut().zip(&a[first..]).zip(&b[first..]) {
            *y = a + b;
        }
    });
}

/// Rotary embedding (Su et al. 2021) in rotate-half order: pairs (i, i + head_dim/2) of `x [rows, heads, head_dim]` are
/// turned by the angles whose `cos` and `sin` are `[rows, head_dim / 2]`.
///
/// # Panics
/// If sizes do not agree.
pub fn rotate(x: &[f32], heads: usize, [cos, sin]: [&[f32]; 2], half: usize, output: &mut [f32]) {
    let width = heads * 2 * half;
    assert!(x.len() == output.len() && x.len().is_multiple_of(width), "whole rows");
    assert!(cos.len() == x.len() / width * half && sin.len() == cos.len(), "an angle for each pair");
    by_rows(output, width, |first, output| {
        let x = &x[first * width..][..output.len()];
        for (row, (output, x)) in output.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
            let angles = (first + row) * half..(first + row + 1) * half;
            let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
            for (output, x) in output.chunks_exact_mut(2 * half).zip(x.chunks_exact(2 * half)) {
                let ((y0, y1), (x0, x1)) = (output.split_at_mut(half), x.split_at(half));
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

    proptest! {
        #[test]
        fn norm_gate_and_sum_equal_the_plain_ones(
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
            silu_gate(&b, &a, &mut y);
            for i in 0..y.len() {
                let gate = f64::from(b[i]);
                prop_assert!(close(y[i], gate / (1.0 + (-gate).exp()) * f64::from(a[i])));
            }
            add(&a, &b, &mut y);
            prop_assert!((0..y.len()).all(|i| y[i] == a[i] + b[i]));
        }

        #[test]
        fn rotation_turns_pairs(angle in -9f32..9.0, heads in 1usize..4, half in 1usize..9) {
            let rows = 3;
            let x: Vec<f32> = (0..rows * heads * 2 * half).map(|i| (i * 37 % 11) as f32 - 5.0).collect();
            let angles: Vec<f32> = (0..rows * half).map(|i| angle * i as f32).collect();
            let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
            let mut y = vec![0.0; x.len()];
            rotate(&x, heads, [&cos, &sin], half, &mut y);
            for (pair, angle) in (0..rows * heads * half).map(|i| (i, angles[i / (heads * half) * half + i % half])) {
                let at = pair / half * 2 * half + pair % half;
                let (x0, x1) = (f64::from(x[at]), f64::from(x[at + half]));
                let (sin, cos) = f64::from(angle).sin_cos();
                prop_assert!((f64::from(y[at]) - (x0 * cos - x1 * sin)).abs() < 1e-4);
                prop_assert!((f64::from(y[at + half]) - (x0 * sin + x1 * cos)).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn long_inputs_are_shared_out_and_extremes_stay_finite() {
        let n = 3 * TASK + 5;
        let a: Vec<f32> = (0..n).map(|i| i as f32 % 17.0 - 8.0).collect();
        let mut y = vec![0.0; n];
        add(&a, &a, &mut y);
        assert!((0..n).all(|i| y[i] == 2.0 * a[i]));
        let mut gated = [0.0; 4];
        silu_gate(&[-1e30, 1e30, -90.0, f32::NAN], &[1.0; 4], &mut gated);
        assert_eq!(gated[..2], [0.0, 1e30]);
        assert!(gated[2].abs() < 1e-30 && gated[3].is_nan());
    }
}
