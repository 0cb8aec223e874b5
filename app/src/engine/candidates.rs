//! The most likely next tokens.

use layerscope_diagnostics::summary::largest;
use layerscope_kernels::distribution::Distribution;

/// Ids and probabilities of the `count` most likely tokens, most likely first; of equal ones, the lower id
/// first.
///
/// NaN logits are left out, and make every probability NaN.
pub(super) fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f64)> {
    let distribution = Distribution::new(logits);
    let probability = |id: usize| (id as u32, (-distribution.nll(logits[id])).exp());
    // A logit of −∞ is last and has probability 0.
    let finite = logits.iter().map(|&logit| f64::from(logit).clamp(f64::MIN, f64::MAX));
    largest(finite, count).into_iter().map(probability).collect()
}

#[cfg(test)]
mod tests {
    use super::most_likely;
    use proptest::prelude::*;

    /// A full sort in f64.
    fn plainly(logits: &[f32], count: usize) -> Vec<(u32, f64)> {
        let numbers = || (0u32..).zip(logits).map(|(id, &x)| (id, f64::from(x)));
        let max = numbers().map(|(_, x)| x).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = numbers().map(|(_, x)| (x - max).exp()).sum();
        let mut all: Vec<(u32, f64)> = numbers().map(|(id, x)| (id, (x - max).exp() / total)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(count);
        all
    }

    proptest! {
        #[test]
        fn agrees_with_a_sort(
            logits in proptest::collection::vec(
                prop_oneof![
                    8 => -30f32..30.0,
                    4 => Just(2.5f32),
                    1 => Just(f32::NEG_INFINITY),
                ],
                1..3000,
            ),
        ) {
            prop_assume!(logits.iter().any(|x| x.is_finite()));
            let (actual, expected) = (most_likely(&logits, 20), plainly(&logits, 20));
            prop_assert_eq!(actual.len(), expected.len());
            for (actual, expected) in actual.iter().zip(&expected) {
                prop_assert_eq!(actual.0, expected.0);
                prop_assert!((actual.1 - expected.1).abs() < 1e-6 * expected.1.max(1e-30));
            }
        }
    }

    #[test]
    fn nothing_but_nan_yields_nothing() {
        assert!(most_likely(&[f32::NAN; 3], 20).is_empty());
        assert!(most_likely(&[], 20).is_empty());
        let partly = most_likely(&[1.0, f32::NAN, 2.0], 20);
        assert_eq!(partly.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 0]);
        assert!(partly.iter().all(|(_, probability)| probability.is_nan()));
    }
}
