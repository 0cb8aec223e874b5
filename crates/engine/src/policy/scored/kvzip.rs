//! `kvzip:KEEP`: scores of KVzip (Kim et al. 2025, arXiv 2505.23416).

use super::{Method, Scored, parse_items};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{PolicyKind, PolicyRules, StoredHead};
use std::fmt;
use std::sync::Arc;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "kvzip",
    syntax: "kvzip:KEEP[+even]",
    description: "KV heads keep KEEP prompt tokens in the mean (25% or 1k), those that some row reads most when the prompt is read a \
                  second time, wherever they are; each head as many with +even. The prefill takes twice as long or more",
    standard_name: Some("kvzip:50%"),
    parse: parse_kvzip,
};

/// Tokens at the start that are always kept.
const SINKS: usize = 4;
const EVEN: &str = "even";

struct KvZip {
    /// Whether each head keeps as many.
    even: bool,
}

fn parse_kvzip(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (even, others): (Vec<&str>, Vec<&str>) = argument.items().partition(|item| *item == EVEN);
    if even.len() > 1 {
        return Err(argument.malformed());
    }
    let (keep, []) = parse_items(argument, others.into_iter(), [])?;
    Ok(Scored::rules(KvZip { even: !even.is_empty() }, keep))
}

impl Method for KvZip {
    fn kind(&self) -> &'static PolicyKind {
        &KIND
    }

    fn observed_rows(&self) -> usize {
        usize::MAX
    }

    fn scores(&self, stored: &StoredHead<'_>, _: usize) -> Result<Vec<f32>> {
        let mut scores = stored.most_read_again(stored.kv_head)?;
        for (score, &position) in scores.iter_mut().zip(stored.positions) {
            if position < SINKS {
                *score = f32::INFINITY;
            }
        }
        Ok(scores)
    }

    fn shares_out(&self) -> bool {
        !self.even
    }

    fn reads_twice(&self) -> bool {
        true
    }

    fn caveat(&self) -> Option<&'static str> {
        Some("reads the prompt again without being told to repeat it, as the paper tells its models")
    }
}

impl fmt::Display for KvZip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.even { write!(f, "+{EVEN}") } else { Ok(()) }
    }
}
