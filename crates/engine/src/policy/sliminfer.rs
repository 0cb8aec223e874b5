//! `sliminfer`: dynamic pruning of prompt blocks (SlimInfer, Long et al. 2025, arXiv 2508.06447).

mod blocks;
mod counters;
mod representatives;
#[cfg(test)]
mod tests;
mod tier;
mod transfers;

use super::registry::{Argument, argument};
use super::schedule::Schedule;
use super::{LayerKv, PolicyKind, PolicyRules, Reach, Retention, RunningSelection, Selection, SequenceSetup};
use crate::{Depth, Result};
use blocks::PromptBlocks;
pub use counters::TransferCounters;
use std::fmt;
use std::sync::Arc;

/// Tokens of a prompt block.
pub const BLOCK: usize = 64;
/// Tokens of a unit, of which a block's score is made.
pub const UNIT: usize = 8;
/// Tokens whose mean query scores the blocks.
pub const QUERY_WINDOW: usize = 4;
/// Layers whose blocks may be under way at once, each way.
pub(crate) const LAYERS_IN_TRANSIT: usize = 4;
/// Overlap of the blocks that are wanted with those that are active, below which they are swapped.
const SWAP_BELOW: f64 = 0.75;

/// What a block's score is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest of q·k̄ over its units of 8 tokens, with k̄ their mean key.
    Units,
    /// q·k̄ with the mean key of the block.
    Mean,
    /// q·k with the largest of the block's keys in each dimension.
    Max,
}

/// Everything that SlimInfer is told: a schedule, and the switches of the paper's ablations.
///
/// The prompt but its last token falls into blocks of 64 from position 0 on. After the attention of each pruning layer the
/// blocks with the largest scores go on, as many as hold the tokens that the schedule keeps; the first block always stays,
/// and so does the rest at the end that is no whole block, so that the number of tokens is known beforehand. A *stage* is
/// the layers from one pruning to the next; decode reads in it what went through it.
///
/// The layers up to the first pruning hold the whole prompt. Of these, decode reads the blocks that the pruning scores highest,
/// and scores them again at each step; the others wait elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockPruning {
    /// When, and how much stays.
    pub schedule: Schedule,
    /// How blocks are scored.
    pub pooling: Pooling,
    /// Whether KV comes back while the model goes on, rather than before it does.
    pub asynchronous: bool,
    /// Whether all KV that the prefill computes stays where the model runs, and decode reads it. Otherwise the layers that
    /// hold the whole prompt keep only the blocks that the first pruning scores highest, for decode to read.
    pub resident: bool,
    /// Active blocks are swapped where fewer than this share of the blocks that are wanted are among them.
    pub swap_below: f64,
}

impl BlockPruning {
    /// Whole blocks of so many prefill tokens.
    pub fn blocks(prefill_len: usize) -> usize {
        prefill_len / BLOCK
    }

    /// Whole blocks that go on from each pruning layer.
    pub fn kept_blocks(&self, prefill_len: usize) -> Vec<usize> {
        let mut kept = Self::blocks(prefill_len);
        let prunings = self.schedule.prunings().iter();
        prunings
            .map(|pruning| {
                let wanted = match pruning.keep.tokens(prefill_len + 1) {
                    tokens if tokens > prefill_len => kept,
                    tokens => tokens.div_ceil(BLOCK).max(1),
                };
                kept = kept.min(wanted);
                kept
            })
            .collect()
    }

    /// Prefill tokens that have keys in a stage (by number, from 0) after its prefill.
    pub fn tokens_of_stage(&self, stage: usize, prefill_len: usize) -> usize {
        let kept = self.kept_blocks(prefill_len);
        match stage.checked_sub(1) {
            None => prefill_len,
            Some(before) => kept[before] * BLOCK + prefill_len % BLOCK,
        }
    }

    /// The first pruning that drops anything, and the blocks that go on from it: up to its layer KV leaves the device.
    pub fn first_drop(&self, prefill_len: usize) -> Option<(usize, usize)> {
        let kept = self.kept_blocks(prefill_len).into_iter().enumerate();
        kept.filter(|_| !self.resident).find(|&(_, kept)| kept < Self::blocks(prefill_len))
    }

    /// Prefill tokens of a layer that decode reads.
    pub fn active_at(&self, layer: usize, prefill_len: usize) -> usize {
        let stage = self.schedule.passed(Depth::entering(layer));
        let first = self.first_drop(prefill_len).map_or(0, |(pruning, _)| pruning + 1);
        self.tokens_of_stage(stage.max(first), prefill_len)
    }

    /// Token-layers of KV that leave the device.
    pub fn taken_away(&self, prefill_len: usize) -> usize {
        self.first_drop(prefill_len).map_or(0, |(pruning, _)| {
            Self::blocks(prefill_len) * BLOCK * (self.schedule.prunings()[pruning].layer + 1)
        })
    }
}

