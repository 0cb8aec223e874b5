//! `full`: the model as it was made.

use super::{Arrived, PolicyKind, PolicyRules};
use crate::Depth;
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

impl PolicyRules for Full {
    fn exits(&self) -> Vec<Depth> {
        vec![]
    }

    fn goes_on(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(vec![true; arrived.positions.len()])
    }

    fn rows_at(&self, _: Depth, prefill_len: usize) -> usize {
        prefill_len
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KIND.name)
    }
}
