//! The tokenizer that a GGUF file carries in its metadata.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use super::texts::Texts;
use super::{Parts, Tokenizer, byte_level, sentencepiece, shorten};
use crate::weights::{GgufArray as Array, GgufValue as Value};
use crate::{Error, Result};

/// What kind of token an id stands for: `llama_token_type` of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenType {
    Undefined,
    Normal,
    /// What text becomes that has no token.
    Unknown,
    /// Never part of ordinary text: `<|im_end|>`.
    Control,
    /// Added to the vocabulary, matched before ordinary text is split.
    UserDefined,
    /// Padding of the vocabulary, which no text stands for.
    Unused,
    /// One byte, in SentencePiece vocabularies.
    Byte,
}

impl Tokenizer {
    /// The tokenizer in the metadata of the GGUF file `source`.
    ///
    /// Supported are byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`) with a known `tokenizer.ggml.pre`, and
    /// SentencePiece BPE (`llama`); any other is an error that names it. Nothing is ever put after a prompt, whatever
    /// `tokenizer.ggml.add_eos_token` says: the model is to go on.
    pub fn from_gguf(metadata: &HashMap<String, Value>, source: &Path) -> Result<Self> {
        let file = Metadata { metadata, source };
        let model = file.string("tokenizer.ggml.model")?;
        let vocabulary = file.vocabulary()?;
        let vocab_size = vocabulary.tokens.len();
        let (inner, adds_bos_by_default) = match model {
            "gpt2" => byte_level::build(&file, &vocabulary)?,
            "llama" => (sentencepiece::build(&file, vocabulary)?, true),
            other => {
                return Err(file.error(format_args!(
                    "has a tokenizer of model {:?} (tokenizer.ggml.model), which is not supported: only \"gpt2\" \
                     (byte-level BPE) and \"llama\" (SentencePiece BPE) are",
                    shorten(other)
                )));
            }
        };

        let id = |key| file.token_id(key, vocab_size);
        let bos_id = id("tokenizer.ggml.bos_token_id")?;
        let mut eos_ids = Vec::new();
        for key in
            ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"]
        {
            eos_ids.extend(id(key)?);
        }
        let adds_bos = file.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos_by_default);
        let prefix = match (adds_bos, bos_id) {
            (false, _) => Vec::new(),
            (true, Some(bos)) => vec![bos],
            (true, None) => {
                return Err(file.error(
                    "wants a BoS token before each prompt but names none in tokenizer.ggml.bos_token_id",
                ));
            }
        };
        Ok(Self::assemble(Parts {
            vocab_size,
            inner,
            source: source.to_path_buf(),
            bos_id,
            eos_ids,
            prefix,
            chat_template: file.optional_string("tokenizer.chat_template")?.map(str::to_owned),
        }))
    }
}

/// The tokens of a file and what they are, by id.
pub(super) struct Vocabulary<'a> {
    pub(super) tokens: Vec<Cow<'a, str>>,
    pub(super) types: Vec<TokenType>,
}

impl Vocabulary<'_> {
    /// The texts of all tokens but the unused ones, which need not differ.
    pub(super) fn texts(&self, file: &Metadata) -> Result<Texts> {
        let damaged = |what: std::fmt::Arguments| {
            file.error(format_args!("has a damaged tokenizer.ggml.tokens: {what}"))
        };
        if u32::try_from(self.tokens.len()).is_err() {
            return Err(damaged(format_args!("it is too long")));
        }
        let mut texts = Texts::with_capacity(self.tokens.len());
        for (id, (token, &kind)) in self.tokens.iter().zip(&self.types).enumerate() {
            let is_used = kind != TokenType::Unused;
            if is_used && token.is_empty() {
                return Err(damaged(format_args!("token {id} is empty")));
            }
            texts.push(if is_used { token } else { "" }).map_err(|first| {
                damaged(format_args!("tokens {first} and {id} are both {:?}", shorten(token)))
            })?;
        }
        Ok(texts)
    }

    /// The tokens that are matched before ordinary text is split, and whether they are special: all but the
    /// user-defined ones are.
    pub(super) fn added(&self) -> impl Iterator<Item = (&str, bool)> {
        self.tokens.iter().zip(&self.types).filter_map(|(token, kind)| match kind {
            TokenType::Control | TokenType::Unknown => Some((token.as_ref(), true)),
            TokenType::UserDefined => Some((token.as_ref(), false)),
            _ => None,
        })
    }
}

