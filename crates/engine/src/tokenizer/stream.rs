//! Text as it is generated, token by token.

use super::{Tokenizer, bytes};
use crate::Result;

/// Turns ids into text one at a time, holding back characters that are not whole yet.
///
/// The pieces, put together, are what [`Tokenizer::decode`] makes of all the ids. (Where a SentencePiece vocabulary
/// spells a run of bytes that breaks off, `decode` gives up the whole run, and a stream only its broken part.)
#[derive(Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    held: Held,
}

/// What was pushed and not given out yet.
#[derive(Debug)]
enum Held {
    /// A byte-level vocabulary: the start of an unfinished character.
    Bytes(Vec<u8>),
    /// Any other: how an id decodes may depend on what is before it (a leading space, bytes that join), so the ids
    /// last given out are decoded again with the new ones.
    Window {
        ids: Vec<u32>,
        /// How many of `ids` were given out.
        given: usize,
        /// The text of those.
        shown: String,
    },
}

impl<'a> TokenStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        let held = if tokenizer.byte_level {
            Held::Bytes(Vec::new())
        } else {
            Held::Window { ids: Vec::new(), given: 0, shown: String::new() }
        };
        Self { tokenizer, skip_special, held }
    }

    /// Takes the next id and gives the text that it completes, if any.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        let text = match &mut self.held {
            Held::Bytes(buffer) => {
                self.tokenizer.append_bytes(id, self.skip_special, buffer);
                bytes::take_complete(buffer)
            }
            Held::Window { ids, given, shown } => {
                ids.push(id);
                let text = self.tokenizer.decode_ids(ids, self.skip_special)?;
                if text.len() <= shown.len() || text.ends_with(char::REPLACEMENT_CHARACTER) {
                    return Ok(None);
                }
                let new =
                    rest_of(&text, shown, || self.tokenizer.decode_ids(&ids[*given..], self.skip_special))?;
                ids.drain(..*given);
                *given = ids.len();
                *shown = self.tokenizer.decode_ids(ids, self.skip_special)?;
                new
            }
        };
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Gives what is still held back: an unfinished character, as U+FFFD, or nothing.
    pub fn finish(self) -> Result<String> {
        match self.held {
            Held::Bytes(buffer) => Ok(String::from_utf8_lossy(&buffer).into_owned()),
            Held::Window { ids, given, shown } => {
                let text = self.tokenizer.decode_ids(&ids, self.skip_special)?;
                rest_of(&text, &shown, || self.tokenizer.decode_ids(&ids[given..], self.skip_special))
            }
        }
    }
}

/// `text` after what was `shown` of it, or what `alone` gives where later bytes have spoiled that.
fn rest_of(text: &str, shown: &str, alone: impl FnOnce() -> Result<String>) -> Result<String> {
    match text.strip_prefix(shown) {
        Some(rest) => Ok(rest.to_owned()),
        None => alone(),
    }
}
