//! SentencePiece vocabularies (`tokenizer.ggml.model` = `llama`): BPE over characters, with a score for each piece
//! instead of merges, and a token for each byte of a character that is no piece.
//!
//! The published `tokenizer.json` of these families has merges all the same, which `transformers` made from the pieces
//! (`generate_merges` in its `tokenization_utils_base.py`). Pieces merge here in the order of that list.

use std::cmp::Ordering;
use std::collections::HashSet;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::utils::Sequence as NormalizerSequence;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::byte_pairs::{BytePairs, Merges, NO_PIECE, Outside};
use super::gguf::{Metadata, TokenType, Vocabulary};
use super::model::Model;
use super::texts::Texts;
use super::{Inner, guarded};
use crate::Result;

/// How SentencePiece writes a space.
const SPACE: &str = "\u{2581}";

/// No piece of a real vocabulary is nearly as long, in bytes. Each merge of two is looked up by its text.
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

pub(super) fn build(file: &Metadata, mut vocabulary: Vocabulary) -> Result<Inner> {
    refuse_other_normalisation(file)?;
    let scores = scores(file, vocabulary.tokens.len())?;
    refuse_long_pieces(file, &vocabulary)?;
    let runs_of_spaces = respell_runs_of_spaces(&mut vocabulary);
    let texts = vocabulary.texts(file)?;
    let outside = match (byte_tokens(file, &texts)?, unknown_token(file, &vocabulary)?) {
        (Some(ids), _) => Outside::Bytes(ids),
        (None, Some(id)) => Outside::Unknown(id),
        (None, None) => {
            return Err(file.error(
                "has neither byte tokens nor an unknown token, so text outside its vocabulary cannot be tokenized",
            ));
        }
    };
    let merges = Merges::Scored(ranks(&vocabulary, &scores, &runs_of_spaces));
    let added = added_tokens(file, &vocabulary)?;
    let space_before = space_before(file, &vocabulary)?;
    guarded(file.source, "build", || {
        let model = BytePairs { texts, merges, outside, whole_words: false };
        let mut inner = Inner::new(Model::BytePairs(model));
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
    let scores = file.array(key)?.iter().map(|value| file.float(key, &value)).collect::<Result<Vec<_>>>()?;
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

/// The token of each byte, if there are such; some, but not all, is damage.
fn byte_tokens(file: &Metadata, texts: &Texts) -> Result<Option<Box<[u32; 256]>>> {
    let mut ids = Box::new([0; 256]);
    let mut absent = Vec::new();
    for (byte, id) in ids.iter_mut().enumerate() {
        let token = format!("<0x{byte:02X}>");
        match texts.id(&token) {
            Some(known) => *id = known,
            None => absent.push(token),
        }
    }
    match absent.as_slice() {
        [] => Ok(Some(ids)),
        [first, ..] if absent.len() < 256 => Err(file.error(format_args!(
            "has a damaged tokenizer.ggml.tokens: {} of the 256 byte tokens are missing, {first} among them",
            absent.len()
        ))),
        _ => Ok(None),
    }
}

/// The token for what no piece stands for: the one that is named, or else marked as such.
fn unknown_token(file: &Metadata, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    let types = &vocabulary.types;
    let named = file.token_id("tokenizer.ggml.unknown_token_id", types.len())?;
    let marked = || types.iter().zip(0..).find_map(|(&kind, id)| (kind == TokenType::Unknown).then_some(id));
    Ok(named.or_else(marked).filter(|&id| types[id as usize] != TokenType::Unused))
}

/// The place of each id among the pieces, the best first: SentencePiece merges whatever has the highest score.
///
/// Pieces of one score are taken in the order of their ids, which is that in which they were learnt. (Files made without
/// the SentencePiece model have the same score everywhere.)
fn ranks(vocabulary: &Vocabulary, scores: &[f32], runs_of_spaces: &[usize]) -> Vec<u32> {
    let is_piece = |id: usize| matches!(vocabulary.types[id], TokenType::Normal | TokenType::Undefined);
    let mut pieces: Vec<usize> = (0..vocabulary.tokens.len()).filter(|&id| is_piece(id)).collect();
    pieces.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
    let mut ranks = vec![NO_PIECE; vocabulary.tokens.len()];
    // User-defined tokens come before all others.
    for (&id, rank) in runs_of_spaces.iter().chain(&pieces).zip(0..) {
        ranks[id] = rank;
    }
    ranks
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
