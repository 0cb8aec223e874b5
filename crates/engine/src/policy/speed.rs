//! `speed:c`: shallow prefill, deep decode.

use super::rules::Cut;
use super::{Arrived, PolicyKind, PolicyRules};
use crate::Depth;
use std::fmt;

/// Prompt tokens run through and keep KV in layers 0 … c−1 only; anchors exist everywhere. Above the cutoff, KV of the
/// others is never computed, allocated or masked.
#[derive(Debug)]
pub(super) struct Speed(Cut);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "speed",
    syntax: "speed:CUTOFF[+ANCHORS]",
    description: "Prompt tokens stop at the cutoff; above it decode tokens read the anchors and each other",
    standard_name: None,
    parse: |argument| argument.cutoff_and_anchors(Speed),
};

impl PolicyRules for Speed {
    fn exits(&self) -> Vec<Depth> {
        self.0.exits()
    }

    fn goes_on(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        self.0.goes_on(arrived)
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        self.0.rows_at(depth, prefill_len)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
