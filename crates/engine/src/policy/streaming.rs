//! `streaming:w`: at every layer the first few tokens and a window of recent ones (StreamingLLM, Xiao et al. 2023, arXiv
//! 2309.17453).

use super::registry::Argument;
use super::schedule::shown_tokens;
use super::window::SINKS;
use super::{Eviction, PolicyKind, PolicyRules, Retention, SinksAndWindow};
use crate::Result;
use std::fmt;
use std::sync::Arc;

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

impl Retention for Streaming {
    fn eviction(&self) -> Eviction {
        Eviction::Sliding(self.0)
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
