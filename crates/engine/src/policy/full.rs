//! `full`: the model as it was made.

use super::{PolicyKind, PolicyRules};
use std::fmt;
use std::sync::Arc;

/// Everything everywhere.
#[derive(Debug)]
pub(super) struct Full;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "full",
    syntax: "full",
    description: "Every prompt token runs through every layer and keeps its KV",
    standard_name: Some("full"),
    parse: |argument| argument.none().map(|()| Arc::new(Full) as _),
};

impl PolicyRules for Full {}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KIND.name)
    }
}
