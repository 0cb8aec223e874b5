//! Byte-pair encoding (Sennrich, Haddow and Birch, 2016, algorithm 1) with the vocabulary of a GGUF file.
//!
//! It makes the tokens that `tokenizers::models::bpe::BPE` makes, with which the tests compare it. That model is built from
//! two strings for each merge, of which SentencePiece vocabularies have two for each token: for Gemma's 262,144 tokens this
//! took half of a start. Here the merges of scored pieces are found as text needs them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tokenizers::Token;

use super::texts::Texts;

/// Splits words into tokens.
#[derive(Debug)]
pub(super) struct BytePairs {
    pub(super) texts: Texts,
    pub(super) merges: Merges,
    pub(super) outside: Outside,
    /// Whether a word that is a token becomes that token, whatever the merges make of it.
    pub(super) whole_words: bool,
}

/// Which two tokens become one, and which of several pairs merges first.
#[derive(Debug)]
pub(super) enum Merges {
    /// The rank of each pair of ids, and the id that it becomes; the lowest rank first.
    Listed(HashMap<(u32, u32), (u32, u32)>),
    /// Any two pieces whose texts together are one: the rank of each id among pieces, or [`NO_PIECE`].
    ///
    /// Of several cuts of one piece, the one with the longest left part comes first.
    Scored(Vec<u32>),
}

/// The rank of what is no piece.
pub(super) const NO_PIECE: u32 = u32::MAX;

/// What becomes of a character that is no token.
#[derive(Debug)]
pub(super) enum Outside {
    /// Nothing: it is dropped.
    Dropped,
    /// The unknown token, once for each run of such characters.
    Unknown(u32),
    /// The tokens of its bytes.
    Bytes(Box<[u32; 256]>),
}

/// A token of a word that is being merged. Symbols stay where they are; one that was merged into the symbol before it is
/// empty.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    /// Bytes of the word.
    length: usize,
    /// The symbols that are not empty next to it: indices; an index past the end where there is none.
    before: usize,
    after: usize,
}

/// A merge that may be next: its rank, the index of the left symbol, and the id that both become.
type Candidate = Reverse<(u64, usize, u32)>;

impl BytePairs {
    /// The tokens of a word, with their places in it in bytes.
    pub(super) fn tokens(&self, word: &str) -> Vec<Token> {
        let token = |id, start, length| {
            let text = self.texts.text(id).unwrap_or_default();
            Token::new(id, text.to_owned(), (start, start + length))
        };
        if self.whole_words
            && let Some(id) = self.texts.id(word)
        {
            return vec![token(id, 0, word.len())];
        }
        let mut symbols = self.symbols(word);
        self.merge(&mut symbols);
        let mut start = 0;
        let merged = symbols.into_iter().filter(|symbol| symbol.length > 0);
        merged
            .map(|symbol| {
                let token = token(symbol.id, start, symbol.length);
                start += symbol.length;
                token
            })
            .collect()
    }

    /// Each character as a token.
    fn symbols(&self, word: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(word.len());
        let mut push = |id, length| {
            let index = symbols.len();
            symbols.push(Symbol { id, length, before: index.wrapping_sub(1), after: index + 1 });
        };
        // The bytes of unknown characters since the last known one.
        let mut unknown = 0;
        for (start, character) in word.char_indices() {
            let length = character.len_utf8();
            let text = &word[start..start + length];
            match (self.texts.id(text), &self.outside) {
                (Some(id), outside) => {
                    if let Outside::Unknown(token) = outside
                        && unknown > 0
                    {
                        push(*token, unknown);
                        unknown = 0;
                    }
                    push(id, length);
                }
                (None, Outside::Dropped) => {}
                (None, Outside::Unknown(_)) => unknown += length,
                (None, Outside::Bytes(ids)) => {
                    text.bytes().for_each(|byte| push(ids[usize::from(byte)], 1));
                }
            }
        }
        if let Outside::Unknown(token) = self.outside
            && unknown > 0
        {
            push(token, unknown);
        }
        symbols
    }

