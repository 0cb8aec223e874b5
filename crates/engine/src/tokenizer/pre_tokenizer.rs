//! How each family of byte-level vocabularies splits text before it merges bytes.
//!
//! A GGUF file names the family in `tokenizer.ggml.pre`. What a name means here is what the family's `tokenizer.json`
//! says, not what llama.cpp makes of it, which has no normalisation and its own regular expressions for some.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use SplitRule::{Digit, DigitRun, Gpt2, PunctuationRun, Regex};

/// A pre-tokenizer: one row of [`TABLE`].
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// The names in GGUF files of the vocabularies that are read in this way.
    names: &'static [&'static str],
    /// Whether text is brought into Unicode's composed form first.
    composes: bool,
    /// The rules; each splits the pieces of the one before.
    rules: &'static [SplitRule],
    /// Whether a piece that is a token as a whole is taken without merging.
    pub(super) ignores_merges: bool,
    /// Whether a prompt starts with BoS where the file does not say, as in llama.cpp.
    pub(super) adds_bos_by_default: bool,
}

/// One step of splitting text into pieces.
#[derive(Debug, PartialEq)]
enum SplitRule {
    /// Each digit by itself.
    Digit,
    /// Digits from everything else.
    DigitRun,
    /// Punctuation from everything else.
    PunctuationRun,
    /// GPT-2's regular expression, which is built into the crate's `ByteLevel`; what follows sees its byte alphabet.
    Gpt2,
    /// What matches from what does not.
    Regex(&'static str),
}

static TABLE: [PreTokenizer; 15] = [
    // GPT-2 and Phi-2.
    row(&["gpt-2", "phi-2"], &[Gpt2]),
    // SmolLM and SmolLM2, Granite 3, StarCoder.
    row(&["smollm", "refact", "starcoder"], &[Digit, Gpt2]),
    // GPT-NeoX and Pythia, OLMo, OLMoE, MPT.
    row(&["olmo", "mpt"], &[Gpt2]).composing(),
    row(&["command-r"], &[Digit, Gpt2]).composing(),
    row(&["falcon"], &[PunctuationRun, Gpt2, DigitRun, Regex("[0-9][0-9][0-9]")]),
    row(&["llama-bpe", "llama3", "llama-v3"], &[Regex(LLAMA_3)]).ignoring_merges().adding_bos(),
    // Llama 3's vocabulary without its BoS: Smaug, SmolLM3.
    row(&["smaug-bpe"], &[Regex(LLAMA_3)]).ignoring_merges(),
    // DBRX, OLMo 2, Phi-4.
    row(&["dbrx"], &[Regex(LLAMA_3)]),
    // Qwen 2, 2.5 and 3, and what DeepSeek distilled into them.
    row(&["qwen2", "deepseek-r1-qwen"], &[Regex(QWEN_2)]).composing(),
    row(&["qwen35"], &[Regex(QWEN_3_5)]).composing(),
    // Llama 4, Phi-4-mini, gpt-oss.
    row(&["gpt-4o", "llama4"], &[Regex(GPT_4O)]),
    // Mistral Nemo and after.
    row(&["tekken"], &[Regex(TEKKEN)]).ignoring_merges().adding_bos(),
    row(
        &["deepseek-llm"],
        &[
            Regex(LINE_ENDS),
            Regex(DEEPSEEK_LLM_WORDS),
            Regex(DEEPSEEK_LLM_PUNCTUATION),
            Regex(r"\s+$"),
            Regex(DEEPSEEK_CJK),
            Digit,
        ],
    ),
    row(
        &["deepseek-coder"],
        &[Regex(LINE_ENDS), Regex(r"\s?\p{L}+"), Regex(r"\s?\p{P}+"), Regex(DEEPSEEK_CJK), Digit],
    ),
    row(&["deepseek-v3"], &[Regex(r"\p{N}{1,3}"), Regex(DEEPSEEK_V3_CJK), Regex(DEEPSEEK_V3)]),
];

/// Words, at most three digits, punctuation with the line ends after it, white space.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with combining marks as letters.
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words split where a capital follows a small letter, with their contractions; at most three digits.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same without contractions and with single digits.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const LINE_ENDS: &str = r"[\r\n]";
/// The cased letters of Unicode.
const DEEPSEEK_LLM_WORDS: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const DEEPSEEK_LLM_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
/// Chinese characters, and, by the order of its ranges, most other scripts from U+0800 on.
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
const DEEPSEEK_V3_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const fn row(names: &'static [&'static str], rules: &'static [SplitRule]) -> PreTokenizer {
    PreTokenizer { names, composes: false, rules, ignores_merges: false, adds_bos_by_default: false }
}

impl PreTokenizer {
    const fn composing(self) -> Self {
        Self { composes: true, ..self }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignores_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { adds_bos_by_default: true, ..self }
    }

    /// The pre-tokenizer that GGUF files call `name`.
    pub(super) fn from_name(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|row| row.names.contains(&name))
    }

    /// The names that [`from_name`](Self::from_name) knows, for error messages.
    pub(super) fn known_names() -> String {
        TABLE.iter().flat_map(|row| row.names).copied().collect::<Vec<_>>().join(", ")
    }

    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.composes.then(|| NFC.into())
    }

    pub(super) fn splitter(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = self.rules.iter().map(SplitRule::step).collect::<tokenizers::Result<Vec<_>>>()?;
        if !self.rules.contains(&Gpt2) {
            steps.push(ByteLevel::new(false, true, false).into());
        }
        Ok(Sequence::new(steps).into())
    }
}

impl SplitRule {
    fn step(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        Ok(match *self {
            Digit => Digits::new(true).into(),
            DigitRun => Digits::new(false).into(),
            PunctuationRun => Punctuation::new(SplitDelimiterBehavior::Contiguous).into(),
            Gpt2 => ByteLevel::new(false, true, true).into(),
            Regex(pattern) => {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into()
            }
        })
    }
}
