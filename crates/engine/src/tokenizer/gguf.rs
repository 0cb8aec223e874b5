//! The tokenizer that a GGUF file carries in its metadata.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::pre_tokenizer::PreTokenizer;
use super::{Parts, Tokenizer, guarded, shorten};
use crate::{Error, Result};

/// `llama_token_type` of llama.cpp, where it matters here.
mod token_type {
    /// Never part of ordinary text: `<|im_end|>`.
    pub(super) const CONTROL: i64 = 3;
    /// Added to the vocabulary, matched before ordinary text is split.
    pub(super) const USER_DEFINED: i64 = 4;
    /// Padding of the vocabulary, which no text stands for.
    pub(super) const UNUSED: i64 = 5;
}

impl Tokenizer {
    /// The tokenizer in the metadata of the GGUF file `source`.
    ///
    /// Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`) whose `tokenizer.ggml.pre` is `smollm`, `llama-bpe`
    /// (or `llama3`, `llama-v3`), `gpt-2` or `qwen2` are supported; any other is an error.
    pub fn from_gguf(metadata: &HashMap<String, Value>, source: &Path) -> Result<Self> {
        let file = Metadata { metadata, source };
        let pre_tokenizer = file.pre_tokenizer()?;
        let tokens = file.strings("tokenizer.ggml.tokens")?;
        let types = file.token_types(tokens.len())?;
        let vocab = file.vocabulary(&tokens, &types)?;
        let merges = file.merges(&vocab)?;

        let inner = guarded(source, "build", || {
            let model = BPE::builder()
                .vocab_and_merges(vocab, merges)
                .ignore_merges(pre_tokenizer.ignores_merges())
                .build()?;
            let mut inner = tokenizers::Tokenizer::new(model);
            inner.with_normalizer(pre_tokenizer.normalizer())?;
            inner.with_pre_tokenizer(Some(pre_tokenizer.splitter()?));
            inner.with_decoder(Some(ByteLevel::default()));
            inner.add_tokens(added_tokens(&tokens, &types))?;
            Ok(inner)
        })?;

        let id = |key| file.token_id(key, tokens.len());
        let bos_id = id("tokenizer.ggml.bos_token_id")?;
        let mut eos_ids = Vec::new();
        for key in
            ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"]
        {
            eos_ids.extend(id(key)?);
        }
        let adds_bos =
            file.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(pre_tokenizer.adds_bos_by_default());
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
            vocab_size: tokens.len(),
            inner,
            source: source.to_path_buf(),
            bos_id,
            eos_ids,
            prefix,
            chat_template: file.optional_string("tokenizer.chat_template")?.map(str::to_owned),
        }))
    }
}

/// The control and user-defined tokens. They are matched in the text as it is given, before normalisation, as the
/// families here have them in their `tokenizer.json`.
fn added_tokens(tokens: &[&str], types: &[i64]) -> Vec<AddedToken> {
    tokens
        .iter()
        .zip(types)
        .filter(|&(_, &kind)| matches!(kind, token_type::CONTROL | token_type::USER_DEFINED))
        .map(|(&token, &kind)| AddedToken::from(token, kind == token_type::CONTROL).normalized(false))
        .collect()
}

/// Reads metadata, checking each value's type; an error names the file.
struct Metadata<'a> {
    metadata: &'a HashMap<String, Value>,
    source: &'a Path,
}

impl<'a> Metadata<'a> {
    /// "FILE `problem`".
    fn error(&self, problem: impl std::fmt::Display) -> Error {
        Error::input(format!("{} {problem}", self.source.display()))
    }

