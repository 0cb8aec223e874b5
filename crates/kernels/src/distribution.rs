//! Next-token distributions compared row by row: KL divergence, argmax, negative log-likelihood.

use crate::Instructions;
use crate::exp::exp_nonpositive;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use crate::rows::row_max;
use pulp::Simd;

pub mod cuda;

/// Elements summed in f32 before the sum moves to f64.
const CHUNK: usize = 1024;
const LANES: usize = 16;

/// The probabilities and the entropy of a row of logits. Undefined (NaN) where a logit is not finite.
#[derive(Debug, Clone)]
pub struct Distribution {
    /// softmax(logits), length V.
    probabilities: Vec<f32>,
    /// Σ p ln p, nats.
    negative_entropy: f64,
    /// Index of the largest logit.
    argmax: usize,
    /// max + ln Σ e^{x − max}.
    log_normaliser: f64,
}

/// How another row of logits differs from a [`Distribution`]. Where either has a logit that is not finite, `kl` is not finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistributionComparison {
    /// KL(distribution ‖ other), nats.
    pub kl: f64,
    /// Whether both have the same most likely token.
    pub same_argmax: bool,
    /// The other's most likely token.
    pub argmax: usize,
    /// max + ln Σ e^{x − max} of the other row: a token's NLL is this minus its logit.
    pub log_normaliser: f64,
}

/// Index of the largest logit, the first of equals; `None` where one is not finite, and where there is none.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let largest = Instructions::best().dispatch(Largest { logits });
    largest.is_finite().then(|| position_of(logits, largest))
}

/// The largest logit; NaN where one is not finite, −∞ where there is none.
struct Largest<'a> {
    logits: &'a [f32],
}

impl Operation for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) -> f32 {
        // A number that is not finite times zero is NaN, and stays it.
        let mut zeros = [0f32; LANES];
        let (chunks, rest) = self.logits.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                zeros[lane] += chunk[lane] * 0.0;
            }
        }
        let zero = zeros.iter().sum::<f32>() + rest.iter().map(|x| x * 0.0).sum::<f32>();
        if zero.is_nan() { f32::NAN } else { row_max(self.logits) }
    }
}

impl Distribution {
    /// The distribution of one row of logits.
    pub fn new(logits: &[f32]) -> Self {
        let mut probabilities = vec![0.0; logits.len()];
        let summary = Instructions::best().dispatch(Exponentials { logits, out: &mut probabilities });
        let scale = (1.0 / summary.total) as f32;
        for p in &mut probabilities {
            *p *= scale;
        }
        // Σ p (x − max) − ln Σ e^{x − max}
        let negative_entropy = summary.weighted / summary.total - summary.total.ln();
        Self {
            probabilities,
            negative_entropy,
            argmax: position_of(logits, summary.max),
            log_normaliser: f64::from(summary.max) + summary.total.ln(),
        }
    }

    /// Whether every logit was finite.
    pub fn is_defined(&self) -> bool {
        self.negative_entropy.is_finite() && self.log_normaliser.is_finite()
    }

    /// Index of the most likely token (the first, where several are equal).
    pub fn argmax(&self) -> usize {
        self.argmax
    }

    /// −ln p of the token that has this logit, nats.
    pub fn nll(&self, logit: f32) -> f64 {
        self.log_normaliser - f64::from(logit)
    }

    /// Compares another row of logits with this distribution: Σ p ln p − Σ p ln q.
    ///
    /// # Panics
    /// If the rows differ in length.
    pub fn compare(&self, logits: &[f32]) -> DistributionComparison {
        assert_eq!(logits.len(), self.probabilities.len(), "rows of one vocabulary");
        let sums = Instructions::best().dispatch(CrossTerms { p: &self.probabilities, logits });
        let log_total = sums.total.ln();
        let kl = self.negative_entropy - sums.weighted + log_total;
        let argmax = position_of(logits, sums.max);
        DistributionComparison {
            // Rounding can leave −1e-8 where the two are equal; a divergence is never negative. `f64::max` would lose NaN.
            kl: if kl < 0.0 { 0.0 } else { kl },
            same_argmax: argmax == self.argmax,
            argmax,
            log_normaliser: f64::from(sums.max) + log_total,
        }
    }
}

impl Distribution {
    /// Puts `factor · (q − share · p)` in the place of logits, of which q is the distribution and whose [`DistributionComparison`] has this
    /// log-normaliser. With a share of 1 that is the gradient of KL(p ‖ q), times the factor.
    ///
    /// # Panics
    /// If the rows differ in length.
    pub fn difference(&self, logits: &mut [f32], log_normaliser: f64, share: f32, factor: f32) {
        assert_eq!(logits.len(), self.probabilities.len(), "rows of one vocabulary");
        let log_normaliser = log_normaliser as f32;
        Instructions::best().dispatch(Difference {
            p: &self.probabilities,
            logits,
            log_normaliser,
            share,
            factor,
        });
    }
}

struct Difference<'a> {
    p: &'a [f32],
    logits: &'a mut [f32],
    log_normaliser: f32,
    share: f32,
    factor: f32,
}

impl Operation for Difference<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) {
        for (x, p) in self.logits.iter_mut().zip(self.p) {
            // The normaliser is rounded: the largest logit may exceed it.
            let shifted = *x - self.log_normaliser;
            let q = exp_nonpositive(if shifted > 0.0 { 0.0 } else { shifted });
            *x = self.factor * (q - self.share * p);
        }
    }
}

fn position_of(logits: &[f32], max: f32) -> usize {
    logits.iter().position(|&x| x == max).unwrap_or(0)
}

struct Sums {
    max: f32,
    /// Σ e^{x − max}
    total: f64,
    /// Σ w (x − max), with w = e^{x − max} or a given p.
    weighted: f64,
}

