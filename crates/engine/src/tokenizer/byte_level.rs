//! Byte-level vocabularies (`tokenizer.ggml.model` = `gpt2`): BPE over bytes, with the merges in the file.

use std::collections::HashMap;

use tokenizers::AddedToken;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::byte_pairs::{BytePairs, Merges, Outside};
use super::gguf::{Metadata, Vocabulary};
use super::model::Model;
use super::pre_tokenizer::PreTokenizer;
use super::texts::Texts;
use super::{Inner, guarded, shorten};
use crate::Result;

/// The tokenizer, and whether a prompt starts with BoS where the file does not say.
pub(super) fn build(file: &Metadata, vocabulary: &Vocabulary) -> Result<(Inner, bool)> {
    let pre_tokenizer = pre_tokenizer(file)?;
    let texts = vocabulary.texts(file)?;
    let merges = merges(file, &texts)?;
    // Matched in the text as it is given, before normalisation, as the families have them in their tokenizer.json.
    let added: Vec<AddedToken> = vocabulary
        .added()
        .map(|(token, special)| AddedToken::from(token, special).normalized(false))
        .collect();
    let inner = guarded(file.source, "build", || {
        let whole_words = pre_tokenizer.ignores_merges;
        let model = BytePairs { texts, merges, outside: Outside::Dropped, whole_words };
        let mut inner = Inner::new(Model::BytePairs(model));
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

fn merges(file: &Metadata, texts: &Texts) -> Result<Merges> {
    let key = "tokenizer.ggml.merges";
    let listed = file.strings(key)?;
    let mut merges = HashMap::with_capacity(listed.len());
    for (merge, rank) in listed.into_iter().zip(0..) {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(
                file.error(format_args!("has a damaged {key}: {:?} is not two tokens", shorten(merge)))
            );
        };
        let id = |token: &str| {
            texts.id(token).ok_or_else(|| {
                file.error(format_args!(
                    "has a damaged {key}: {:?} needs the token {:?}, which is not in the vocabulary",
                    shorten(merge),
                    shorten(token)
                ))
            })
        };
        let pair = (id(left)?, id(right)?);
        merges.insert(pair, (rank, id(&[left, right].concat())?));
    }
    Ok(Merges::Listed(merges))
}