    /// Merges the pair of the lowest rank, the leftmost first, until none is left.
    fn merge(&self, symbols: &mut [Symbol]) {
        let mut room = String::new();
        let mut queue = BinaryHeap::with_capacity(symbols.len());
        let pairs = symbols.windows(2).enumerate();
        queue
            .extend(pairs.filter_map(|(left, pair)| self.candidate(left, pair[0].id, pair[1].id, &mut room)));
        while let Some(Reverse((_, left, id))) = queue.pop() {
            let first = symbols[left];
            let Some(&second) = symbols.get(first.after) else { continue };
            // Either may have become part of another pair since.
            let now = self.merged(first.id, second.id, &mut room);
            if first.length == 0 || now.is_none_or(|(_, now)| now != id) {
                continue;
            }
            symbols[first.after].length = 0;
            symbols[left] = Symbol { id, length: first.length + second.length, after: second.after, ..first };
            if let Some(next) = symbols.get_mut(second.after) {
                next.before = left;
                queue.extend(self.candidate(left, id, next.id, &mut room));
            }
            if let Some(previous) = symbols.get(first.before) {
                queue.extend(self.candidate(first.before, previous.id, id, &mut room));
            }
        }
    }

    /// The merge of two ids, the first of them at the index `left`, if they merge. `room` is memory to work in.
    fn candidate(&self, left: usize, first: u32, second: u32, room: &mut String) -> Option<Candidate> {
        self.merged(first, second, room).map(|(rank, id)| Reverse((rank, left, id)))
    }

    /// The rank of a merge of two ids, and the id that they become, if they merge. `room` is memory to work in.
    fn merged(&self, first: u32, second: u32, room: &mut String) -> Option<(u64, u32)> {
        match &self.merges {
            Merges::Listed(merges) => {
                let &(rank, id) = merges.get(&(first, second))?;
                Some((rank.into(), id))
            }
            Merges::Scored(ranks) => {
                let rank = |id: u32| ranks.get(id as usize).copied().filter(|&rank| rank != NO_PIECE);
                rank(first).and(rank(second))?;
                let (left, right) = (self.texts.text(first)?, self.texts.text(second)?);
                room.clear();
                room.push_str(left);
                room.push_str(right);
                let id = self.texts.id(room)?;
                // The longer the left part, the lower.
                let cut = u32::MAX - left.len() as u32;
                Some((u64::from(rank(id)?) << 32 | u64::from(cut), id))
            }
        }
    }