struct Exponentials<'a> {
    logits: &'a [f32],
    out: &'a mut [f32],
}

impl Operation for Exponentials<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) -> Sums {
        let max = row_max(self.logits);
        let (mut total, mut weighted) = (0.0, 0.0);
        for (x, out) in self.logits.chunks(CHUNK).zip(self.out.chunks_mut(CHUNK)) {
            let (mut sum, mut sum_weighted) = ([0f32; LANES], [0f32; LANES]);
            let mut add = |lane: usize, x: f32| {
                // A logit of −∞ makes the weighted sum NaN, as in PyTorch.
                let shifted = x - max;
                let weight = exp_nonpositive(shifted);
                sum[lane] += weight;
                sum_weighted[lane] += weight * shifted;
                weight
            };
            // Whole vectors apart, since a loop of unknown length would not vectorise.
            let (whole, rest) = x.as_chunks::<LANES>();
            let (whole_out, rest_out) = out.as_chunks_mut::<LANES>();
            for (x, out) in whole.iter().zip(whole_out) {
                for lane in 0..LANES {
                    out[lane] = add(lane, x[lane]);
                }
            }
            for (lane, (&x, out)) in rest.iter().zip(rest_out).enumerate() {
                *out = add(lane, x);
            }
            total += f64::from(sum.iter().sum::<f32>());
            weighted += f64::from(sum_weighted.iter().sum::<f32>());
        }
        Sums { max, total, weighted }
    }
}

struct CrossTerms<'a> {
    p: &'a [f32],
    logits: &'a [f32],
}

impl Operation for CrossTerms<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, _: L) -> Sums {
        let max = row_max(self.logits);
        let (mut total, mut weighted) = (0.0, 0.0);
        for (x, p) in self.logits.chunks(CHUNK).zip(self.p.chunks(CHUNK)) {
            let (mut sum, mut sum_weighted) = ([0f32; LANES], [0f32; LANES]);
            for (x, p) in x.chunks_exact(LANES).zip(p.chunks_exact(LANES)) {
                for lane in 0..LANES {
                    let shifted = x[lane] - max;
                    sum[lane] += exp_nonpositive(shifted);
                    sum_weighted[lane] += p[lane] * shifted;
                }
            }
            let done = x.len() / LANES * LANES;
            for (lane, (&x, &p)) in x[done..].iter().zip(&p[done..]).enumerate() {
                sum[lane] += exp_nonpositive(x - max);
                sum_weighted[lane] += p * (x - max);
            }
            total += f64::from(sum.iter().sum::<f32>());
            weighted += f64::from(sum_weighted.iter().sum::<f32>());
        }
        Sums { max, total, weighted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_f64(
            rows in (1usize..3000).prop_flat_map(|n| (
                proptest::collection::vec(-30f32..30.0, n),
                proptest::collection::vec(-30f32..30.0, n),
            ))
        ) {
            let (p, q) = rows;
            let distribution = Distribution::new(&p);
            let comparison = distribution.compare(&q);
            let expected = reference::kl_divergence(&p, &q);
            prop_assert!((comparison.kl - expected).abs() < 1e-5 * (1.0 + expected));
            prop_assert!(distribution.compare(&p).kl < 1e-5);
            let log_q = reference::log_softmax(&q);
            prop_assert!((comparison.log_normaliser - f64::from(q[0]) + log_q[0]).abs() < 1e-5);
            prop_assert!((distribution.nll(p[0]) + reference::log_softmax(&p)[0]).abs() < 1e-5);
            let mut difference = q.clone();
            distribution.difference(&mut difference, comparison.log_normaliser, 0.75, 2.0);
            for ((actual, log_p), log_q) in difference.iter().zip(reference::log_softmax(&p)).zip(log_q) {
                prop_assert!((f64::from(*actual) - 2.0 * (log_q.exp() - 0.75 * log_p.exp())).abs() < 1e-5);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_not_finite_makes_all_undefined(
            row in proptest::collection::vec(-30f32..30.0, 1..200),
            at in any::<proptest::sample::Index>(),
            undefined in proptest::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        ) {
            let mut damaged = row.clone();
            damaged[at.index(row.len())] = undefined;
            let (clean, undefined) = (Distribution::new(&row), Distribution::new(&damaged));
            prop_assert!(clean.is_defined() && !undefined.is_defined());
            prop_assert!(!clean.compare(&damaged).kl.is_finite());
            prop_assert!(!undefined.compare(&row).kl.is_finite());
            prop_assert!(!undefined.compare(&damaged).kl.is_finite());
        }
    }

    #[test]
    fn argmax_is_the_first_of_equals() {
        let distribution = Distribution::new(&[0.0, 2.0, 2.0, 1.0]);
        assert_eq!(distribution.argmax(), 1);
        assert!(distribution.compare(&[0.0, 5.0, 4.0, 5.0]).same_argmax);
        assert!(!distribution.compare(&[6.0, 5.0, 4.0, 5.0]).same_argmax);
        for len in [1, 15, 16, 17, 100] {
            let logits: Vec<f32> = (0..len).map(|i| -1.0 - (i * 7 % 13) as f32).collect();
            for at in [0, len / 2, len - 1] {
                let with = |x: f32| {
                    let mut logits = logits.clone();
                    logits[at] = x;
                    super::argmax(&logits)
                };
                assert_eq!(with(3.0), Some(at));
                assert_eq!(with(-1.0), Some(0));
                for undefined in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    assert_eq!(with(undefined), None, "{undefined} at {at} of {len}");
                }
            }
        }
        assert_eq!(super::argmax(&[]), None);
    }
}