/// Reads metadata, checking each value's type; an error names the file.
pub(super) struct Metadata<'a> {
    metadata: &'a HashMap<String, Value>,
    pub(super) source: &'a Path,
}

impl<'a> Metadata<'a> {
    /// "FILE `problem`".
    pub(super) fn error(&self, problem: impl std::fmt::Display) -> Error {
        let sentence = format!("{} {problem}", self.source.display());
        Error::MalformedFile { path: self.source.to_owned(), sentence }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    fn required(&self, key: &str) -> Result<&'a Value> {
        self.metadata
            .get(key)
            .ok_or_else(|| self.error(format_args!("has no {key}, so its text cannot be tokenized")))
    }

    fn wrong_type(&self, key: &str, value: &Value, wanted: &str) -> Error {
        self.error(format_args!("has a damaged {key}: it is of type {}, not {wanted}", value.type_name()))
    }

    fn as_str(&self, key: &str, value: &'a Value) -> Result<&'a str> {
        value.as_str().ok_or_else(|| self.wrong_type(key, value, "a string"))
    }

    pub(super) fn array(&self, key: &str) -> Result<&'a Array> {
        match self.required(key)? {
            Value::Array(values) => Ok(values),
            other => Err(self.wrong_type(key, other, "an array")),
        }
    }

    fn integer(&self, key: &str, value: &Value) -> Result<i128> {
        value.as_i128().ok_or_else(|| self.wrong_type(key, value, "an integer"))
    }

    /// A score.
    pub(super) fn float(&self, key: &str, value: &Value) -> Result<f32> {
        match *value {
            Value::F32(v) => Ok(v),
            ref other => Err(self.wrong_type(key, other, "a 32-bit float")),
        }
    }

    fn string(&self, key: &str) -> Result<&'a str> {
        self.as_str(key, self.required(key)?)
    }

    pub(super) fn optional_string(&self, key: &str) -> Result<Option<&'a str>> {
        self.metadata.get(key).map(|value| self.as_str(key, value)).transpose()
    }

    pub(super) fn strings(&self, key: &str) -> Result<Vec<&'a str>> {
        let texts = self.array(key)?.strings();
        texts.map_err(|other| self.wrong_type(key, &other, "a string"))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(key, other, "a boolean")),
        }
    }

    pub(super) fn token_id(&self, key: &str, vocab_size: usize) -> Result<Option<u32>> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        let id = self.integer(key, value)?;
        match u32::try_from(id) {
            Ok(id) if (id as usize) < vocab_size => Ok(Some(id)),
            _ => Err(self.error(format_args!(
                "has a damaged {key}: {id} is outside its vocabulary of {vocab_size} tokens"
            ))),
        }
    }

    fn vocabulary(&self) -> Result<Vocabulary<'a>> {
        let key = "tokenizer.ggml.tokens";
        let tokens: Vec<_> = self.strings(key)?.into_iter().map(Cow::Borrowed).collect();
        if tokens.is_empty() {
            return Err(self.error(format_args!("has a damaged {key}: it is empty")));
        }
        let types = self.token_types(tokens.len())?;
        Ok(Vocabulary { tokens, types })
    }

    fn token_types(&self, vocab_size: usize) -> Result<Vec<TokenType>> {
        // Without them special tokens could not be told from text.
        let key = "tokenizer.ggml.token_type";
        let types = self.array(key)?.iter().map(|value| match self.integer(key, &value)? {
            0 => Ok(TokenType::Undefined),
            1 => Ok(TokenType::Normal),
            2 => Ok(TokenType::Unknown),
            3 => Ok(TokenType::Control),
            4 => Ok(TokenType::UserDefined),
            5 => Ok(TokenType::Unused),
            6 => Ok(TokenType::Byte),
            kind => Err(self.error(format_args!("has a damaged {key}: there is no token type {kind}"))),
        });
        let types = types.collect::<Result<Vec<TokenType>>>()?;
        match types.len() == vocab_size {
            true => Ok(types),
            false => Err(self
                .error(format_args!("has a damaged {key}: {} types for {vocab_size} tokens", types.len()))),
        }
    }
}
