//! Maxima and sums of exponentials over runs of scores, in the vector instructions that the processor has.

use layerscope_kernels::exp_nonpositive as exp;
use pulp::Arch;

const LANES: usize = 16;

/// What a run of scores comes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// The largest score; NaN is passed over.
    pub(super) max: f32,
    /// Σ e^(score − n); NaN where a score is.
    pub(super) sum: f32,
}

/// The largest of some scores; −∞ of none.
pub(super) fn largest(scores: &[f32]) -> f32 {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let (groups, rest) = scores.as_chunks::<LANES>();
            let mut max = [f32::NEG_INFINITY; LANES];
            for group in groups {
                for (max, &x) in max.iter_mut().zip(group) {
                    *max = if x > *max { x } else { *max };
                }
            }
            max.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max)
        },
    )
}

/// Maximum of scores and sum of their exponentials, less a number that is about as large as the largest of them or larger.
pub(super) fn run(scores: &[f32], less: f32) -> Run {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let (groups, rest) = scores.as_chunks::<LANES>();
            let (mut max, mut sum) = ([f32::NEG_INFINITY; LANES], [0.0; LANES]);
            for group in groups {
                for ((max, sum), &x) in max.iter_mut().zip(&mut sum).zip(group) {
                    *max = if x > *max { x } else { *max };
                    *sum += exp(x - less);
                }
            }
            let max = max.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, f32::max);
            let rest: f32 = rest.iter().map(|&x| exp(x - less)).sum();
            Run { max, sum: sum.into_iter().sum::<f32>() + rest }
        },
    )
}

/// e^(score − n) in place of each score.
pub(super) fn exponentials(scores: &mut [f32], less: f32) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            let (groups, rest) = scores.as_chunks_mut::<LANES>();
            for group in groups {
                group.iter_mut().for_each(|x| *x = exp(*x - less));
            }
            rest.iter_mut().for_each(|x| *x = exp(*x - less));
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_those_in_f64(x in proptest::collection::vec(-120_f32..0.0, 0..100), less in -1_f32..20.0) {
            let plain: f64 = x.iter().map(|&x| f64::from(x - less).exp()).sum();
            let Run { max, sum } = run(&x, less);
            // Below e^−87 it is 0.
            prop_assert!((f64::from(sum) - plain).abs() <= 1e-6 * plain + 1e-35, "{sum} {plain}");
            prop_assert_eq!(max, x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            prop_assert_eq!(largest(&x), max);
            let mut each = x.clone();
            exponentials(&mut each, less);
            for (actual, x) in each.iter().zip(&x) {
                let plain = f64::from(x - less).exp();
                prop_assert!((f64::from(*actual) - plain).abs() <= 3e-7 * plain + 1e-35, "{actual} {plain}");
            }
        }
    }

    #[test]
    fn what_is_undefined_stays_so() {
        assert!(run(&[1.0, f32::NAN], 1.0).sum.is_nan() && exp(f32::NAN).is_nan());
        assert_eq!(largest(&[f32::NAN, 2.0]), 2.0);
        assert_eq!(run(&[f32::NEG_INFINITY], 0.0).sum, 0.0);
    }
}