    fn required(&self, key: &str) -> Result<&'a Value> {
        self.metadata
            .get(key)
            .ok_or_else(|| self.error(format_args!("has no {key}, so its text cannot be tokenized")))
    }

    fn wrong_type(&self, key: &str, value: &Value, wanted: &str) -> Error {
        self.error(format_args!("has a damaged {key}: it is of type {:?}, not {wanted}", value.value_type()))
    }

    fn as_str(&self, key: &str, value: &'a Value) -> Result<&'a str> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(self.wrong_type(key, other, "a string")),
        }
    }

    fn array(&self, key: &str) -> Result<&'a [Value]> {
        match self.required(key)? {
            Value::Array(values) => Ok(values),
            other => Err(self.wrong_type(key, other, "an array")),
        }
    }

    fn integer(&self, key: &str, value: &Value) -> Result<i64> {
        match *value {
            Value::U8(v) => Ok(v.into()),
            Value::I8(v) => Ok(v.into()),
            Value::U16(v) => Ok(v.into()),
            Value::I16(v) => Ok(v.into()),
            Value::U32(v) => Ok(v.into()),
            Value::I32(v) => Ok(v.into()),
            Value::I64(v) => Ok(v),
            // Too large for any id or type: refused by the caller's range check.
            Value::U64(v) => Ok(i64::try_from(v).unwrap_or(i64::MAX)),
            ref other => Err(self.wrong_type(key, other, "an integer")),
        }
    }

    fn string(&self, key: &str) -> Result<&'a str> {
        self.as_str(key, self.required(key)?)
    }

    fn optional_string(&self, key: &str) -> Result<Option<&'a str>> {
        self.metadata.get(key).map(|value| self.as_str(key, value)).transpose()
    }

    fn strings(&self, key: &str) -> Result<Vec<&'a str>> {
        self.array(key)?.iter().map(|value| self.as_str(key, value)).collect()
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(&Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(key, other, "a boolean")),
        }
    }

    fn token_id(&self, key: &str, vocab_size: usize) -> Result<Option<u32>> {
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

    fn pre_tokenizer(&self) -> Result<PreTokenizer> {
        let model = self.string("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(self.error(format_args!(
                "has a tokenizer of model {:?}, which is not supported: only \"gpt2\" (byte-level BPE) is",
                shorten(model)
            )));
        }
        let Some(name) = self.optional_string("tokenizer.ggml.pre")? else {
            return Err(self.error(format_args!(
                "does not say how it splits text (no tokenizer.ggml.pre): convert the model again with a current \
                 llama.cpp; supported are {}",
                PreTokenizer::NAMES
            )));
        };
        PreTokenizer::from_name(name).ok_or_else(|| {
            self.error(format_args!(
                "splits text as {:?} (tokenizer.ggml.pre), which is not supported: only {} are",
                shorten(name),
                PreTokenizer::NAMES
            ))
        })
    }

    fn token_types(&self, vocab_size: usize) -> Result<Vec<i64>> {
        // Without them special tokens could not be told from text.
        let key = "tokenizer.ggml.token_type";
        let values = self.array(key)?;
        if values.len() != vocab_size {
            return Err(self
                .error(format_args!("has a damaged {key}: {} types for {vocab_size} tokens", values.len())));
        }
        values
            .iter()
            .map(|value| match self.integer(key, value)? {
                kind @ 0..=6 => Ok(kind),
                kind => Err(self.error(format_args!("has a damaged {key}: there is no token type {kind}"))),
            })
            .collect()
    }

    fn vocabulary(&self, tokens: &[&str], types: &[i64]) -> Result<Vocab> {
        let key = "tokenizer.ggml.tokens";
        if tokens.is_empty() {
            return Err(self.error(format_args!("has a damaged {key}: it is empty")));
        }
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (index, (&token, &kind)) in tokens.iter().zip(types).enumerate() {
            if kind == token_type::UNUSED {
                continue;
            }
            let id = u32::try_from(index)
                .map_err(|_| self.error(format_args!("has a damaged {key}: it is too long")))?;
            if token.is_empty() {
                return Err(self.error(format_args!("has a damaged {key}: token {id} is empty")));
            }
            if let Some(first) = vocab.insert(token.to_owned(), id) {
                return Err(self.error(format_args!(
                    "has a damaged {key}: tokens {first} and {id} are both {:?}",
                    shorten(token)
                )));
            }
        }
        Ok(vocab)
    }

    fn merges(&self, vocab: &Vocab) -> Result<Vec<(String, String)>> {
        let key = "tokenizer.ggml.merges";
        self.strings(key)?
            .into_iter()
            .map(|merge| {
                let Some((left, right)) = merge.split_once(' ') else {
                    return Err(self
                        .error(format_args!("has a damaged {key}: {:?} is not two tokens", shorten(merge))));
                };
                let whole = [left, right].concat();
                for token in [left, right, &whole] {
                    if !vocab.contains_key(token) {
                        return Err(self.error(format_args!(
                            "has a damaged {key}: {:?} needs the token {:?}, which is not in the vocabulary",
                            shorten(merge),
                            shorten(token)
                        )));
                    }
                }
                Ok((left.to_owned(), right.to_owned()))
            })
            .collect()
    }
}
