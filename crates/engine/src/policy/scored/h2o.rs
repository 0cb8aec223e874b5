//! `h2o:KEEP` (H2O, Zhang et al. 2023, arXiv 2306.14048).

use super::{Method, Scored, parse};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{PolicyKind, PolicyRules, StoredHead};
use std::fmt;
use std::sync::Arc;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "h2o",
    syntax: "h2o:KEEP",
    description: "Each KV head keeps KEEP prompt tokens (25% or 1k): one half the last ones, the other those that all prompt tokens \
                  read most in sum",
    standard_name: Some("h2o:50%"),
    parse: parse_h2o,
};

struct H2o;

fn parse_h2o(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, []) = parse(argument, [])?;
    Ok(Scored::rules(H2o, keep))
}

impl Method for H2o {
    fn kind(&self) -> &'static PolicyKind {
        &KIND
    }

    fn observed_rows(&self) -> usize {
        usize::MAX
    }

    /// Sums favour early tokens, which more rows see; so do the paper's.
    fn scores(&self, stored: &StoredHead<'_>, count: usize) -> Result<Vec<f32>> {
        let mut scores = stored.received(stored.kv_head)?;
        let recent = scores.len() - count / 2;
        scores[recent..].fill(f32::INFINITY);
        Ok(scores)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some("evicts once, before decode, where the paper goes on evicting at every step")
    }
}

impl fmt::Display for H2o {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
