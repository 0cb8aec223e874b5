//! Needle in a haystack: one number hidden in a long text, with the question at its end (the S-NIAH task of
//! RULER, Hsieh et al. 2024).
//!
//! A prompt has as many sentences as fit a token budget, chat template included. The needle is inserted after
//! a given share of the sentences. Text, key and number depend only on seed, length, depth and sample, not on
//! the policies.
//!
//! **Scoring** is RULER's string match: an answer is correct if the generated text contains the number.
//! Numbers have seven digits, differ between prompts, and occur once in the prompt, which has no other
//! digits.

mod haystack;
mod run;
mod score;

pub use haystack::Haystack;
pub use run::{NeedleEvent, Outcome, Outcomes, run};
pub use score::{NeedleScore, is_right, summarise};

use haystack::{Filler, KEYS, pick};
use layerscope_engine::{Error, Interrupt, ModelConfig, PromptText, Result, Tokenizer, check_interrupt};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::collections::HashSet;

const INTRODUCTION: &str = "A special magic number is hidden in the following text. Remember it: you will be asked for it at the end.\n\n";

/// The prompts to generate: `samples` for each length and depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Tokens of a prompt, chat template included.
    pub lengths: Vec<usize>,
    /// Share of the sentences before the needle, percent.
    pub depths: Vec<u32>,
    /// Prompts at each length and depth.
    pub samples: usize,
    /// Seed of the prompts.
    pub seed: u64,
    /// The kind of text around the needle.
    pub haystack: Haystack,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedlePrompt {
    /// `needle-LENGTH-DEPTH-SAMPLE`.
    pub id: String,
    /// Token budget.
    pub length: usize,
    /// Share of the sentences before the needle, percent.
    pub depth: u32,
    /// Index among the prompts of its length and depth.
    pub sample: usize,
    /// The text, before the chat template.
    pub text: String,
    /// Its tokens as the model sees them: at most `length`, and at most one sentence fewer.
    pub tokens: Vec<u32>,
    /// The sentence with the digits.
    pub needle: String,
    /// The expected digits.
    pub answer: String,
}

/// A line of a prompt file.
#[derive(Debug, Serialize)]
pub struct PromptLine<'a> {
    id: &'a str,
    category: String,
    prompt: &'a str,
    expected: &'a str,
    span: &'a str,
}

impl NeedlePrompt {
    /// The line for a prompt file; the category is the length, the span is the needle.
    pub fn line(&self) -> PromptLine<'_> {
        let category = format!("needle {}", self.length);
        PromptLine { id: &self.id, category, prompt: &self.text, expected: &self.answer, span: &self.needle }
    }
}

impl Grid {
    /// Checks the grid.
    ///
    /// # Errors
    /// [`Error::Input`] if it is empty, has a duplicate, or has a depth above 100 %.
    pub fn check(&self) -> Result<()> {
        if self.lengths.is_empty() || self.depths.is_empty() || self.samples == 0 {
            return Err(Error::input(
                "no prompts to make; give at least one length, one depth and one sample",
            ));
        }
        if let Some(depth) = self.depths.iter().find(|&&depth| depth > 100) {
            return Err(Error::input(format!(
                "the depth {depth} is no percentage; give depths from 0 to 100"
            )));
        }
        if let Some(length) = twice(&self.lengths) {
            return Err(Error::input(format!("the length {length} is given twice; name each once")));
        }
        if let Some(depth) = twice(&self.depths) {
            return Err(Error::input(format!("the depth {depth} is given twice; name each once")));
        }
        Ok(())
    }

    /// Checks that the prompts and `new_tokens` fit the model's context.
    ///
    /// # Errors
    /// [`Error::Input`] with the length that exceeds the context.
    pub fn check_context(&self, config: &ModelConfig, new_tokens: usize) -> Result<()> {
        match self.lengths.iter().find(|length| length.saturating_add(new_tokens) > config.context + 1) {
            Some(length) => Err(Error::input(format!(
                "a prompt of {length} tokens with {new_tokens} new ones does not fit the model's context of {}; choose \
                 shorter lengths",
                config.context
            ))),
            None => Ok(()),
        }
    }

