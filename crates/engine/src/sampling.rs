//! Choosing the next token from logits.

use crate::tensor::Tensor;
use crate::{Error, Result};
use candle_transformers::generation::{LogitsProcessor, Sampling as CandleSampling};

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Sampling {
    /// The most likely token; the first of equals.
    Greedy,
    /// A random token.
    Random {
        /// Logits are divided by this; next to 0 the most likely token is taken.
        temperature: f64,
        /// Keep only the most likely tokens that together have this probability.
        top_p: Option<f64>,
        /// Keep only this many of the most likely tokens.
        top_k: Option<usize>,
        /// Keep only tokens at least this share as likely as the most likely one (min-p, Nguyen et al. 2024).
        min_p: Option<f64>,
        /// Seed of the random numbers: the same seed gives the same text.
        seed: u64,
    },
}

/// Below it tokens are as good as greedy, and logits divided by it may be infinite.
const LEAST_TEMPERATURE: f64 = 1e-5;

/// Chooses one token after another from logits `[V]`; needs neither a session nor a loop.
///
/// ```
/// use layerscope_engine::{Sampler, Sampling, Tensor};
///
/// let logits = Tensor::from_vec(vec![0.5, 3.0, 1.0], &[3])?;
/// assert_eq!(Sampler::new(Sampling::Greedy)?.sample(&logits)?, 1);
///
/// let sampling = Sampling::Random { temperature: 0.8, top_p: Some(0.9), top_k: None, min_p: None, seed: 1 };
/// let token = Sampler::new(sampling)?.sample(&logits)?;
/// assert!(token < 3);
/// # Ok::<(), layerscope_engine::Error>(())
/// ```
pub struct Sampler {
    /// `None`: greedy.
    random: Option<LogitsProcessor>,
    /// How far below the highest logit one may be, where min-p says.
    reach: Option<f32>,
}

impl Sampler {
    /// A sampler at the beginning of its random numbers.
    ///
    /// # Errors
    /// [`Error::Input`] on a temperature, top-p, top-k or min-p out of range.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling::Random { temperature, top_p, top_k, min_p, seed } = sampling.checked()? else {
            return Ok(Self { random: None, reach: None });
        };
        if temperature < LEAST_TEMPERATURE {
            return Ok(Self { random: None, reach: None });
        }
        let sampling = match (top_k, top_p) {
            (None, None) => CandleSampling::All { temperature },
            (Some(k), None) => CandleSampling::TopK { k, temperature },
            (None, Some(p)) => CandleSampling::TopP { p, temperature },
            (Some(k), Some(p)) => CandleSampling::TopKThenTopP { k, p, temperature },
        };
        // p ≥ min_p · p_max, in logits; a share of 0 keeps all.
        let reach = min_p.filter(|&share| share > 0.0).map(|share| (-temperature * share.ln()) as f32);
        Ok(Self { random: Some(LogitsProcessor::from_sampling(seed, sampling)), reach })
    }

    /// The next token of logits `[V]`.
    ///
    /// # Errors
    /// [`Error::UndefinedLogits`].
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        // Also before a random draw, which cannot cope with NaN.
        let most_likely = argmax(logits, &[])?;
        match &mut self.random {
            None => Ok(most_likely),
            Some(random) => match self.reach {
                None => Ok(random.sample(&logits.to_host()?)?),
                Some(reach) => Ok(random.sample(&within(logits, most_likely, reach)?.to_host()?)?),
            },
        }
    }
}

/// Logits `[V]` that are at most `reach` below that of the most likely token; −∞ for the others.
fn within(logits: &Tensor, most_likely: u32, reach: f32) -> Result<Tensor> {
    let mut numbers = logits.to_vec()?;
    let least = numbers[most_likely as usize] - reach;
    for logit in &mut numbers {
        if *logit < least {
            *logit = f32::NEG_INFINITY;
        }
    }
    let len = numbers.len();
    Tensor::from_vec(numbers, &[len])
}

