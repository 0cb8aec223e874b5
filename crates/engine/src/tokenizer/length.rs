//! How few tokens a text can become, from its bytes alone, so that one far beyond the context is refused before it is
//! tokenized, which takes some 150 bytes of memory for each of its own.
//!
//! Let L(b) be the length in bytes of the longest token that holds byte b. Of a text that its tokens spell out, each token t
//! covers |t| bytes, each of which counts 1/L(b) ≤ 1/|t|. So the sum of 1/L(b) over the text is at most the number of its
//! tokens, and a text whose sum is above a limit has more tokens than that. Bytes that a tokenizer may leave out or change
//! count nothing:
//!
//! - a byte that a byte-level vocabulary has no token for, since it is dropped;
//! - white space and what is not ASCII, where an added token swallows the white space beside it;
//! - where text is composed first (NFC), everything but ASCII before ASCII, which composing leaves as it is.
//!
//! There is no bound for tokenizers that shorten text in other ways (`Lowercase`, `Strip`, a regular expression, unknown
//! tokens that stand for stretches of any length).

use tokenizers::normalizers::Replace;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::model::Model;
use super::{Inner, bytes};

/// 1/L of each byte, or 0 for one that may vanish.
#[derive(Debug)]
pub(super) struct TokenLengths {
    weights: [f64; 256],
    /// Text is brought into Unicode's composed form first.
    composes: bool,
}

impl TokenLengths {
    /// The bound of a tokenizer; none where text may become fewer tokens than its bytes tell.
    pub(super) fn of(inner: &Inner, byte_level: bool) -> Option<Self> {
        let composes = match inner.get_normalizer() {
            None => false,
            Some(normalizer) => composes(normalizer)?,
        };
        let falls_back_on_bytes = match inner.get_model() {
            Model::BytePairs(model) => model.falls_back_on_bytes(),
            Model::Published(model) => falls_back_on_bytes(model)?,
        };
        let pre_tokenizer = inner.get_pre_tokenizer();
        let is_kept = pre_tokenizer.is_none_or(keeps_text);
        let spells_bytes = match byte_level {
            true => pre_tokenizer.is_some_and(spells_bytes),
            false => falls_back_on_bytes,
        };
        if !is_kept || !spells_bytes || (composes && !byte_level) {
            return None;
        }
        let added = inner.get_added_tokens_decoder();
        let mut longest = [0; 256];
        let mut single = [!byte_level; 256];
        for (token, id) in inner.get_vocab(true) {
            let mut spelt = Vec::new();
            if added.contains_key(&id) || !byte_level {
                spelt.extend_from_slice(token.as_bytes());
            } else {
                bytes::append_from_alphabet(&token, &mut spelt);
            }
            if byte_level && let &[byte] = spelt.as_slice() {
                single[usize::from(byte)] = true;
            }
            let length = spelt.len();
            if !byte_level {
                // SentencePiece spells a space as U+2581, and a byte outside its pieces as `<0xE4>`.
                spelt.extend(token.contains('\u{2581}').then_some(b' '));
                spelt.extend(bytes::fallback_byte(&token));
            }
            for byte in spelt {
                let longest = &mut longest[usize::from(byte)];
                *longest = length.max(*longest);
            }
        }
        let swallows_space = added.values().any(|token| token.lstrip || token.rstrip);
        let weights = std::array::from_fn(|index| {
            let byte = index as u8;
            let vanishes = swallows_space && (byte.is_ascii_whitespace() || byte == 0x0b || !byte.is_ascii());
            match longest[index] {
                0 => 0.0,
                _ if vanishes || !single[index] => 0.0,
                length => 1.0 / f64::from(length.min(1 << 30) as u32),
            }
        });
        Some(Self { weights, composes })
    }

    /// A number of tokens below which `text` does not come.
    pub(super) fn fewest_tokens(&self, text: &str) -> usize {
        let bytes = text.as_bytes();
        let sum: f64 = match self.composes {
            false => bytes.iter().map(|&byte| self.weights[usize::from(byte)]).sum(),
            true => {
                let next = bytes.iter().skip(1).chain([&b' ']);
                let kept = bytes.iter().zip(next).filter(|(byte, next)| byte.is_ascii() && next.is_ascii());
                kept.map(|(&byte, _)| self.weights[usize::from(byte)]).sum()
            }
        };
        // What rounding of the sum may have added.
        (sum * (1.0 - 1e-6)) as usize
    }
}

/// Whether a normalizer composes text, for one that else only adds or writes a space as U+2581.
fn composes(normalizer: &NormalizerWrapper) -> Option<bool> {
    match normalizer {
        NormalizerWrapper::NFC(_) => Some(true),
        NormalizerWrapper::Prepend(_) => Some(false),
        NormalizerWrapper::Replace(replace) if *replace == Replace::new(" ", "\u{2581}").ok()? => Some(false),
        NormalizerWrapper::Sequence(steps) => {
            let steps: Option<Vec<bool>> = steps.as_ref().iter().map(composes).collect();
            Some(steps?.contains(&true))
        }
        _ => None,
    }
}

