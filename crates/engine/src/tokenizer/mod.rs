//! Text to token ids and back, special tokens and chat templates, exactly as `transformers` reads them.
//!
//! A wrong pre-tokenizer is a silent error: the model still answers, a little worse. So nothing here falls back on a
//! default. What a file does not say, or says in a way that is not supported, is an error that names the file.

mod byte_level;
mod byte_pairs;
mod bytes;
mod directory;
mod gguf;
mod jinja;
mod length;
mod model;
mod pre_tokenizer;
mod sentencepiece;
mod stop_texts;
mod stream;
mod template;
mod texts;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use crate::{Error, Result};
use length::TokenLengths;
use model::Model;
use template::ChatTemplate;

pub use stop_texts::StopTexts;
pub use stream::TokenStream;

/// Tokens that end a turn or a text in well-known model families.
///
/// They count as end tokens only where the chat template writes them: a vocabulary often has some that the model was
/// never trained to end with.
const WELL_KNOWN_END_TOKENS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
];

/// The steps from text to ids and back.
type Inner =
    TokenizerImpl<Model, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the model's chat template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role` saying `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A prompt as the user gives it, before the chat template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptText {
    /// A text; with a chat template it becomes one user message.
    Plain(String),
    /// A conversation, which needs a chat template.
    Messages(Vec<Message>),
}

/// A model's tokenizer, its special tokens and its chat template.
#[derive(Debug)]
pub struct Tokenizer {
    inner: Inner,
    /// The file or folder that errors name.
    source: PathBuf,
    /// Ids are bytes in the GPT-2 alphabet, so they can be decoded one at a time.
    byte_level: bool,
    vocab_size: usize,
    bos_id: Option<u32>,
    eos_ids: Vec<u32>,
    /// What a prompt starts with: the BoS token, or nothing.
    prefix: Vec<u32>,
    template: Option<ChatTemplate>,
    /// The model's context, where the tokenizer is that of a model.
    context: Option<usize>,
    /// Made when a text is first long enough to exceed the context.
    lengths: OnceLock<Option<TokenLengths>>,
}

/// What a model file says about its tokenizer, checked, before it is put together.
struct Parts {
    inner: Inner,
    source: PathBuf,
    vocab_size: usize,
    bos_id: Option<u32>,
    /// What the metadata names, most important first; may hold duplicates.
    eos_ids: Vec<u32>,
    prefix: Vec<u32>,
    chat_template: Option<String>,
}

