//! How each family of byte-level vocabularies cuts text before it merges bytes.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// Words, at most three digits, punctuation with the line ends after it, white space.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A pre-tokenizer by its name in GGUF files, `tokenizer.ggml.pre`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    SmolLm,
    LlamaBpe,
    Gpt2,
    Qwen2,
}

impl PreTokenizer {
    /// The names that [`from_name`](Self::from_name) knows, for error messages.
    pub(super) const NAMES: &'static str = "smollm, llama-bpe (llama3, llama-v3), gpt-2 and qwen2";

    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "smollm" => Some(Self::SmolLm),
            "llama-bpe" | "llama3" | "llama-v3" => Some(Self::LlamaBpe),
            "gpt-2" => Some(Self::Gpt2),
            "qwen2" => Some(Self::Qwen2),
            _ => None,
        }
    }

    /// Whether a prompt starts with BoS where the file does not say, as in llama.cpp.
    pub(super) fn adds_bos_by_default(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether a piece that is a token as a whole is taken without merging.
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    pub(super) fn normalizer(self) -> Option<NormalizerWrapper> {
        (self == Self::Qwen2).then(|| NFC.into())
    }

    pub(super) fn splitter(self) -> tokenizers::Result<PreTokenizerWrapper> {
        // GPT-2's own regular expression is built into ByteLevel.
        let gpt_2 = ByteLevel::new(false, true, true);
        let bytes_only = ByteLevel::new(false, true, false);
        let after_split = |pattern: &str| -> tokenizers::Result<PreTokenizerWrapper> {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
            Ok(Sequence::new(vec![split.into(), bytes_only.into()]).into())
        };
        match self {
            Self::SmolLm => Ok(Sequence::new(vec![Digits::new(true).into(), gpt_2.into()]).into()),
            Self::Gpt2 => Ok(gpt_2.into()),
            Self::LlamaBpe => after_split(LLAMA_3),
            Self::Qwen2 => after_split(QWEN_2),
        }
    }
}
