//! The texts of a vocabulary, by id, and the ids by text.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::weights::Strings;

/// Texts and ids, each of which takes the bytes of the text and some twenty more.
#[derive(Debug)]
pub(super) struct Texts {
    /// By id; that of an id without a text is empty.
    texts: Strings,
    /// Ids by the hashes of their texts.
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Texts {
    /// No texts yet; room for `count` of them.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self {
            texts: Strings::with_capacity(count),
            ids: HashTable::with_capacity(count),
            hasher: RandomState::new(),
        }
    }

    /// Gives the next id a text, or none where `text` is empty.
    ///
    /// # Errors
    /// The id that already has this text.
    pub(super) fn push(&mut self, text: &str) -> Result<(), u32> {
        let Self { texts, ids, hasher } = self;
        let id = texts.len() as u32;
        if !text.is_empty() {
            let of = |id: u32| texts.get(id as usize).unwrap_or_default();
            let hash = hasher.hash_one(text);
            match ids.entry(hash, |&other| of(other) == text, |&other| hasher.hash_one(of(other))) {
                Entry::Occupied(first) => return Err(*first.get()),
                Entry::Vacant(free) => free.insert(id),
            };
        }
        texts.push(text);
        Ok(())
    }

    /// The text of an id, if it has one.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(id as usize).filter(|text| !text.is_empty())
    }

    /// The id of a text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(text), |&id| self.text(id) == Some(text)).copied()
    }

    /// The ids that have a text, with it, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..).zip(self.texts.iter()).filter(|(_, text)| !text.is_empty())
    }

    /// The memory that they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.texts.bytes() + self.ids.allocation_size()
    }

    /// How many ids have a text.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_ids_are_found_both_ways() {
        let mut texts = Texts::with_capacity(1);
        for text in ["a", "", "ä", "ab", "", "b"] {
            texts.push(text).expect("new");
        }
        assert_eq!(texts.push("ab"), Err(3));
        assert_eq!(texts.len(), 4);
        assert_eq!(texts.iter().collect::<Vec<_>>(), [(0, "a"), (2, "ä"), (3, "ab"), (5, "b")]);
        for (id, text) in texts.iter() {
            assert_eq!(texts.id(text), Some(id));
        }
        assert_eq!((texts.id(""), texts.id("c"), texts.text(1), texts.text(6)), (None, None, None, None));
        texts.push("c").expect("new");
        assert_eq!(texts.text(6), Some("c"));
    }
}
