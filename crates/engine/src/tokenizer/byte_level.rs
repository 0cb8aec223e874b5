//! Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`): BPE over bytes, with the merges in the file.

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::gguf::{Metadata, Vocabulary};
use super::pre_tokenizer::PreTokenizer;
use super::{guarded, shorten};
use crate::Result;

/// The tokenizer, and whether a prompt starts with BoS where the file does not say.
pub(super) fn build(file: &Metadata, vocabulary: &Vocabulary) -> Result<(tokenizers::Tokenizer, bool)> {
    let pre_tokenizer = pre_tokenizer(file)?;
    let vocab = vocabulary.by_token(file)?;
    let merges = merges(file, &vocab)?;
    // Matched in the text as it is given, before normalisation, as the families have them in their tokenizer.json.
    let added: Vec<AddedToken> = vocabulary
        .added()
        .map(|(token, special)| AddedToken::from(token, special).normalized(false))
        .collect();
    let inner = guarded(file.source, "build", || {
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(pre_tokenizer.ignores_merges)
            .build()?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_normalizer(pre_tokenizer.normalizer())?;
        inner.with_pre_tokenizer(Some(pre_tokenizer.splitter()?));
        inner.with_decoder(Some(ByteLevel::default()));
        inner.add_tokens(added)?;
        Ok(inner)
    })?;
    Ok((inner, pre_tokenizer.adds_bos_by_default))
}

fn pre_tokenizer(file: &Metadata) -> Result<&'static PreTokenizer> {
    let Some(name) = file.optional_string("tokenizer.ggml.pre")? else {
        return Err(file.error(format_args!(
            "does not say how it splits text (no tokenizer.ggml.pre): convert the model again with a current \
             llama.cpp; supported are {}",
            PreTokenizer::known_names()
        )));
    };
    PreTokenizer::from_name(name).ok_or_else(|| {
        file.error(format_args!(
            "splits text as {:?} (tokenizer.ggml.pre), which is not supported: only {} are",
            shorten(name),
            PreTokenizer::known_names()
        ))
    })
}

fn merges(file: &Metadata, vocab: &Vocab) -> Result<Vec<(String, String)>> {
    let key = "tokenizer.ggml.merges";
    file.strings(key)?
        .into_iter()
        .map(|merge| {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(
                    file.error(format_args!("has a damaged {key}: {:?} is not two tokens", shorten(merge)))
                );
            };
            let whole = [left, right].concat();
            for token in [left, right, &whole] {
                if !vocab.contains_key(token) {
                    return Err(file.error(format_args!(
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