impl Sampling {
    /// Itself, if its numbers are in range.
    ///
    /// # Errors
    /// [`Error::Input`] on a temperature, top-p, top-k or min-p out of range.
    pub fn checked(self) -> Result<Self> {
        if let Self::Random { temperature, top_p, top_k, min_p, .. } = self {
            if !(temperature >= 0.0 && temperature.is_finite()) {
                return Err(Error::input(format!("temperature {temperature} must be 0 or more")));
            }
            if top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
                return Err(Error::input("top-p must be above 0 and at most 1"));
            }
            if top_k == Some(0) {
                return Err(Error::input("top-k must be at least 1"));
            }
            if min_p.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
                return Err(Error::input("min-p must be 0 to 1"));
            }
        }
        Ok(self)
    }
}

/// The most likely token of logits `[V]`, the first of equals, without `excluded` tokens.
///
/// # Errors
/// [`Error::UndefinedLogits`] where a logit is not finite, or every token is excluded.
pub fn argmax(logits: &Tensor, excluded: &[u32]) -> Result<u32> {
    logits.argmax(excluded)?.ok_or(Error::UNDEFINED_LOGITS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn logits(numbers: &[f32]) -> Tensor {
        Tensor::from_vec(numbers.to_vec(), &[numbers.len()]).unwrap()
    }

    #[test]
    fn greedy_takes_the_first_of_equals() {
        let mut sampler = Sampler::new(Sampling::Greedy).unwrap();
        assert_eq!(sampler.sample(&logits(&[0.0, 2.0, 2.0])).unwrap(), 1);
        assert_eq!(argmax(&logits(&[0.0, 2.0, 2.0]), &[1]).unwrap(), 2);
    }

    #[test]
    fn next_to_no_temperature_is_greedy() {
        for temperature in [0.0, 1e-300, 1e-40, 1e-6, 1e-5] {
            let sampling =
                Sampling::Random { temperature, top_p: Some(0.9), top_k: None, min_p: None, seed: 1 };
            let mut sampler = Sampler::new(sampling).unwrap();
            assert_eq!(sampler.sample(&logits(&[-80.0, 90.0, 89.0])).unwrap(), 1);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_within_top_k() {
        let draw = |seed| {
            let sampling =
                Sampling::Random { temperature: 1.5, top_p: None, top_k: Some(2), min_p: None, seed };
            let mut sampler = Sampler::new(sampling).unwrap();
            let logits = logits(&[1.0, 0.9, 0.8, 0.7]);
            (0..50).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|&token| token < 2));
    }

    #[test]
    fn min_p_keeps_what_is_nearly_as_likely_as_the_most_likely() {
        let draw = |share, temperature| {
            let sampling =
                Sampling::Random { temperature, top_p: None, top_k: None, min_p: Some(share), seed: 3 };
            let mut sampler = Sampler::new(sampling).unwrap();
            // At temperature 2, the second is 0.61, the third 0.37 as likely as the first.
            let logits = logits(&[2.0, 1.0, 0.0]);
            let drawn: HashSet<u32> = (0..200).map(|_| sampler.sample(&logits).unwrap()).collect();
            drawn.len()
        };
        assert_eq!([draw(1.0, 2.0), draw(0.5, 2.0), draw(0.3, 2.0), draw(0.0, 2.0)], [1, 2, 3, 3]);
        assert_eq!(draw(0.5, 1.0), 1);
    }

    #[test]
    fn undefined_logits_and_numbers_out_of_range_are_errors() {
        let random =
            |temperature, top_p, top_k| Sampling::Random { temperature, top_p, top_k, min_p: None, seed: 0 };
        let min_p = |share| Sampling::Random {
            temperature: 1.0,
            top_p: None,
            top_k: None,
            min_p: Some(share),
            seed: 0,
        };
        for wrong in [
            random(-0.1, None, None),
            random(f64::NAN, None, None),
            random(1.0, Some(0.0), None),
            random(1.0, None, Some(0)),
            min_p(-0.1),
            min_p(1.1),
            min_p(f64::NAN),
        ] {
            assert_eq!(Sampler::new(wrong).err().unwrap().exit_code(), 2);
        }
        let undefined = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for (sampling, undefined) in
            [Sampling::Greedy, random(1.0, None, None)].into_iter().flat_map(|s| undefined.map(|x| (s, x)))
        {
            let result = Sampler::new(sampling).unwrap().sample(&logits(&[0.0, undefined]));
            assert!(matches!(result, Err(Error::UndefinedLogits { from: None })));
        }
    }
}
