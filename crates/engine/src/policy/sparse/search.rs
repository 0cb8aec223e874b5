//! The search for each head's pattern: which kind keeps most attention at one cost.

use super::head_patterns::{FoundPattern, HeadPatterns};
use super::pattern::{Estimates, HeadPattern, row_blocks};
use crate::policy::{Policy, PolicyRules, PrefillPattern, PromptChunk};
use crate::{Decoder, Error, Hooks, Interrupt, Result, Session, check_interrupt};
use layerscope_kernels::{SPARSE_BLOCK, SparseKeys};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Searches the pattern of each head of the layers without a window, on prompts that the full model reads. Candidates multiply
/// no more pairs than the A-shape of `tokens` keys; of those, the one that keeps the largest share of attention is chosen, over
/// all rows from position `tokens` on. `observe` gets the number of prompt tokens that have run.
///
/// # Errors
/// [`Error::Input`] if a prompt is no longer than `tokens`, or memory does not suffice; [`Error::Interrupted`].
pub fn search_head_patterns(
    decoder: &Arc<Decoder>,
    prompts: &[Vec<u32>],
    tokens: usize,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(usize),
) -> Result<HeadPatterns> {
    let layers = decoder.config().layers;
    let found = Arc::new(Mutex::new(vec![BTreeMap::new(); layers]));
    let mut before = 0;
    for prompt in prompts {
        if prompt.len() <= tokens + SPARSE_BLOCK {
            return Err(Error::input(format!(
                "a prompt of {} tokens is too short to search patterns of {tokens} tokens; give longer prompts or a smaller budget",
                prompt.len()
            )));
        }
        check_interrupt(interrupt)?;
        let policy =
            Policy::new(Search { tokens, found: Arc::clone(&found) }, layers).for_model(decoder.config());
        let mut session = Session::new(decoder, policy, prompt.len(), 1)?;
        session.prefill(prompt, &mut Hooks::none(), interrupt, &mut |done| observe(before + done))?;
        before += prompt.len();
    }
    let candidates = candidates(tokens);
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let chosen = std::mem::take(&mut *found).into_iter().map(|heads| {
        heads.into_iter().map(|(head, measured)| (head, best(&candidates, &measured))).collect()
    });
    Ok(HeadPatterns::new(chosen.collect()))
}

/// What a candidate kept of a head's attention.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// Attention, summed over rows.
    kept: f64,
    rows: usize,
    /// Pairs of a row and a key that are multiplied.
    pairs: u64,
}

/// The A-shape first: it sets the cost.
fn candidates(tokens: usize) -> Vec<HeadPattern> {
    let first = (tokens / 8).clamp(1, 128);
    let fixed =
        [HeadPattern::AShape { first, last: tokens - first }, HeadPattern::Blocks(tokens / SPARSE_BLOCK)];
    let lines = [1, 2, 4, 6].into_iter().flat_map(|vertical| {
        let slashes = [1, 2, 4, 8, 16].into_iter();
        slashes.map(move |slash| HeadPattern::VerticalSlash {
            vertical: vertical * tokens / 8,
            slash: slash * tokens / 16,
        })
    });
    fixed.into_iter().chain(lines).collect()
}

/// The candidate that keeps most, at no more pairs than the first.
fn best(candidates: &[HeadPattern], measured: &[Measured]) -> FoundPattern {
    let cost = measured[0].pairs;
    let affordable = candidates.iter().zip(measured).filter(|(_, measured)| measured.pairs <= cost);
    let best = affordable.reduce(|best, other| if other.1.kept > best.1.kept { other } else { best });
    let (pattern, measured) = best.unwrap_or((&candidates[0], &measured[0]));
    FoundPattern { pattern: *pattern, score: measured.kept / measured.rows.max(1) as f64 }
}

/// By query head of a layer, each candidate.
type MeasuredHeads = BTreeMap<usize, Vec<Measured>>;

/// Reads everything, and measures what the candidates would keep.
struct Search {
    tokens: usize,
    found: Arc<Mutex<Vec<MeasuredHeads>>>,
}

impl Search {
    fn of_head(&self, chunk: &PromptChunk<'_>, head: usize) -> Vec<Measured> {
        let estimates = Estimates::new(chunk, head);
        let attention = chunk.attention_by_row_block(head);
        let candidates = candidates(self.tokens).into_iter().map(|pattern| {
            let mut measured = Measured::default();
            let rows = row_blocks(chunk).zip(attention.outer_iter());
            for ((rows, attention), set) in rows.zip(pattern.sets(&estimates)) {
                if rows.start < self.tokens {
                    continue;
                }
                let blocks = set.blocks.iter().flat_map(|&block| {
                    let first = block as usize * SPARSE_BLOCK;
                    first..rows.end.min(first + SPARSE_BLOCK)
                });
                let keys = blocks.chain(set.columns.iter().map(|&key| key as usize));
                measured.kept += keys.map(|key| f64::from(attention[key])).sum::<f64>();
                measured.rows += rows.len();
                measured.pairs += set.pairs(rows);
            }
            measured
        });
        candidates.collect()
    }
}

impl PrefillPattern for Search {
    fn sparse_keys(&self, chunk: &PromptChunk<'_>) -> Option<SparseKeys> {
        if chunk.key_count() > self.tokens {
            let heads = (0..chunk.shape.query_heads).into_par_iter();
            let measured: Vec<Vec<Measured>> = heads.map(|head| self.of_head(chunk, head)).collect();
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            for (head, measured) in measured.into_iter().enumerate() {
                let sums = found[chunk.layer]
                    .entry(head)
                    .or_insert_with(|| vec![Measured::default(); measured.len()]);
                for (sum, more) in sums.iter_mut().zip(measured) {
                    sum.kept += more.kept;
                    sum.rows += more.rows;
                    sum.pairs += more.pairs;
                }
            }
        }
        None
    }
}

impl PolicyRules for Search {
    fn prefill_pattern(&self) -> Option<&dyn PrefillPattern> {
        Some(self)
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "search of patterns of {} tokens", self.tokens)
    }
}
