//! SentencePiece vocabularies (`tokenizer.ggml.model` = `llama`): BPE over characters, with a score for each piece
//! instead of merges, and a token for each byte of a character that is no piece.
//!
//! The published `tokenizer.json` of these families has merges all the same, which `transformers` made from the pieces
//! (`generate_merges` in its `tokenization_utils_base.py`); here they are made in the same way.

use std::cmp::Ordering;
use std::collections::HashSet;

use rayon::prelude::*;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::utils::Sequence as NormalizerSequence;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::gguf::{Metadata, TokenType, Vocabulary};
use super::guarded;
use crate::Result;

/// How SentencePiece writes a space.
const SPACE: &str = "\u{2581}";

/// No piece of a real vocabulary is nearly as long, in bytes. To find the merges of one takes the square of its length.
const LONGEST_PIECE: usize = 1024;

/// The tokens of Phi-3 that leave the white space after them in the text.
const PHI_3_KEEPING_SPACE: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// Where a text gets a space in front, which files only say in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceBefore {
    /// Gemma: nowhere.
    Nothing,
    /// Mistral, from the vocabulary on that has `[INST]` as a token: the text as a whole, if it starts with none.
    Text,
    /// Llama 2, Mistral before that, Phi-3: each stretch of ordinary text, whatever it starts with, also after a special
    /// token. SentencePiece itself and llama.cpp do the same. (The class `LlamaTokenizer` of transformers 5 reads these
    /// families, too, as [`Text`](Self::Text), against their `tokenizer.json`.)
    EachStretch,
}

pub(super) fn build(file: &Metadata, mut vocabulary: Vocabulary) -> Result<tokenizers::Tokenizer> {
    refuse_other_normalisation(file)?;
    let scores = scores(file, vocabulary.tokens.len())?;
    refuse_long_pieces(file, &vocabulary)?;
    let runs_of_spaces = respell_runs_of_spaces(&mut vocabulary);
    let vocab = vocabulary.by_token(file)?;
    let byte_fallback = has_byte_tokens(file, &vocab)?;
    let unknown = unknown_token(file, &vocabulary)?;
    if !byte_fallback && unknown.is_none() {
        return Err(file.error(
            "has neither byte tokens nor an unknown token, so text outside its vocabulary cannot be tokenized",
        ));
    }
    let merges = merges(&vocabulary, &vocab, &scores, &runs_of_spaces);
    let added = added_tokens(file, &vocabulary)?;
    let space_before = space_before(file, &vocabulary)?;
    guarded(file.source, "build", || {
        let mut model =
            BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(byte_fallback).fuse_unk(true);
        if let Some(unknown) = unknown {
            model = model.unk_token(unknown);
        }
        let mut inner = tokenizers::Tokenizer::new(model.build()?);
        inner.with_normalizer(normalizer(space_before)?)?;
        inner.with_pre_tokenizer(pre_tokenizer(space_before));
        inner.with_decoder(Some(decoder(space_before)?));
        inner.add_tokens(added)?;
        Ok(inner)
    })
}