impl Tokenizer {
    fn assemble(parts: Parts) -> Self {
        let Parts { inner, source, vocab_size, bos_id, eos_ids: named, prefix, chat_template } = parts;
        let written = WELL_KNOWN_END_TOKENS
            .into_iter()
            .filter(|token| chat_template.as_ref().is_some_and(|t| t.contains(token)))
            .filter_map(|token| inner.token_to_id(token));
        let mut eos_ids = Vec::new();
        for id in named.iter().copied().chain(written) {
            if !eos_ids.contains(&id) {
                eos_ids.push(id);
            }
        }
        let text_of = |id: Option<u32>| id.and_then(|id| inner.id_to_token(id));
        let template = chat_template.map(|text| {
            let bos = text_of(bos_id);
            let eos = text_of(named.first().copied());
            ChatTemplate::new(text, bos, eos, &source)
        });
        Self {
            byte_level: matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))),
            inner,
            source,
            vocab_size,
            bos_id,
            eos_ids,
            prefix,
            template,
            context: None,
            lengths: OnceLock::new(),
        }
    }

    /// The same for a model of `context` tokens: what cannot but exceed it is refused before it is tokenized.
    pub(crate) fn within(self, context: usize) -> Self {
        Self { context: Some(context), ..self }
    }

    /// The ids of `text`, with no BoS added.
    ///
    /// As in `transformers`, the text of a special token becomes that token, and bytes that the vocabulary lacks are
    /// dropped (SmolLM2's lacks a few control characters).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        encode_with(&self.inner, &self.source, text, false)
    }

    /// The ids of `text`, which is to fit the model's context, as [`encode`](Self::encode) has them.
    ///
    /// # Errors
    /// [`Error::TextTooLong`] where the text has too many bytes for that, whatever its tokens.
    pub fn encode_fitting(&self, text: &str) -> Result<Vec<u32>> {
        self.check_length(text)?;
        self.encode(text)
    }

    fn check_length(&self, text: &str) -> Result<()> {
        let (bytes, Some(context)) = (text.len(), self.context) else { return Ok(()) };
        // The last token may lie beyond the context where nothing is decoded; a token has at least a byte.
        let most = context.saturating_add(1);
        if bytes <= most {
            return Ok(());
        }
        let lengths = self.lengths.get_or_init(|| TokenLengths::of(&self.inner, self.byte_level));
        match lengths.as_ref().map_or(0, |lengths| lengths.fewest_tokens(text)) {
            tokens if tokens > most => Err(Error::TextTooLong { bytes, tokens, context }),
            _ => Ok(()),
        }
    }

    /// The ids of a prompt as the model is to see it: [`render_prompt`](Self::render_prompt), then
    /// [`encode_fitting`](Self::encode_fitting), with the BoS token exactly once where the model wants one.
    pub fn encode_prompt(&self, prompt: &PromptText) -> Result<Vec<u32>> {
        let mut ids = self.encode_fitting(&self.render_prompt(prompt)?)?;
        if !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        if ids.is_empty() {
            return Err(Error::EmptyPrompt("the prompt is empty: it has no tokens to run the model on"));
        }
        Ok(ids)
    }

    /// The ids with the BoS token before them, where the model wants one and they do not begin with it.
    pub fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.bos_id().filter(|bos| self.adds_bos() && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// Whether prompts go through a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The text that a prompt becomes through the chat template, ending where the assistant is to speak.
    ///
    /// Without a chat template it is the plain text, or that of a single message.
    pub fn render_prompt(&self, prompt: &PromptText) -> Result<String> {
        match (&self.template, prompt) {
            (Some(template), PromptText::Plain(text)) => {
                template.render(&[Message::new("user", text.as_str())])
            }
            (_, PromptText::Messages(messages)) if messages.is_empty() => {
                Err(Error::EmptyPrompt("the prompt has no messages: give at least one"))
            }
            (Some(template), PromptText::Messages(messages)) => template.render(messages),
            (None, PromptText::Plain(text)) => Ok(text.clone()),
            (None, PromptText::Messages(messages)) => match messages.as_slice() {
                [message] => Ok(message.content.clone()),
                _ => Err(Error::input(format!(
                    "{} has no chat template, so a prompt of {} messages cannot be written out: give a plain prompt",
                    self.source.display(),
                    messages.len()
                ))),
            },
        }
    }

    /// The text of `ids`, special tokens included. Bytes that are no UTF-8 become U+FFFD; an id that stands for no
    /// token (a padded vocabulary has such) stands for no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decode_ids(ids, false)
    }

    /// The text of `ids` as [`decode`](Self::decode) gives it, with special tokens left out.
    pub fn decode_skipping_special(&self, ids: &[u32]) -> Result<String> {
        self.decode_ids(ids, true)
    }

    fn decode_ids(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if self.byte_level {
            let mut all = Vec::new();
            for &id in ids {
                self.append_bytes(id, skip_special, &mut all);
            }
            return Ok(String::from_utf8_lossy(&all).into_owned());
        }
        guarded(&self.source, "decode tokens with", || self.inner.decode(ids, skip_special))
    }

    /// Adds the bytes of one token of a byte-level vocabulary.
    fn append_bytes(&self, id: u32, skip_special: bool, out: &mut Vec<u8>) {
        if let Some(added) = self.added_token(id) {
            // Added tokens are written as they are, not in the byte alphabet.
            if !(skip_special && added.special) {
                out.extend_from_slice(added.content.as_bytes());
            }
        } else if let Some(token) = self.inner.id_to_token(id) {
            bytes::append_from_alphabet(&token, out);
        }
    }

    fn added_token(&self, id: u32) -> Option<&tokenizers::AddedToken> {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id)
    }

    /// Starts decoding ids as they are generated, with special tokens left out where `skip_special` is set.
    pub fn stream(&self, skip_special: bool) -> TokenStream<'_> {
        TokenStream::new(self, skip_special)
    }

    /// How one token is shown by itself: its text, with `<0xE4>` for a byte that is only part of a character, and
    /// `<unused 7>` for an id that stands for no token.
    pub fn token_text(&self, id: u32) -> String {
        if let Some(added) = self.added_token(id) {
            // A run of spaces may be one.
            return if self.byte_level {
                added.content.clone()
            } else {
                added.content.replace('\u{2581}', " ")
            };
        }
        let Some(token) = self.inner.id_to_token(id) else {
            return format!("<unused {id}>");
        };
        let mut raw = Vec::new();
        if self.byte_level {
            bytes::append_from_alphabet(&token, &mut raw);
        } else if let Some(byte) = bytes::fallback_byte(&token) {
            raw.push(byte);
        } else {
            // SentencePiece writes a space as U+2581; decoding one token alone would drop it.
            return token.replace('\u{2581}', " ");
        }
        bytes::show(&raw)
    }

    /// The BoS token that the model names. Whether a prompt starts with it is [`adds_bos`](Self::adds_bos).
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// Whether [`encode_prompt`](Self::encode_prompt) puts the BoS token before a prompt that lacks it.
    pub fn adds_bos(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// The tokens that end a text or a turn, so that generation stops at any of them; the main one first.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// About how much memory its tables take, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self.inner.get_model() {
            Model::BytePairs(model) => model.bytes() as u64,
            // Texts, ids and merges both ways, as measured on vocabularies of 49,152 and 262,144 tokens.
            Model::Published(_) => 340 * self.vocab_size as u64,
        }
    }

    /// The model's chat template, in Jinja.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::text)
    }

    /// The file or folder that the tokenizer came from.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

/// White space of this length makes the regular expressions backtrack nearly as often as their engine allows.
const LONGEST_WHITE_SPACE: usize = 5_000_000;

fn encode_with(inner: &Inner, source: &Path, text: &str, add_special: bool) -> Result<Vec<u32>> {
    let mut white_space = text.split(|character: char| !character.is_whitespace());
    if text.len() > LONGEST_WHITE_SPACE && white_space.any(|run| run.len() > LONGEST_WHITE_SPACE) {
        return Err(Error::input(format!(
            "the prompt has more than {LONGEST_WHITE_SPACE} bytes of white space in a row: shorten it"
        )));
    }
    let encoding = guarded(source, "encode the text with", || inner.encode_fast(text, add_special))?;
    Ok(encoding.get_ids().to_vec())
}

/// Runs `work` of the tokenizers crate, which panics on some damaged files and when its regular expression engine
/// gives up, and turns either failure into bad input.
fn guarded<T>(source: &Path, doing: &str, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    crate::guarded(work).map_err(|reason| {
        Error::input(format!("cannot {doing} the tokenizer of {}: {}", source.display(), shorten(&reason)))
    })
}

/// A text from a file, short enough to be quoted in an error.
fn shorten(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
