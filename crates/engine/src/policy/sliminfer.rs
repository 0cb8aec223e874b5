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
use crate::{Depth, ModelConfig, Result};
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
/// blocks with the largest scores go on. The first block always does, and so does the rest at the end that is no whole block,
/// so that the number of tokens is known beforehand; a budget counts both. A *stage* is the layers from one pruning to the
/// next. The first stage holds the whole prompt, and decode reads it.
///
/// In a later stage decode reads what went on, or a share of it: the blocks that score highest where the stage begins, scored
/// again at each step. The others wait elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockPruning {
    /// When, and how much goes on.
    pub schedule: Schedule,
    /// How blocks are scored.
    pub pooling: Pooling,
    /// Whether KV comes back while the model goes on, rather than before it does.
    pub asynchronous: bool,
    /// Share of the blocks that went on that decode reads in the stages after a pruning, above 0; the others leave the device.
    pub read: f64,
    /// Active blocks are swapped where fewer than this share of the blocks that are wanted are among them.
    pub swap_below: f64,
}

impl BlockPruning {
    /// Whole blocks of so many prefill tokens.
    pub fn blocks(prefill_len: usize) -> usize {
        prefill_len / BLOCK
    }

    /// Whole blocks that go on from each pruning layer: the first, and as many others as its budget holds beside that, the rest
    /// of the prompt and the last prompt token; one other at least.
    pub fn kept_blocks(&self, prefill_len: usize) -> Vec<usize> {
        let mut kept = Self::blocks(prefill_len);
        let always = BLOCK + prefill_len % BLOCK + 1;
        let prunings = self.schedule.prunings().iter();
        prunings
            .map(|pruning| {
                let wanted = match pruning.keep.tokens(prefill_len + 1) {
                    tokens if tokens > prefill_len => kept,
                    tokens => 1 + (tokens.saturating_sub(always) / BLOCK).max(1),
                };
                kept = kept.min(wanted);
                kept
            })
            .collect()
    }

    /// Whole blocks that decode reads in the stage after each pruning: the first, and the share of the others.
    pub fn read_blocks(&self, prefill_len: usize) -> Vec<usize> {
        let read = |kept: usize| match kept {
            0 => 0,
            _ => kept.min(1 + (self.read * (kept - 1) as f64).ceil() as usize),
        };
        self.kept_blocks(prefill_len).into_iter().map(read).collect()
    }

    /// Prefill tokens that run through a stage (by number, from 0).
    pub fn tokens_of_stage(&self, stage: usize, prefill_len: usize) -> usize {
        Self::tokens(stage, prefill_len, &self.kept_blocks(prefill_len))
    }

    /// Prefill tokens of a stage that decode reads.
    pub fn tokens_read(&self, stage: usize, prefill_len: usize) -> usize {
        Self::tokens(stage, prefill_len, &self.read_blocks(prefill_len))
    }

    fn tokens(stage: usize, prefill_len: usize, blocks: &[usize]) -> usize {
        stage.checked_sub(1).map_or(prefill_len, |before| blocks[before] * BLOCK + prefill_len % BLOCK)
    }

    /// Of each pruning after which decode reads fewer blocks than went on: its number, the blocks that went on, and those that
    /// decode reads.
    fn limited(&self, prefill_len: usize) -> Vec<(usize, [usize; 2])> {
        let blocks = self.kept_blocks(prefill_len).into_iter().zip(self.read_blocks(prefill_len));
        let blocks = blocks.map(|(kept, read)| [kept, read]).enumerate();
        blocks.filter(|(_, [kept, read])| read < kept).collect()
    }

    /// Token-layers of KV that leave the device, in a model of so many layers.
    pub fn taken_away(&self, prefill_len: usize, layers: usize) -> usize {
        let of_stage = |(pruning, [kept, _]): (usize, [usize; 2])| {
            kept * BLOCK * self.schedule.layers_of_stage(pruning + 1, layers).len()
        };
        self.limited(prefill_len).into_iter().map(of_stage).sum()
    }
}