fn space_before(file: &Metadata, vocabulary: &Vocabulary) -> Result<SpaceBefore> {
    let is_wanted = file.boolean("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let has_instruction_token = vocabulary.added().any(|token| token == ("[INST]", true));
    Ok(match (is_wanted, has_instruction_token) {
        (false, _) => SpaceBefore::Nothing,
        (true, true) => SpaceBefore::Text,
        (true, false) => SpaceBefore::EachStretch,
    })
}

fn normalizer(space_before: SpaceBefore) -> tokenizers::Result<Option<NormalizerWrapper>> {
    let spell: NormalizerWrapper = Replace::new(" ", SPACE)?.into();
    Ok(match space_before {
        SpaceBefore::Nothing => Some(spell),
        SpaceBefore::Text => None,
        SpaceBefore::EachStretch => {
            let prepend = Prepend::new(SPACE.to_owned()).into();
            Some(NormalizerSequence::new(vec![prepend, spell]).into())
        }
    })
}

fn pre_tokenizer(space_before: SpaceBefore) -> Option<PreTokenizerWrapper> {
    (space_before == SpaceBefore::Text)
        .then(|| Metaspace::new('\u{2581}', PrependScheme::First, false).into())
}

fn decoder(space_before: SpaceBefore) -> tokenizers::Result<DecoderWrapper> {
    let mut steps: Vec<DecoderWrapper> =
        vec![Replace::new(SPACE, " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if space_before != SpaceBefore::Nothing {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(DecoderSequence::new(steps).into())
}

/// SentencePiece can do more to a text than write its spaces, which none of the families here asks for.
fn refuse_other_normalisation(file: &Metadata) -> Result<()> {
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    if file.boolean(key)? == Some(true) {
        return Err(
            file.error(format_args!("removes extra white space from text ({key}), which is not supported"))
        );
    }
    let key = "tokenizer.ggml.precompiled_charsmap";
    if file.has(key) && !file.array(key)?.is_empty() {
        return Err(file.error(format_args!("normalises text by a table ({key}), which is not supported")));
    }
    Ok(())
}

fn scores(file: &Metadata, vocab_size: usize) -> Result<Vec<f32>> {
    let key = "tokenizer.ggml.scores";
    let scores = file.array(key)?.iter().map(|value| file.float(key, value)).collect::<Result<Vec<_>>>()?;
    if scores.len() != vocab_size {
        return Err(
            file.error(format_args!("has a damaged {key}: {} scores for {vocab_size} tokens", scores.len()))
        );
    }
    match scores.iter().position(|score| !score.is_finite()) {
        Some(id) => Err(file.error(format_args!(
            "has a damaged {key}: the score of token {id} is {}, no number",
            scores[id]
        ))),
        None => Ok(scores),
    }
}

fn refuse_long_pieces(file: &Metadata, vocabulary: &Vocabulary) -> Result<()> {
    match vocabulary.tokens.iter().position(|token| token.len() > LONGEST_PIECE) {
        Some(id) => Err(file.error(format_args!(
            "has a damaged tokenizer.ggml.tokens: token {id} is longer than {LONGEST_PIECE} bytes"
        ))),
        None => Ok(()),
    }
}

/// Writes the user-defined tokens that are nothing but spaces as text has them once it is normalised, and gives their
/// ids, in order.
///
/// llama.cpp's converter writes them with plain spaces. As `transformers` has it, such a run is merged like other
/// pieces, so that a run longer than the longest token comes apart in halves.
fn respell_runs_of_spaces(vocabulary: &mut Vocabulary) -> Vec<usize> {
    let is_run = |token: &str, space: &str| !token.is_empty() && token.split(space).all(str::is_empty);
    let spelled: HashSet<String> = vocabulary
        .tokens
        .iter()
        .filter(|token| is_run(token, SPACE))
        .map(|token| token.to_string())
        .collect();
    let mut runs = Vec::new();
    for (id, token) in vocabulary.tokens.iter_mut().enumerate() {
        if vocabulary.types[id] != TokenType::UserDefined {
            continue;
        }
        let respelled = token.replace(' ', SPACE);
        if is_run(token, SPACE) {
            runs.push(id);
        } else if is_run(token, " ") && !spelled.contains(&respelled) {
            *token = respelled.into();
            runs.push(id);
        }
    }
    runs
}

/// Whether there is a token for each byte; some, but not all, is damage.
fn has_byte_tokens(file: &Metadata, vocab: &Vocab) -> Result<bool> {
    let absent: Vec<String> = (0..=u8::MAX)
        .map(|byte| format!("<0x{byte:02X}>"))
        .filter(|token| !vocab.contains_key(token))
        .collect();
    match absent.as_slice() {
        [] => Ok(true),
        [first, ..] if absent.len() < 256 => Err(file.error(format_args!(
            "has a damaged tokenizer.ggml.tokens: {} of the 256 byte tokens are missing, {first} among them",
            absent.len()
        ))),
        _ => Ok(false),
    }
}

/// The token for what no piece stands for: the one that is named, or else marked as such.
fn unknown_token(file: &Metadata, vocabulary: &Vocabulary) -> Result<Option<String>> {
    let named = file.token_id("tokenizer.ggml.unknown_token_id", vocabulary.tokens.len())?;
    let id = match named {
        Some(id) => Some(id as usize),
        None => vocabulary.types.iter().position(|&kind| kind == TokenType::Unknown),
    };
    Ok(id.filter(|&id| vocabulary.types[id] != TokenType::Unused).map(|id| vocabulary.tokens[id].to_string()))
}

/// Every cut of a piece into two others, the best piece first: SentencePiece merges whatever has the highest score.
///
/// Pieces of one score are taken in the order of their ids, which is that in which they were learnt. (Files made without
/// the SentencePiece model have the same score everywhere.)
fn merges(
    vocabulary: &Vocabulary,
    vocab: &Vocab,
    scores: &[f32],
    runs_of_spaces: &[usize],
) -> Vec<(String, String)> {
    let mut pieces: Vec<usize> = (0..vocabulary.tokens.len())
        .filter(|&id| matches!(vocabulary.types[id], TokenType::Normal | TokenType::Undefined))
        .collect();
    pieces.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
    // User-defined tokens come before all others.
    pieces.splice(0..0, runs_of_spaces.iter().copied());

    let mut is_piece = vec![false; vocabulary.tokens.len()];
    pieces.iter().for_each(|&id| is_piece[id] = true);
    let known = |text: &str| vocab.get(text).is_some_and(|&id| is_piece[id as usize]);
    let cuts = |id: usize| {
        let piece = vocabulary.tokens[id].as_ref();
        let cuts = piece.char_indices().rev().map(|(cut, _)| piece.split_at(cut));
        cuts.filter(|(left, right)| known(left) && known(right))
    };
    let merges = pieces.into_par_iter().flat_map_iter(cuts);
    merges.map(|(left, right)| (left.to_owned(), right.to_owned())).collect()
}

/// The control, user-defined and unknown tokens, matched in the text as it is given.
///
/// Those of Phi-3 take the white space after them with them, which GGUF files do not say.
fn added_tokens(file: &Metadata, vocabulary: &Vocabulary) -> Result<Vec<AddedToken>> {
    let is_phi_3 = file.optional_string("general.architecture")? == Some("phi3");
    let token = |(token, special): (&str, bool)| {
        let takes_space = is_phi_3 && !PHI_3_KEEPING_SPACE.contains(&token);
        AddedToken::from(token, special).normalized(false).rstrip(takes_space)
    };
    Ok(vocabulary.added().map(token).collect())
}
