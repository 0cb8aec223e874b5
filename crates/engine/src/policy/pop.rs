//! `pop:c`: prompt tokens stop at c, and their KV above is projected from there (POP).

use super::{CrossLayerKv, Cutoff, PolicyKind, PolicyRules, Reach, UNTRAINED};
use std::fmt;

/// Prompt tokens stop at layer c, but leave K and V at every layer above: each layer's own norm and projections of the
/// residual stream with which they stopped, without attention or MLP. Decode reads everything.
#[derive(Debug)]
pub(super) struct Pop(Cutoff);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "pop",
    syntax: "pop:CUTOFF",
    description: "Prompt tokens stop at the cutoff and leave K and V projected from there, each layer with its own norm",
    standard_name: None,
    parse: |argument| argument.cutoff(Pop),
};

impl PolicyRules for Pop {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn cross_layer_kv(&self) -> Option<CrossLayerKv> {
        Some(CrossLayerKv::OwnNorms)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(UNTRAINED)
    }
}

impl fmt::Display for Pop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", KIND.name, self.0)
    }
}
