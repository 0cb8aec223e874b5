//! `kvzip:KEEP`: scores of KVzip (Kim et al. 2025, arXiv 2505.23416).

use super::{Method, Scored, parse};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{PolicyKind, PolicyRules, StoredHead};
use std::fmt;
use std::sync::Arc;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "kvzip",
    syntax: "kvzip:KEEP",
    description: "Each KV head keeps KEEP prompt tokens (25% or 1k), those that some row reads most when the prompt is read a second \
                  time; the prefill takes twice as long or more",
    standard_name: Some("kvzip:50%"),
    parse: parse_kvzip,
};

/// Tokens at the start that are always kept.
const SINKS: usize = 4;

struct KvZip;

fn parse_kvzip(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, []) = parse(argument, [])?;
    Ok(Scored::rules(KvZip, keep))
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

    fn reads_twice(&self) -> bool {
        true
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "keeps as many tokens at every KV head, where the paper shares them out over all, and reads the prompt again without \
             being told to repeat it",
        )
    }
}

impl fmt::Display for KvZip {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
