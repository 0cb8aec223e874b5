//! `swiftkv:c`: upper KV of all tokens from one layer (SwiftKV, Qiao et al. 2024: SingleInputKV).

use super::{CrossLayerKv, Cutoff, PolicyKind, PolicyRules, Reach, UNTRAINED};
use std::fmt;

/// At layers ≥ c, K and V of every token, decode tokens too, are projections of its residual stream at the entrance of
/// layer c through that layer's norm. Queries come from the real residual stream. Decode reads everything.
#[derive(Debug)]
pub(super) struct SwiftKv(Cutoff);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "swiftkv",
    syntax: "swiftkv:CUTOFF",
    description: "As pop, but K and V of decode tokens, too, come from the cutoff, and all through the norm of that layer",
    standard_name: None,
    parse: |argument| argument.cutoff(SwiftKv),
};

impl PolicyRules for SwiftKv {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn cross_layer_kv(&self) -> Option<CrossLayerKv> {
        Some(CrossLayerKv::SharedNorm(self.0.layer))
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(UNTRAINED)
    }
}

impl fmt::Display for SwiftKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
