//! `flexprefill`: each head's pattern and budget from its own attention (FlexPrefill, Lai et al. 2025, arXiv 2502.20766).

use super::estimate::by_key_block;
use super::vertical_slash::{Lines, sets};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::top::largest;
use crate::policy::{PolicyKind, PolicyRules, PrefillPattern, PromptChunk};
use layerscope_kernels::{KeySet, SPARSE_BLOCK, SparseKeys};
use rayon::prelude::*;
use std::fmt;
use std::sync::Arc;

/// Share of attention that what is read is to cover, and divergence below which blocks are chosen by their means.
const GAMMA: f32 = 0.95;
const TAU: f32 = 0.1;

/// Where attention of the last 64 rows of a chunk, by blocks of keys, is what their means say (the square root of the
/// Jensen-Shannon divergence is below τ), a head reads the blocks that cover a share γ of attention by means. Otherwise it
/// reads the vertical and the slash lines that each cover a share γ of the last rows' attention.
#[derive(Debug)]
pub(in crate::policy) struct FlexPrefill {
    gamma: f32,
    tau: f32,
}

pub(in crate::policy) const KIND: PolicyKind = PolicyKind {
    name: "flexprefill",
    syntax: "flexprefill[:gamma=SHARE][+tau=DISTANCE]",
    description: "In the prefill, each head reads keys that cover a SHARE (0.95) of its attention: blocks by their means \
                  where these tell (within DISTANCE, 0.1), else vertical and slash lines",
    standard_name: Some("flexprefill"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let mut pattern = FlexPrefill { gamma: GAMMA, tau: TAU };
    for item in argument.items() {
        let share = |text: &str| {
            let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| argument.malformed())
        };
        match item.split_once('=') {
            Some(("gamma", text)) => pattern.gamma = share(text)?,
            Some(("tau", text)) => pattern.tau = share(text)?,
            _ => return Err(argument.malformed()),
        }
    }
    Ok(Arc::new(pattern))
}

impl FlexPrefill {
    fn of_head(&self, chunk: &PromptChunk<'_>, head: usize) -> Vec<KeySet> {
        let last_rows = chunk.last_rows(head);
        let rows = last_rows.nrows() as f32;
        let lines = Lines::of(&last_rows);
        let by_block: Vec<f32> = by_key_block(&lines.vertical).iter().map(|sum| sum / rows).collect();
        if jensen_shannon(&chunk.last_rows_by_means(head), &by_block).sqrt() < self.tau {
            return self.blocks_by_means(chunk, head);
        }
        sets(chunk, &self.covering(&lines.vertical), &self.covering(&lines.slash))
    }

    /// The largest weights that make up a share γ of all.
    fn covering(&self, weights: &[f32]) -> Vec<usize> {
        let order = largest(weights, weights.len());
        let wanted = f64::from(self.gamma) * weights.iter().copied().map(f64::from).sum::<f64>();
        let mut covered = 0.0;
        let count = order.iter().take_while(|&&index| {
            let more = covered < wanted;
            covered += f64::from(weights[index]);
            more
        });
        let count = count.count();
        order[..count].to_vec()
    }

    /// The pairs of a block of rows and one of keys that make up a share γ of attention by means; besides them the first block
    /// and the rows' own.
    fn blocks_by_means(&self, chunk: &PromptChunk<'_>, head: usize) -> Vec<KeySet> {
        let attention = chunk.blocks(head);
        let columns = attention.ncols();
        let chosen = self.covering(attention.as_slice().unwrap_or_default());
        let mut read = vec![vec![false; columns]; attention.nrows()];
        chosen.into_iter().for_each(|pair| read[pair / columns][pair % columns] = true);
        for (block, read) in read.iter_mut().enumerate() {
            let first = chunk.first_position + block * SPARSE_BLOCK;
            let last = chunk.key_count().min(first + SPARSE_BLOCK) - 1;
            read[0] = true;
            read[first / SPARSE_BLOCK..=last / SPARSE_BLOCK].fill(true);
            read[last / SPARSE_BLOCK + 1..].fill(false);
        }
        let blocks =
            |read: Vec<bool>| (0..columns).filter(|&block| read[block]).map(|block| block as u32).collect();
        read.into_iter().map(|read| KeySet { blocks: blocks(read), columns: vec![] }).collect()
    }
}

/// Divergence of two distributions, nats.
fn jensen_shannon(p: &[f32], q: &[f32]) -> f32 {
    let half = |p: f32, q: f32| if p > 0.0 { 0.5 * p * (2.0 * p / (p + q)).ln() } else { 0.0 };
    p.iter().zip(q).map(|(&p, &q)| half(p, q) + half(q, p)).sum::<f32>().max(0.0)
}

impl PrefillPattern for FlexPrefill {
    fn sparse_keys(&self, chunk: &PromptChunk<'_>) -> Option<SparseKeys> {
        if chunk.key_count() <= 2 * SPARSE_BLOCK || self.gamma >= 1.0 {
            return None;
        }
        let heads = chunk.shape.query_heads;
        let sets = (0..heads).into_par_iter().flat_map_iter(|head| self.of_head(chunk, head));
        Some(SparseKeys::new(chunk.first_position, chunk.rows, heads, sets.collect()))
    }
}

impl PolicyRules for FlexPrefill {
    fn prefill_pattern(&self) -> Option<&dyn PrefillPattern> {
        Some(self)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "patterns are chosen for each chunk of the prompt, in blocks of 64, where FlexPrefill takes blocks of 128 of all of it",
        )
    }
}

impl fmt::Display for FlexPrefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = [("gamma", self.gamma, GAMMA), ("tau", self.tau, TAU)];
        let given = given.into_iter().filter(|(_, share, standard)| share != standard);
        let given: Vec<String> = given.map(|(name, share, _)| format!("{name}={share}")).collect();
        f.write_str(KIND.name)?;
        if given.is_empty() { Ok(()) } else { write!(f, ":{}", given.join("+")) }
    }
}
