//! `speed:c`: shallow prefill, deep decode.

use super::{Cutoff, PolicyKind, PolicyRules, Reach, Visibility, ZERO_SHOT};
use std::fmt;

/// Prompt tokens run through and keep KV in layers 0 … c−1 only; anchors exist everywhere. Above the cutoff, KV of the
/// others is never computed, allocated or masked.
#[derive(Debug)]
pub(super) struct Speed(Cutoff);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "speed",
    syntax: "speed:CUTOFF[+ANCHORS]",
    description: "Prompt tokens stop at the cutoff; above it decode tokens read the anchors and each other",
    standard_name: None,
    parse: |argument| argument.cutoff_and_anchors(Speed),
};

impl PolicyRules for Speed {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn visibility(&self) -> Option<Visibility> {
        let Cutoff { layer, anchors } = &self.0;
        Some(Visibility { cutoff: *layer, anchors: anchors.clone(), self_only: false })
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(ZERO_SHOT)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