/// Prompt blocks leave the prefill after the attention of pruning layers.
#[derive(Debug)]
pub(super) struct SlimInfer(BlockPruning);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "sliminfer",
    syntax: "sliminfer[:LAYER=KEPT+…][+mean|+max][+sync][+resident][+swap=SHARE]",
    description: "After the attention of each LAYER only the best-scoring blocks of the prompt, KEPT tokens (8k or 25%), \
                  go on; KV that decode does not read leaves the device and comes back",
    standard_name: Some("sliminfer"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    Ok(Arc::new(SlimInfer(BlockPruning::parse(argument)?)))
}

impl BlockPruning {
    /// The pruning of a policy's name, for a model of so many layers.
    ///
    /// # Errors
    /// [`crate::Error::Input`] on a name that is none.
    pub fn named(name: &str, layers: usize) -> Result<Self> {
        Self::parse(&argument(name, layers)?)
    }

    fn parse(argument: &Argument<'_>) -> Result<Self> {
        let mut pruning = Self {
            schedule: Schedule::scaled_to(argument.layers),
            pooling: Pooling::Units,
            asynchronous: true,
            resident: false,
            swap_below: SWAP_BELOW,
        };
        let mut steps = vec![];
        for item in argument.items() {
            match item {
                "mean" => pruning.pooling = Pooling::Mean,
                "max" => pruning.pooling = Pooling::Max,
                "sync" => pruning.asynchronous = false,
                "resident" => pruning.resident = true,
                _ => match item.strip_prefix("swap=") {
                    Some(share) => {
                        let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                        pruning.swap_below = share.ok_or_else(|| argument.malformed())?;
                    }
                    None => steps.push(item),
                },
            }
        }
        if !steps.is_empty() {
            pruning.schedule =
                Schedule::parse(&steps, argument.layers).ok_or_else(|| argument.malformed_schedule())?;
        }
        Ok(pruning)
    }
}

impl Reach for BlockPruning {
    fn pruning_points(&self) -> Vec<Depth> {
        self.schedule.pruning_points()
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        self.tokens_of_stage(self.schedule.passed(depth), prefill_len)
    }
}

impl Retention for BlockPruning {
    fn kept(&self, layer: LayerKv) -> usize {
        self.active_at(layer.layer, layer.prefill_len)
    }

    fn in_transit(&self, prefill_len: usize) -> usize {
        self.first_drop(prefill_len).map_or(0, |(_, kept)| 2 * LAYERS_IN_TRANSIT * kept * BLOCK)
    }
}

impl Selection for BlockPruning {
    fn refers_to_stored(&self) -> bool {
        true
    }

    fn begin(&self, sequence: &SequenceSetup<'_>) -> Result<Option<Box<dyn RunningSelection>>> {
        Ok(Some(Box::new(PromptBlocks::new(self, sequence)?)))
    }
}

impl PolicyRules for SlimInfer {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn retention(&self) -> &dyn Retention {
        &self.0
    }

    fn selection(&self) -> &dyn Selection {
        &self.0
    }

    fn plan(&self, prefill_len: usize, _: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        let prunings = self.0.schedule.prunings().iter().enumerate();
        let steps: Vec<String> = prunings
            .map(|(index, pruning)| {
                format!(
                    "{} after layer {}",
                    self.0.tokens_of_stage(index + 1, prefill_len) + 1,
                    pruning.layer
                )
            })
            .collect();
        let away = match self.0.taken_away(prefill_len) {
            0 => "no KV leaves the device".to_owned(),
            tokens => format!(
                "{} of KV leave the device, at most {} are under way at once",
                bytes(tokens),
                bytes(self.0.in_transit(prefill_len))
            ),
        };
        Some(format!("of {} prompt tokens go on: {}; {away}", prefill_len + 1, steps.join(", ")))
    }
}

impl fmt::Display for SlimInfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockPruning { schedule, pooling, asynchronous, resident, swap_below } = &self.0;
        let mut items: Vec<String> = vec![];
        if !schedule.is_default() {
            items.push(schedule.to_string());
        }
        match pooling {
            Pooling::Units => {}
            Pooling::Mean => items.push("mean".to_owned()),
            Pooling::Max => items.push("max".to_owned()),
        }
        if !asynchronous {
            items.push("sync".to_owned());
        }
        if *resident {
            items.push("resident".to_owned());
        }
        if *swap_below != SWAP_BELOW {
            items.push(format!("swap={swap_below}"));
        }
        f.write_str(KIND.name)?;
        if items.is_empty() { Ok(()) } else { write!(f, ":{}", items.join("+")) }
    }
}
