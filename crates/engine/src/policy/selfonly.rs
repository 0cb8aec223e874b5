//! `selfonly:c`: as SPEED, but decode tokens above the cutoff read themselves only.

use super::{Cutoff, PolicyKind, PolicyRules, Reach, Selection, Visibility, ZERO_SHOT};
use std::fmt;

/// At layers ≥ c a decode row reads its own position and the anchors only. It keeps the KV that SPEED keeps.
#[derive(Debug)]
pub(super) struct SelfOnly(Cutoff);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "selfonly",
    syntax: "selfonly:CUTOFF[+ANCHORS]",
    description: "As speed, but above the cutoff a decode token reads the anchors and itself only",
    standard_name: None,
    parse: |argument| argument.cutoff_and_anchors(SelfOnly),
};

impl PolicyRules for SelfOnly {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn visibility(&self) -> Option<Visibility> {
        let Cutoff { layer, anchors } = &self.0;
        Some(Visibility { cutoff: *layer, anchors: anchors.clone(), self_only: true })
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(ZERO_SHOT)
    }

    fn selection(&self) -> &dyn Selection {
        self
    }
}

impl Selection for SelfOnly {
    fn self_only_mask(&self, layer: usize) -> bool {
        layer >= self.0.layer
    }
}

impl fmt::Display for SelfOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
