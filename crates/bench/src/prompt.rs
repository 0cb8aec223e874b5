//! Prompts of a given length. Their content does not change the time, so one text is repeated.

use layerscope_engine::{Error, Result, Tokenizer};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The source of prompts of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptTokens {
    /// A text's tokens, repeated and truncated.
    Text {
        /// The BoS token, if the model uses one.
        first: Option<u32>,
        /// The text; never empty.
        tokens: Vec<u32>,
    },
    /// Random ids, for weights that have no tokenizer.
    Random {
        /// Size of the vocabulary V; ids are below it.
        vocab: usize,
        /// Seed of the ids.
        seed: u64,
    },
}

impl PromptTokens {
    /// Tokenizes a text without chat template.
    ///
    /// # Errors
    /// [`Error::Input`] if the text has no tokens.
    pub fn of_text(tokenizer: &Tokenizer, text: &str) -> Result<Self> {
        let tokens = tokenizer.encode(text)?;
        if tokens.is_empty() {
            return Err(Error::input("the text of the prompts has no tokens; give another"));
        }
        Ok(Self::Text { first: tokenizer.bos_id().filter(|_| tokenizer.adds_bos()), tokens })
    }

    /// The prompt of `length` tokens.
    pub fn of_length(&self, length: usize) -> Vec<u32> {
        match self {
            Self::Text { first, tokens } => {
                first.iter().chain(tokens.iter().cycle()).take(length).copied().collect()
            }
            Self::Random { vocab, seed } => {
                let mut random = ChaCha8Rng::seed_from_u64(*seed);
                // Ids fit u32, and u32 draws are the same on 32- and 64-bit machines.
                let vocab = u32::try_from(*vocab).unwrap_or(u32::MAX);
                (0..length).map(|_| random.random_range(0..vocab)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_repeated_and_cut() {
        let prompt = PromptTokens::Text { first: Some(1), tokens: vec![5, 6, 7] };
        assert_eq!(prompt.of_length(6), [1, 5, 6, 7, 5, 6]);
        assert_eq!(prompt.of_length(1), [1]);
        let prompt = PromptTokens::Text { first: None, tokens: vec![5, 6, 7] };
        assert_eq!(prompt.of_length(4), [5, 6, 7, 5]);
    }

    #[test]
    fn random_ids_are_of_the_vocabulary_and_reproducible() {
        let prompt = |seed| PromptTokens::Random { vocab: 50, seed }.of_length(400);
        assert_eq!(prompt(3), prompt(3));
        assert_ne!(prompt(3), prompt(4));
        assert!(prompt(3).iter().all(|&id| id < 50));
        assert_eq!(prompt(3)[..9], PromptTokens::Random { vocab: 50, seed: 3 }.of_length(9));
    }
}
