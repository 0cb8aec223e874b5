//! Choosing the tokens of a text: sampling, behind penalties and biases.

use crate::tensor::Tensor;
use crate::{Error, Result, Sampler, Sampling};
use std::collections::{HashMap, HashSet};

/// How the tokens of a text are chosen.
#[derive(Debug, Clone)]
pub struct Choice {
    /// How one is chosen from adjusted logits.
    pub sampling: Sampling,
    /// Logits of tokens that prompt or text has are divided by this where they are above 0, and multiplied where they are below
    /// (Keskar et al. 2019); 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken off a token's logit once it was generated.
    pub presence_penalty: f32,
    /// Taken off as often as it was generated.
    pub frequency_penalty: f32,
    /// Added to logits.
    pub bias: Vec<(u32, f32)>,
}

impl From<Sampling> for Choice {
    fn from(sampling: Sampling) -> Self {
        Self {
            sampling,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: vec![],
        }
    }
}

/// Chooses the tokens of one text.
pub struct Chooser {
    sampler: Sampler,
    choice: Choice,
    /// Tokens of the prompt, where repetition is penalised.
    of_prompt: HashSet<u32>,
    /// How often each token was generated, where anything is penalised.
    generated: HashMap<u32, u32>,
}

impl Chooser {
    /// For a text behind a prompt.
    ///
    /// # Errors
    /// [`Error::Input`] where a number of the sampling or a penalty is out of range.
    pub fn new(choice: Choice, prompt: &[u32]) -> Result<Self> {
        let Choice { repetition_penalty, presence_penalty, frequency_penalty, .. } = choice;
        if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
            return Err(Error::input(format!(
                "repetition penalty {repetition_penalty} must be above 0; 1 is none"
            )));
        }
        if !(presence_penalty.is_finite() && frequency_penalty.is_finite()) {
            return Err(Error::input("presence and frequency penalty must be finite numbers"));
        }
        let of_prompt = if repetition_penalty == 1.0 { &[] } else { prompt };
        Ok(Self {
            sampler: Sampler::new(choice.sampling)?,
            choice,
            of_prompt: of_prompt.iter().copied().collect(),
            generated: HashMap::new(),
        })
    }

    /// The next token of logits `[V]`.
    ///
    /// # Errors
    /// [`Error::UndefinedLogits`].
    pub fn choose(&mut self, logits: &Tensor) -> Result<u32> {
        let Choice { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.choice;
        let penalises = [repetition_penalty - 1.0, presence_penalty, frequency_penalty] != [0.0; 3];
        if !penalises && self.choice.bias.is_empty() {
            return self.sampler.sample(logits);
        }
        let mut adjusted = logits.to_vec()?;
        if penalises {
            self.penalise(&mut adjusted);
        }
        for &(token, by) in &self.choice.bias {
            if let Some(logit) = adjusted.get_mut(token as usize) {
                *logit += by;
            }
        }
        let len = adjusted.len();
        let token = self.sampler.sample(&Tensor::from_vec(adjusted, &[len])?)?;
        if penalises {
            *self.generated.entry(token).or_default() += 1;
        }
        Ok(token)
    }

    fn penalise(&self, logits: &mut [f32]) {
        let Choice { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.choice;
        let of_prompt_alone = self.of_prompt.iter().filter(|token| !self.generated.contains_key(token));
        for token in self.generated.keys().chain(of_prompt_alone) {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit *= if *logit > 0.0 { 1.0 / repetition_penalty } else { repetition_penalty };
            }
        }
        for (&token, &count) in &self.generated {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chosen(choice: Choice, prompt: &[u32], logits: &[f32], count: usize) -> Vec<u32> {
        let mut chooser = Chooser::new(choice, prompt).unwrap();
        let logits = Tensor::from_vec(logits.to_vec(), &[logits.len()]).unwrap();
        (0..count).map(|_| chooser.choose(&logits).unwrap()).collect()
    }

    #[test]
    fn penalties_count_what_was_generated_and_biases_hold_always() {
        let choice = Choice {
            presence_penalty: 0.5,
            frequency_penalty: 1.0,
            bias: vec![(2, -100.0)],
            ..Sampling::Greedy.into()
        };
        // 3, 1.5, then 0.5 beside 1; 1 falls to -0.5; 0.5 of token 0 is most again, then -0.5 beside 0.2.
        assert_eq!(chosen(choice, &[], &[3.0, 1.0, 9.0, 0.2], 5), [0, 0, 1, 0, 3]);
    }

    #[test]
    fn repetition_is_penalised_once_whether_prompt_or_text_has_it() {
        let choice = Choice { repetition_penalty: 2.0, ..Sampling::Greedy.into() };
        // 3 / 2 of the prompt's token, however often it is in prompt and text, is below 2, which then is 1.
        assert_eq!(chosen(choice.clone(), &[0, 0], &[3.0, 2.0, -1.0], 4), [1, 0, 0, 0]);
        // Logits below 0 fall as well.
        assert_eq!(chosen(choice, &[0], &[-1.0, -1.5, -9.0], 3), [1, 0, 0]);
    }

    #[test]
    fn penalties_out_of_range_are_refused() {
        for penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let choice = Choice { repetition_penalty: penalty, ..Sampling::Greedy.into() };
            assert_eq!(Chooser::new(choice, &[]).err().unwrap().exit_code(), 2);
        }
    }
}
