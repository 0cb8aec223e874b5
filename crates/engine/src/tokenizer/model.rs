//! What makes tokens of a word: the part of a tokenizer between splitting text and joining tokens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tokenizers::{ModelWrapper, Token};

use super::byte_pairs::BytePairs;

/// The model of a `tokenizer.json`, or that of a GGUF file.
#[derive(Debug)]
pub(super) enum Model {
    Published(Box<ModelWrapper>),
    BytePairs(BytePairs),
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Box::new).map(Self::Published)
    }
}

impl tokenizers::Model for Model {
    type Trainer = <ModelWrapper as tokenizers::Model>::Trainer;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::Published(model) => model.tokenize(word),
            Self::BytePairs(model) => Ok(model.tokens(word)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Published(model) => model.token_to_id(token),
            Self::BytePairs(model) => model.texts.id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Published(model) => model.id_to_token(id),
            Self::BytePairs(model) => model.texts.text(id).map(str::to_owned),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Published(model) => model.get_vocab(),
            Self::BytePairs(model) => model.texts.iter().map(|(id, text)| (text.to_owned(), id)).collect(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Published(model) => model.get_vocab_size(),
            Self::BytePairs(model) => model.texts.len(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        match self {
            Self::Published(model) => model.save(folder, prefix),
            Self::BytePairs(_) => Err("the tokenizer of a GGUF file is not written to others".into()),
        }
    }

    fn get_trainer(&self) -> Self::Trainer {
        match self {
            Self::Published(model) => model.get_trainer(),
            Self::BytePairs(_) => tokenizers::models::bpe::BpeTrainer::default().into(),
        }
    }
}
