//! Angles between successive steps of a trajectory.

use crate::Instructions;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use pulp::Simd;
use rayon::prelude::*;

pub mod cuda;

/// Angles of one task.
const ANGLES: usize = 64;
const LANES: usize = 16;

/// Σ arccos(v_k · v_{k+1}) in radians over rows x `[rows, width]`, with v_k = (x_{k+1} − x_k)/‖·‖: rows − 2 angles. A step
/// of length 0 has no direction and counts as a right angle; a row that is not finite makes the sum NaN.
///
/// # Panics
/// If the rows are not whole.
pub fn angle_sum(rows: &[f32], width: usize) -> f64 {
    assert!(rows.len().is_multiple_of(width), "whole rows");
    let angles = (rows.len() / width).saturating_sub(2);
    let tasks: Vec<usize> = (0..angles).step_by(ANGLES).collect();
    let sums: Vec<f64> = tasks
        .into_par_iter()
        .map(|first| {
            let last = (first + ANGLES).min(angles);
            let rows = &rows[first * width..(last + 2) * width];
            Instructions::best().dispatch(AngleSum { rows, width })
        })
        .collect();
    // In order, so that the sum does not depend on timing.
    sums.iter().sum()
}

struct AngleSum<'a> {
    rows: &'a [f32],
    width: usize,
}

impl Operation for AngleSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) -> f64 {
        let Self { rows, width } = self;
        let (mut step, mut last_step) = (vec![0.0; width], vec![0.0; width]);
        let mut last_square = 0.0;
        let mut sum = 0.0;
        for (index, pair) in rows.windows(2 * width).step_by(width).enumerate() {
            let (from, to) = pair.split_at(width);
            for ((step, to), from) in step.iter_mut().zip(to).zip(from) {
                *step = to - from;
            }
            let square = dot(&step, &step);
            if index > 0 {
                let norms = (square * last_square).sqrt();
                let cosine = if norms == 0.0 { 0.0 } else { dot(&step, &last_step) / norms };
                sum += cosine.clamp(-1.0, 1.0).acos();
            }
            last_square = square;
            std::mem::swap(&mut step, &mut last_step);
        }
        sum
    }
}

/// Products of f32 are exact in f64; sixteen sums so that the loop vectorises.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let mut sum = 0.0;
    for lane in sums {
        sum += lane;
    }
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += f64::from(a) * f64::from(b);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_the_plain_one(
            (width, rows) in (1usize..40, 0usize..200).prop_flat_map(|(width, rows)| {
                (Just(width), proptest::collection::vec(-3f32..3.0, width * rows))
            })
        ) {
            let x: Vec<&[f32]> = rows.chunks_exact(width).collect();
            let steps: Vec<Vec<f64>> = x
                .windows(2)
                .map(|pair| pair[1].iter().zip(pair[0]).map(|(to, from)| f64::from(to - from)).collect())
                .collect();
            let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let expected: f64 = steps
                .windows(2)
                .map(|pair| {
                    let norms = (product(&pair[0], &pair[0]) * product(&pair[1], &pair[1])).sqrt();
                    let cosine = if norms > 0.0 { product(&pair[0], &pair[1]) / norms } else { 0.0 };
                    cosine.clamp(-1.0, 1.0).acos()
                })
                .sum();
            prop_assert!((angle_sum(&rows, width) - expected).abs() < 1e-6 * (1.0 + expected));
        }
    }

    #[test]
    fn a_step_of_length_zero_is_a_right_angle() {
        let sum = angle_sum(&[0.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2);
        assert!((sum - std::f64::consts::FRAC_PI_2).abs() < 1e-12);
    }
}