    /// The memory that its tables take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let merges = match &self.merges {
            // A table has a byte more for each entry, and is filled to seven eighths at most.
            Merges::Listed(merges) => merges.capacity() * (4 * size_of::<u32>() + 1) * 8 / 7,
            Merges::Scored(ranks) => size_of_val(ranks.as_slice()),
        };
        self.texts.bytes() + merges
    }

    /// Whether a character that is no token becomes tokens of its bytes.
    pub(super) fn falls_back_on_bytes(&self) -> bool {
        matches!(self.outside, Outside::Bytes(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokenizers::Model;
    use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};

    const CHARACTERS: [&str; 5] = ["a", "b", "\u{2581}", "ä", "€"];
    const UNKNOWN: &str = "<unk>";

    fn texts(tokens: &[String]) -> Texts {
        let mut texts = Texts::with_capacity(tokens.len());
        tokens.iter().for_each(|token| texts.push(token).expect("tokens differ"));
        texts
    }

    /// That of the library with these tokens and merges.
    fn library(tokens: &[String], merges: Vec<(String, String)>) -> BpeBuilder {
        let vocab: Vocab = tokens.iter().cloned().zip(0..).collect();
        BPE::builder().vocab_and_merges(vocab, merges)
    }

    fn same(ours: &BytePairs, theirs: &BPE, words: &[String]) -> Result<(), TestCaseError> {
        for word in words {
            prop_assert_eq!(ours.tokens(word), theirs.tokenize(word).expect("tokens"), "{:?}", word);
        }
        Ok(())
    }

    /// Words of the characters, and of one that is no token.
    fn words() -> impl Strategy<Value = Vec<String>> {
        vec("[ab\u{2581}ä€z]{0,40}|(ab|a\u{2581}|ä){0,20}", 1..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn listed_merges_make_the_tokens_of_the_library(
            known in vec(any::<bool>(), CHARACTERS.len()),
            pairs in vec(any::<[prop::sample::Index; 2]>(), 0..40),
            whole_words in any::<bool>(),
            words in words(),
        ) {
            let characters = CHARACTERS.iter().zip(&known).filter(|(_, known)| **known);
            let mut tokens: Vec<String> = characters.map(|(text, _)| (*text).to_owned()).collect();
            tokens.push("bä".to_owned());
            let mut merges = vec![];
            for pair in pairs {
                let [left, right] = pair.map(|index| index.get(&tokens).clone());
                let whole = [left.as_str(), &right].concat();
                if !tokens.contains(&whole) {
                    tokens.push(whole);
                }
                merges.push((left, right));
            }
            let texts = texts(&tokens);
            let id = |text: &str| texts.id(text).expect("a token");
            let listed = merges.iter().zip(0..).map(|((left, right), rank)| {
                ((id(left), id(right)), (rank, id(&[left.as_str(), right].concat())))
            });
            let merged = Merges::Listed(listed.collect());
            let theirs = library(&tokens, merges).ignore_merges(whole_words).build().expect("a model");
            let ours = BytePairs { texts, merges: merged, outside: Outside::Dropped, whole_words };
            same(&ours, &theirs, &words)?;
        }

        #[test]
        fn scored_pieces_make_the_tokens_of_the_library(
            pieces in vec("[ab\u{2581}ä€]{1,6}", 1..60),
            is_piece in vec(prop::bool::weighted(0.9), 60),
            has_bytes in any::<bool>(),
            words in words(),
        ) {
            let mut tokens = vec![UNKNOWN.to_owned()];
            if has_bytes {
                tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
            }
            let first = tokens.len();
            for piece in pieces {
                if !tokens.contains(&piece) {
                    tokens.push(piece);
                }
            }
            // The order of ids is that of ranks: any other only renames tokens.
            let mut ranks = vec![NO_PIECE; tokens.len()];
            for (id, _) in (first..tokens.len()).zip(is_piece).filter(|(_, is_piece)| *is_piece) {
                ranks[id] = id as u32;
            }
            let texts = texts(&tokens);
            let known = |text: &str| texts.id(text).is_some_and(|id| ranks[id as usize] != NO_PIECE);
            let mut merges = vec![];
            for piece in tokens.iter().filter(|piece| known(piece)) {
                let cuts = piece.char_indices().rev().map(|(cut, _)| piece.split_at(cut));
                let cuts = cuts.filter(|(left, right)| known(left) && known(right));
                merges.extend(cuts.map(|(left, right)| (left.to_owned(), right.to_owned())));
            }
            let theirs = library(&tokens, merges).byte_fallback(has_bytes).fuse_unk(true);
            let theirs = theirs.unk_token(UNKNOWN.to_owned()).build().expect("a model");
            let bytes = || (0..=u8::MAX).map(|byte| texts.id(&format!("<0x{byte:02X}>")).expect("a byte"));
            let outside = match has_bytes {
                true => Outside::Bytes(bytes().collect::<Vec<_>>().try_into().expect("256 bytes")),
                false => Outside::Unknown(0),
            };
            let ours = BytePairs { texts, merges: Merges::Scored(ranks), outside, whole_words: false };
            same(&ours, &theirs, &words)?;
        }
    }
}