/// Prompt blocks leave the prefill after the attention of pruning layers.
#[derive(Debug)]
pub(super) struct SlimInfer(BlockPruning);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "sliminfer",
    syntax: "sliminfer[:LAYER=KEPT+…|llama-3.1-8b|qwen2.5-7b|scaled][+mean|+max][+read=SHARE][+swap=SHARE][+sync]",
    description: "After the attention of each LAYER only the best-scoring blocks of the prompt, KEPT tokens (8k or 25%), \
                  go on, or as in the paper's schedule for a model; of these decode reads a SHARE (1), the others leave the \
                  device and come back",
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
        let share = |text: &str| {
            let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| argument.malformed())
        };
        let mut pruning = Self {
            schedule: Schedule::standard(argument.layers),
            pooling: Pooling::Units,
            asynchronous: true,
            read: 1.0,
            swap_below: SWAP_BELOW,
        };
        let mut steps = vec![];
        for item in argument.items() {
            match (item, item.split_once('=')) {
                ("mean", _) => pruning.pooling = Pooling::Mean,
                ("max", _) => pruning.pooling = Pooling::Max,
                ("sync", _) => pruning.asynchronous = false,
                (_, Some(("swap", text))) => pruning.swap_below = share(text)?,
                (_, Some(("read", text))) => {
                    pruning.read = Some(share(text)?)
                        .filter(|&share| share > 0.0)
                        .ok_or_else(|| argument.malformed())?;
                }
                _ => steps.push(item),
            }
        }
        let named = steps.first().and_then(|word| Schedule::named(word, argument.layers));
        pruning.schedule = match (named, &steps[..]) {
            (_, []) => return Ok(pruning),
            (Some(Ok(schedule)), [_]) => schedule,
            (Some(Err(depth)), [word]) => return Err(argument.of_another_depth(word, depth)),
            _ => Schedule::parse(&steps, argument.layers).ok_or_else(|| argument.malformed_schedule())?,
        };
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
        self.tokens_read(self.schedule.passed(Depth::entering(layer.layer)), layer.prefill_len)
    }

    fn in_transit(&self, prefill_len: usize) -> usize {
        let most = self.limited(prefill_len).into_iter().map(|(_, [kept, _])| kept).max();
        most.map_or(0, |most| 2 * LAYERS_IN_TRANSIT * most * BLOCK)
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

    fn for_model(&self, config: &ModelConfig) -> Option<Arc<dyn PolicyRules>> {
        let schedule = self.0.schedule.for_model(config)?;
        Some(Arc::new(Self(BlockPruning { schedule, ..self.0.clone() })))
    }

    fn plan(&self, prefill_len: usize, layers: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        let schedule = self.0.schedule.described().map_or(String::new(), |schedule| format!(" ({schedule})"));
        let prunings = self.0.schedule.prunings().iter().enumerate();
        let steps: Vec<String> = prunings
            .map(|(index, pruning)| {
                let (stage, read) = (index + 1, self.0.tokens_read(index + 1, prefill_len));
                let onward = self.0.tokens_of_stage(stage, prefill_len);
                let read =
                    if read < onward { format!(" (decode reads {})", read + 1) } else { String::new() };
                format!("{} after layer {}{read}", onward + 1, pruning.layer)
            })
            .collect();
        let away = match self.0.taken_away(prefill_len, layers) {
            0 => "no KV leaves the device".to_owned(),
            tokens => format!(
                "{} of KV leave the device, at most {} are under way at once",
                bytes(tokens),
                bytes(self.0.in_transit(prefill_len))
            ),
        };
        Some(format!("of {} prompt tokens go on{schedule}: {}; {away}", prefill_len + 1, steps.join(", ")))
    }
}

impl fmt::Display for SlimInfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockPruning { schedule, pooling, asynchronous, read, swap_below } = &self.0;
        let mut items = vec![schedule.to_string()];
        items.push(match pooling {
            Pooling::Units => String::new(),
            Pooling::Mean => "mean".to_owned(),
            Pooling::Max => "max".to_owned(),
        });
        items.extend((*read != 1.0).then(|| format!("read={read}")));
        items.extend((*swap_below != SWAP_BELOW).then(|| format!("swap={swap_below}")));
        items.extend((!asynchronous).then(|| "sync".to_owned()));
        items.retain(|item| !item.is_empty());
        f.write_str(KIND.name)?;
        if items.is_empty() { Ok(()) } else { write!(f, ":{}", items.join("+")) }
    }
}
