//! `full`: the model as it was made.

use super::{PolicyKind, PolicyRules, Reach, Retention, Selection};
use std::fmt;
use std::sync::Arc;

/// Everything everywhere; also what a part of a policy is that it does not say.
#[derive(Debug)]
pub(super) struct Full;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "full",
    syntax: "full",
    description: "Every prompt token runs through every layer and keeps its KV",
    standard_name: Some("full"),
    parse: |argument| argument.none().map(|()| Arc::new(Full) as _),
};

impl Reach for Full {}
impl Retention for Full {}
impl Selection for Full {}
impl PolicyRules for Full {}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KIND.name)
    }
}
