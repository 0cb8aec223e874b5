//! `streaming:w`: at every layer the first few tokens and a window of recent ones (StreamingLLM, Xiao et al. 2023, arXiv
//! 2309.17453).

use super::registry::{Argument, argument};
use super::schedule::{parse_tokens, shown_tokens};
use super::{Eviction, LayerKv, PolicyKind, PolicyRules, Retention};
use crate::Result;
use layerscope_kernels::AttentionShape;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Sinks of the paper.
const SINKS: usize = 4;

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

    /// Keys of `len` tokens that are left where those are given up that the next row does not see.
    pub fn left_of(&self, len: usize) -> usize {
        len - self.unseen(len).len()
    }

    /// Keys of `len` tokens that a layer has at most where they come `at_once` at a time.
    pub fn most_of(&self, len: usize, at_once: usize) -> usize {
        self.sinks.saturating_add(self.window - 1).saturating_add(at_once).min(len)
    }
}

/// Every prompt token runs through every layer; what no later row sees leaves the store as the prefill goes on.
///
/// Positions are those of the text: the paper numbers what is in the cache anew. What decode adds stays, and is not read
/// once it is behind the window.
#[derive(Debug)]
pub(super) struct Streaming(SinksAndWindow);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "streaming",
    syntax: "streaming:WINDOW[+sinks=N]",
    description: "At every layer a token reads the WINDOW tokens that end with itself (1000 or 2k) and the first N (4); KV of \
                  other prompt tokens does not stay",
    standard_name: Some("streaming:1k"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    Ok(Arc::new(Streaming(SinksAndWindow::parse(argument)?)))
}

impl SinksAndWindow {
    /// Those of a policy's name.
    ///
    /// # Errors
    /// [`crate::Error::Input`] on a name that is none.
    pub fn named(name: &str) -> Result<Self> {
        Self::parse(&argument(name, 0)?)
    }

    fn parse(argument: &Argument<'_>) -> Result<Self> {
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

impl Retention for Streaming {
    fn eviction(&self) -> Eviction {
        Eviction::Sliding(self.0)
    }

    fn kept(&self, layer: LayerKv) -> usize {
        self.0.left_of(layer.stored)
    }
}

impl PolicyRules for Streaming {
    fn retention(&self) -> &dyn Retention {
        self
    }

    fn plan(&self, prefill_len: usize, layers: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        let left = self.0.left_of(prefill_len) + 1;
        Some(format!(
            "of {} prompt tokens {left} keep KV, {} in all; of decode tokens, {} each, the last {} are read and all stay",
            prefill_len + 1,
            bytes(left * layers),
            bytes(layers),
            self.0.window
        ))
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "positions are those of the text, where StreamingLLM numbers them anew within its cache, so a text ends where the \
             model's context does",
        )
    }
}

impl fmt::Display for Streaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SinksAndWindow { sinks, window } = self.0;
        write!(f, "{}:{}", KIND.name, shown_tokens(window))?;
        if sinks == SINKS { Ok(()) } else { write!(f, "+sinks={sinks}") }
    }
}
