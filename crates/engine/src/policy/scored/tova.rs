//! `tova:KEEP` (TOVA, Oren et al. 2024, arXiv 2401.06104).

use super::{Method, Scored, parse};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{PolicyKind, PolicyRules, StoredHead};
use std::fmt;
use std::sync::Arc;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "tova",
    syntax: "tova:KEEP",
    description: "Each layer keeps KEEP prompt tokens (25% or 1k), those that the last one before decode reads most, mean over heads",
    standard_name: Some("tova:50%"),
    parse: parse_tova,
};

struct Tova;

fn parse_tova(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, []) = parse(argument, [])?;
    Ok(Scored::rules(Tova, keep))
}

impl Method for Tova {
    fn kind(&self) -> &'static PolicyKind {
        &KIND
    }

    fn observed_rows(&self) -> usize {
        1
    }

    fn scores(&self, stored: &StoredHead<'_>, _: usize) -> Result<Vec<f32>> {
        let mut scores = vec![0.0; stored.positions.len()];
        for kv_head in 0..stored.kv_heads() {
            let received = stored.received(kv_head)?;
            scores.iter_mut().zip(received).for_each(|(score, received)| *score += received);
        }
        Ok(scores)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some("evicts once, before decode, where the paper goes on evicting at every step")
    }
}

impl fmt::Display for Tova {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