    /// Number of prompts.
    pub fn count(&self) -> usize {
        self.lengths.len() * self.depths.len() * self.samples
    }

    /// All prompts, by length, depth and sample.
    ///
    /// # Errors
    /// [`Error::Input`] if the grid is invalid or a length is too short for a needle; [`Error::Interrupted`].
    pub fn prompts(&self, tokenizer: &Tokenizer, interrupt: &Interrupt) -> Result<Vec<NeedlePrompt>> {
        self.check()?;
        let mut numbers = HashSet::new();
        let mut prompts = Vec::with_capacity(self.count());
        for &length in &self.lengths {
            for &depth in &self.depths {
                for sample in 0..self.samples {
                    check_interrupt(interrupt)?;
                    prompts.push(self.prompt(tokenizer, (length, depth, sample), &mut numbers)?);
                }
            }
        }
        Ok(prompts)
    }

    fn prompt(
        &self,
        tokenizer: &Tokenizer,
        (length, depth, sample): (usize, u32, usize),
        numbers: &mut HashSet<u32>,
    ) -> Result<NeedlePrompt> {
        let mut random = ChaCha8Rng::from_seed(seed([self.seed, length as u64, depth.into(), sample as u64]));
        let number = loop {
            let number = random.random_range(1_000_000..10_000_000_u32);
            if numbers.insert(number) {
                break number;
            }
        };
        let (key, answer) = (pick(&mut random, &KEYS), number.to_string());
        let needle = format!("The special magic number for {key} is {answer}.");
        let question =
            format!("\n\nQuestion: What is the special magic number for {key} in the text?\nAnswer:");
        let mut filler = Filler::new(self.haystack, random);
        let text = |sentences: &[String]| {
            let before = (sentences.len() * depth as usize + 50) / 100;
            let (before, after) = sentences.split_at(before);
            let all: Vec<&str> = before
                .iter()
                .map(String::as_str)
                .chain([needle.as_str()])
                .chain(after.iter().map(String::as_str))
                .collect();
            format!("{INTRODUCTION}{}{question}", all.join(" "))
        };
        let encode = |text: &str| tokenizer.encode_prompt(&PromptText::Plain(text.to_owned()));

        let bare = encode(&text(&[]))?.len();
        let Some(mut budget) = length.checked_sub(bare) else {
            return Err(Error::input(format!(
                "a length of {length} tokens holds no needle and its question, which take {bare}; choose a longer one"
            )));
        };
        // Estimates by each sentence's tokens first, then counts the tokens of the whole text.
        let mut sentences = vec![];
        loop {
            let sentence = filler.sentence();
            let tokens = tokenizer.encode(&format!(" {sentence}"))?.len().max(1);
            if tokens > budget {
                break;
            }
            budget -= tokens;
            sentences.push(sentence);
        }
        let mut tokens = encode(&text(&sentences))?;
        while tokens.len() > length && sentences.pop().is_some() {
            tokens = encode(&text(&sentences))?;
        }
        loop {
            sentences.push(filler.sentence());
            let longer = encode(&text(&sentences))?;
            if longer.len() > length || longer.len() <= tokens.len() {
                sentences.pop();
                break;
            }
            tokens = longer;
        }
        let id = format!("needle-{length}-{depth}-{sample}");
        Ok(NeedlePrompt { id, length, depth, sample, text: text(&sentences), tokens, needle, answer })
    }
}

/// A duplicate in a list.
fn twice<T: PartialEq>(list: &[T]) -> Option<&T> {
    list.iter().enumerate().find(|(index, item)| list[..*index].contains(item)).map(|(_, item)| item)
}

fn seed(numbers: [u64; 4]) -> [u8; 32] {
    let mut seed = [0; 32];
    for (bytes, number) in seed.chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    seed
}

#[cfg(test)]
mod tests;
