//! Attention sinks and a window of recent tokens.

use super::registry::{Argument, argument};
use super::schedule::parse_tokens;
use crate::Result;
use layerscope_kernels::AttentionShape;
use std::ops::Range;

/// Sinks of StreamingLLM (Xiao et al. 2023).
pub(super) const SINKS: usize = 4;

/// What a row sees of the keys at and before its position t: those at positions below `sinks` and those above t − `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinksAndWindow {
    /// Positions 0 … this−1 are seen by all rows.
    pub sinks: usize,
    /// Positions up to its own that a row sees; at least 1.
    pub window: usize,
}

impl SinksAndWindow {
    /// A layer's attention under it. A layer whose own window is no wider keeps that, without sinks.
    pub fn narrowed(&self, shape: AttentionShape) -> AttentionShape {
        match shape.window {
            Some(own) if own <= self.window => shape,
            _ => AttentionShape { window: Some(self.window), sinks: self.sinks, ..shape },
        }
    }

    /// Positions before `next` that no row from there on sees.
    pub fn unseen(&self, next: usize) -> Range<usize> {
        self.sinks..(next + 1).saturating_sub(self.window).max(self.sinks)
    }

    /// Keys of `len` tokens that are left where those are evicted that the next row does not see.
    pub fn left_of(&self, len: usize) -> usize {
        len - self.unseen(len).len()
    }

    /// Keys of `len` tokens that a layer has at most where they come `at_once` at a time.
    pub fn most_of(&self, len: usize, at_once: usize) -> usize {
        self.sinks.saturating_add(self.window - 1).saturating_add(at_once).min(len)
    }

    /// Those of a policy's name.
    ///
    /// # Errors
    /// [`crate::Error::Input`] on a name that is none.
    pub fn named(name: &str) -> Result<Self> {
        Self::parse(&argument(name, 0)?)
    }

    pub(super) fn parse(argument: &Argument<'_>) -> Result<Self> {
        let (mut sinks, mut window) = (None, None);
        for item in argument.items() {
            let (value, given) = match item.strip_prefix("sinks=") {
                Some(number) => (number.parse().ok(), &mut sinks),
                None => (parse_tokens(item), &mut window),
            };
            if value.is_none() || given.is_some() {
                return Err(argument.malformed());
            }
            *given = value;
        }
        let window = window.ok_or_else(|| argument.malformed())?;
        Ok(Self { sinks: sinks.unwrap_or(SINKS), window })
    }
}
