//! `minference`: vertical and slash lines of fixed budgets in the prefill (MInference, Jiang et al. 2024, arXiv 2407.02490).

use super::vertical_slash::{Lines, sets};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::schedule::{parse_tokens, shown_tokens};
use crate::policy::top::largest;
use crate::policy::{PolicyKind, PolicyRules, PrefillPattern, PromptChunk};
use layerscope_kernels::SparseKeys;
use rayon::prelude::*;
use std::fmt;
use std::sync::Arc;

/// Lines that the method's published configurations give most heads of Llama-3-8B.
const VERTICAL: usize = 1_000;
const SLASH: usize = 6_096;
/// The first keys and the shortest distances, which are always read.
const FIRST_KEYS: usize = 30;
const SHORTEST_DISTANCES: usize = 100;

/// Each head reads as many vertical and slash lines, those that the last 64 rows of a chunk read most.
#[derive(Debug)]
pub(in crate::policy) struct MInference {
    vertical: usize,
    slash: usize,
}

pub(in crate::policy) const KIND: PolicyKind = PolicyKind {
    name: "minference",
    syntax: "minference[:vertical=N][+slash=N]",
    description: "In the prefill, each head reads the N keys (1000) and the N distances (6096) that the last 64 rows read \
                  most; all KV is stored, and decode reads all",
    standard_name: Some("minference"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let mut lines = MInference { vertical: VERTICAL, slash: SLASH };
    for item in argument.items() {
        let tokens = |text: &str| parse_tokens(text).ok_or_else(|| argument.malformed());
        match item.split_once('=') {
            Some(("vertical", text)) => lines.vertical = tokens(text)?,
            Some(("slash", text)) => lines.slash = tokens(text)?,
            _ => return Err(argument.malformed()),
        }
    }
    Ok(Arc::new(lines))
}

impl PrefillPattern for MInference {
    fn sparse_keys(&self, chunk: &PromptChunk<'_>) -> Option<SparseKeys> {
        if self.vertical >= chunk.key_count() || self.slash >= chunk.key_count() {
            return None;
        }
        let of_head = |head: usize| {
            let mut lines = Lines::of(&chunk.last_rows(head));
            lines.vertical.iter_mut().take(FIRST_KEYS).for_each(|weight| *weight = f32::INFINITY);
            lines.slash.iter_mut().take(SHORTEST_DISTANCES).for_each(|weight| *weight = f32::INFINITY);
            let vertical = largest(&lines.vertical, self.vertical.max(FIRST_KEYS));
            sets(chunk, &vertical, &largest(&lines.slash, self.slash.max(SHORTEST_DISTANCES)))
        };
        let heads = chunk.shape.query_heads;
        let sets: Vec<_> = (0..heads).into_par_iter().flat_map_iter(of_head).collect();
        Some(SparseKeys::new(chunk.first_position, chunk.rows, heads, sets))
    }
}

impl PolicyRules for MInference {
    fn prefill_pattern(&self) -> Option<&dyn PrefillPattern> {
        Some(self)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "vertical and slash lines for every head, where MInference searches each head's kind of pattern once for a \
             model; lines are chosen for each chunk of the prompt",
        )
    }
}

impl fmt::Display for MInference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = [("vertical", self.vertical, VERTICAL), ("slash", self.slash, SLASH)];
        let given = given.into_iter().filter(|(_, lines, standard)| lines != standard);
        let given: Vec<String> =
            given.map(|(name, lines, _)| format!("{name}={}", shown_tokens(lines))).collect();
        f.write_str(KIND.name)?;
        if given.is_empty() { Ok(()) } else { write!(f, ":{}", given.join("+")) }
    }
}
