//! `selfonly:c`: as SPEED, but decode tokens above the cutoff are on their own.

use super::rules::Cut;
use super::{Arrived, PolicyKind, PolicyRules};
use crate::Depth;
use std::fmt;

/// At layers ≥ c a decode row reads its own position and the anchors only. It keeps the KV that SPEED keeps.
#[derive(Debug)]
pub(super) struct SelfOnly(Cut);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "selfonly",
    syntax: "selfonly:CUTOFF[+ANCHORS]",
    description: "As speed, but above the cutoff a decode token reads the anchors and itself only",
    standard_name: None,
    parse: |argument| argument.cutoff_and_anchors(SelfOnly),
};

impl PolicyRules for SelfOnly {
    fn exits(&self) -> Vec<Depth> {
        self.0.exits()
    }

    fn goes_on(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        self.0.goes_on(arrived)
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        self.0.rows_at(depth, prefill_len)
    }

    fn decode_rows_see_each_other(&self, layer: usize) -> bool {
        layer < self.0.layer
    }
}

impl fmt::Display for SelfOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