/// Whether a pre-tokenizer leaves everything in the pieces that it makes.
fn keeps_text(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_)
        | PreTokenizerWrapper::Metaspace(_)
        | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Punctuation(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().all(keeps_text),
        _ => false,
    }
}

/// Whether a pre-tokenizer writes text in the byte alphabet.
fn spells_bytes(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(spells_bytes),
        _ => false,
    }
}

/// Whether a character outside the vocabulary becomes tokens of its bytes, for byte-pair encoding that adds nothing to words.
fn falls_back_on_bytes(model: &ModelWrapper) -> Option<bool> {
    use tokenizers::Model;
    let ModelWrapper::BPE(model) = model else { return None };
    if model.continuing_subword_prefix.is_some() || model.end_of_word_suffix.is_some() {
        return None;
    }
    let has = |byte: u8| model.token_to_id(&format!("<0x{byte:02X}>")).is_some();
    Some(model.byte_fallback && (0..=u8::MAX).all(has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;
    use tokenizers::{AddedToken, DecoderWrapper};

    const NAMES: [&str; 7] =
        ["gpt-2", "llama-bpe", "qwen2", "smollm", "gemma-spm", "llama-spm", "mistral-spm"];

    fn read(file: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizer");
        std::fs::read_to_string(folder.join(file)).expect("fixture")
    }

    /// The tokenizers of the goldens, and one whose added tokens swallow white space.
    static TOKENIZERS: LazyLock<Vec<(String, Inner, TokenLengths)>> = LazyLock::new(|| {
        let load =
            |name: &str| -> Inner { read(&format!("{name}.tokenizer.json")).parse().expect("a tokenizer") };
        let mut all: Vec<(String, Inner)> =
            NAMES.iter().map(|name| ((*name).to_owned(), load(name))).collect();
        let mut swallowing = load("gpt-2");
        let token = AddedToken::from("<sep>", true).lstrip(true).rstrip(true);
        swallowing.add_special_tokens([token]).expect("added");
        all.push(("swallowing".to_owned(), swallowing));
        let with_bound = |(name, inner): (String, Inner)| {
            let byte_level = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
            let lengths = TokenLengths::of(&inner, byte_level)?;
            Some((name, inner, lengths))
        };
        all.into_iter().filter_map(with_bound).collect()
    });

    fn check(text: &str) {
        for (name, inner, lengths) in TOKENIZERS.iter() {
            let tokens = inner.encode_fast(text, false).expect("encoded").len();
            let fewest = lengths.fewest_tokens(text);
            assert!(fewest <= tokens, "{name}: {text:?} has {tokens} tokens, not {fewest}");
        }
    }

    #[test]
    fn every_tokenizer_of_the_goldens_has_a_bound() {
        let bounded: Vec<&str> = TOKENIZERS.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(bounded, [&NAMES[..], &["swallowing"]].concat());
    }

    #[test]
    fn no_text_has_fewer_tokens() {
        let hostile: Vec<String> = serde_json::from_str(&read("hostile.json")).expect("texts");
        assert!(hostile.len() > 1000);
        hostile.iter().for_each(|text| check(text));
        check(&hostile.concat());
        for piece in [
            " ",
            "\t",
            "\n",
            "=",
            "-",
            "a",
            "\u{2581}",
            "e\u{301}",
            "\u{1100}\u{1161}",
            "<sep>  ",
            "\u{3}",
            "\u{212a}",
        ] {
            check(&piece.repeat(1000));
        }
    }

    #[test]
    fn a_long_text_has_a_large_bound() {
        let text = "The quick brown fox jumps over the lazy dog, again and again. ".repeat(1000);
        for (name, inner, lengths) in TOKENIZERS.iter() {
            let tokens = inner.encode_fast(text.as_str(), false).expect("encoded").len();
            let fewest = lengths.fewest_tokens(&text);
            assert!(fewest > tokens / 20, "{name}: at least {fewest} of {tokens} tokens");
        }
    }

    #[test]
    fn what_shortens_text_has_no_bound() {
        for (field, value) in [
            ("normalizer", r#"{"type": "Lowercase"}"#),
            ("normalizer", r#"{"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}"#),
            ("pre_tokenizer", r#"{"type": "Whitespace"}"#),
            ("pre_tokenizer", r#"{"type": "Digits", "individual_digits": true}"#),
        ] {
            let mut tokenizer: serde_json::Value =
                serde_json::from_str(&read("gpt-2.tokenizer.json")).expect("JSON");
            tokenizer[field] = serde_json::from_str(value).expect("JSON");
            let inner: Inner = tokenizer.to_string().parse().expect("a tokenizer");
            assert!(TokenLengths::of(&inner, true).is_none(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_random_text_has_fewer_tokens(text in "(.|\\PC|[ \t\n]{1,20}|<sep>|the |ing|[\u{300}-\u{304}]){0,60}") {
            check(&text);
        }
    }
}
