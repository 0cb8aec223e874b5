//! What a template may take: steps and bytes, counted before they are taken.

use std::cell::Cell;
use std::mem::size_of;
use std::rc::Rc;

use super::value::{List, Value};
use super::{Result, broken};

/// Steps of the interpreter, far more than a template needs: a conversation of 1,000 messages takes about 100 thousand.
const STEPS: usize = if cfg!(fuzzing) { 200_000 } else { 10_000_000 };
/// Bytes, far more than a template needs beside the copies of its messages.
const BYTES: usize = if cfg!(fuzzing) { 1 << 20 } else { 32 << 20 };
/// Copies that a template may make of what it is given.
const COPIES: usize = 32;
/// Bytes that are searched or compared in about the time of a step.
const BYTES_PER_STEP: usize = 32;

/// Steps and bytes that are left.
#[derive(Debug)]
pub(super) struct Budget {
    steps: Cell<usize>,
    bytes: Cell<usize>,
    /// Bytes at the start, for the error.
    all_bytes: usize,
}

impl Budget {
    /// The budget of a template whose messages have `given` bytes.
    pub(super) fn new(given: usize) -> Self {
        let all_bytes = BYTES.saturating_add(given.saturating_mul(COPIES));
        Self { steps: Cell::new(STEPS.saturating_add(given)), bytes: Cell::new(all_bytes), all_bytes }
    }

    /// Counts `steps`.
    pub(super) fn steps(&self, steps: usize) -> Result<()> {
        match self.steps.get().checked_sub(steps) {
            Some(left) => self.steps.set(left),
            None => return Err(broken("it takes too many steps")),
        }
        Ok(())
    }

    /// Counts the steps of reading `bytes` of a text.
    pub(super) fn reads(&self, bytes: usize) -> Result<()> {
        self.steps(1 + bytes / BYTES_PER_STEP)
    }

    /// Counts `bytes` that are to be allocated.
    pub(super) fn bytes(&self, bytes: usize) -> Result<()> {
        match self.bytes.get().checked_sub(bytes) {
            Some(left) => self.bytes.set(left),
            None => return Err(broken(format!("it takes more than {} bytes of memory", self.all_bytes))),
        }
        Ok(())
    }

    /// Counts `bytes` of a scope as free again, which ends with its variables.
    pub(super) fn give_back(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    /// A text that is written piece by piece.
    pub(super) fn text(&self) -> Text<'_> {
        Text { text: String::new(), budget: self }
    }

    /// A list that is built item by item.
    pub(super) fn items(&self) -> Items<'_> {
        Items { items: Vec::new(), budget: self }
    }

    /// `text` as a value.
    pub(super) fn string(&self, text: &str) -> Result<Value> {
        self.bytes(text.len() + size_of::<Value>())?;
        Ok(Value::Str(Rc::from(text)))
    }
}

/// A text under construction; every piece is counted before it is added.
pub(super) struct Text<'b> {
    text: String,
    budget: &'b Budget,
}

impl Text<'_> {
    pub(super) fn push(&mut self, piece: &str) -> Result<()> {
        self.budget.bytes(piece.len())?;
        self.text.push_str(piece);
        Ok(())
    }

    pub(super) fn push_char(&mut self, character: char) -> Result<()> {
        self.push(character.encode_utf8(&mut [0; 4]))
    }

    /// Adds `piece` `times` over.
    pub(super) fn repeat(&mut self, piece: &str, times: usize) -> Result<()> {
        let bytes = piece.len().checked_mul(times).ok_or_else(|| broken("a text is too long"))?;
        self.budget.bytes(bytes)?;
        self.text.push_str(&piece.repeat(times));
        Ok(())
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    pub(super) fn finish(self) -> Result<Value> {
        self.budget.string(&self.text)
    }
}

/// A list under construction; every item is counted before it is added.
pub(super) struct Items<'b> {
    items: Vec<Value>,
    budget: &'b Budget,
}

impl Items<'_> {
    pub(super) fn push(&mut self, item: Value) -> Result<()> {
        self.budget.steps(1)?;
        self.budget.bytes(size_of::<Value>())?;
        self.items.push(item);
        Ok(())
    }

    pub(super) fn extend<'v>(&mut self, items: impl IntoIterator<Item = &'v Value>) -> Result<()> {
        items.into_iter().try_for_each(|item| self.push(item.clone()))
    }

    pub(super) fn into_vec(self) -> Vec<Value> {
        self.items
    }

    pub(super) fn list(self) -> Result<Value> {
        Ok(Value::List(Rc::new(List::new(self.items, false)?)))
    }

    pub(super) fn tuple(self) -> Result<Value> {
        Ok(Value::List(Rc::new(List::new(self.items, true)?)))
    }
}
