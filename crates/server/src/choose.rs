//! Choosing tokens, with what a request adds to logits.

use crate::job::Choice;
use layerscope_engine::{Result, Sampler, Tensor};
use std::collections::HashMap;

/// Chooses the tokens of one text.
pub(crate) struct Chooser {
    sampler: Sampler,
    choice: Choice,
    generated: HashMap<u32, u32>,
}

impl Chooser {
    /// # Errors
    /// Where a number of the sampling is out of range.
    pub(crate) fn new(choice: Choice) -> Result<Self> {
        Ok(Self { sampler: Sampler::new(choice.sampling)?, choice, generated: HashMap::new() })
    }

    /// The next token of logits `[V]`.
    ///
    /// # Errors
    /// Where logits are not finite.
    pub(crate) fn choose(&mut self, logits: &Tensor) -> Result<u32> {
        let Choice { presence_penalty, frequency_penalty, bias, .. } = &self.choice;
        let penalises = *presence_penalty != 0.0 || *frequency_penalty != 0.0;
        let token = if penalises || !bias.is_empty() {
            let mut adjusted = logits.to_vec()?;
            let counts = self.generated.iter().filter(|_| penalises);
            let penalties =
                counts.map(|(&token, &count)| (token, -presence_penalty - frequency_penalty * count as f32));
            for (token, by) in penalties.chain(bias.iter().copied()) {
                if let Some(logit) = adjusted.get_mut(token as usize) {
                    *logit += by;
                }
            }
            let len = adjusted.len();
            self.sampler.sample(&Tensor::from_vec(adjusted, &[len])?)?
        } else {
            self.sampler.sample(logits)?
        };
        if penalises {
            *self.generated.entry(token).or_default() += 1;
        }
        Ok(token)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use layerscope_engine::Sampling;

    #[test]
    fn penalties_count_what_was_generated_and_biases_hold_always() {
        let choice = Choice {
            sampling: Sampling::Greedy,
            presence_penalty: 0.5,
            frequency_penalty: 1.0,
            bias: vec![(2, -100.0)],
        };
        let mut chooser = Chooser::new(choice).unwrap();
        let logits = Tensor::from_vec(vec![3.0, 1.0, 9.0, 0.2], &[4]).unwrap();
        let chosen: Vec<u32> = (0..5).map(|_| chooser.choose(&logits).unwrap()).collect();
        // 3, 1.5, then 0.5 beside 1; 1 falls to -0.5; 0.5 of token 0 is most again, then -0.5 beside 0.2.
        assert_eq!(chosen, [0, 0, 1, 0, 3]);
    }
}
