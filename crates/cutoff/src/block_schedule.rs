//! A schedule for `sliminfer` from what a run recorded of attention: at each pruning layer, how many blocks of the prompt
//! hold nearly all the attention that decode pays to the prompt in the layers above.
//!
//! It is the fewest blocks that could do, with the attention known; which blocks stay is decided by the policy's own
//! scores, before it is known. What a schedule costs is measured by `bench --quality`.

use layerscope_diagnostics::run::Run;
use layerscope_diagnostics::summary::mean;
use layerscope_engine::{BLOCK, Result, Schedule};
use ndarray::{Array2, Axis};
use serde::Serialize;

/// Share of the attention paid to the prompt above a pruning layer that the blocks which go on are to hold.
pub const COVERAGE: f64 = 0.95;

/// Prompts of fewer blocks say nothing about choosing among them.
const FEWEST_BLOCKS: usize = 8;

/// A schedule with what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockSchedule {
    /// The policy, as `--policy` takes it.
    pub policy: String,
    /// Share of the attention that the blocks are to hold.
    pub coverage: f64,
    /// Prompts long enough to say something.
    pub prompts: usize,
    /// Each pruning layer.
    pub prunings: Vec<BlocksNeeded>,
}

/// What one pruning layer needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BlocksNeeded {
    /// The layer.
    pub layer: usize,
    /// Share of the prompt's tokens in the blocks that hold the attention, mean over prompts.
    pub share: f64,
    /// The largest of any prompt.
    pub largest_share: f64,
}

/// From a run folder; `None` where no prompt has 512 tokens, or no layer can be pruned.
///
/// # Errors
/// [`layerscope_engine::Error::Input`] where the run's tables cannot be read.
pub fn from_run(run: &Run) -> Result<Option<BlockSchedule>> {
    let layers = run.manifest().model.layers;
    let pruned: Vec<usize> =
        Schedule::scaled_to(layers).prunings().iter().map(|pruning| pruning.layer).collect();
    let mut shares = vec![vec![]; pruned.len()];
    for id in run.prompt_ids() {
        let received = run.tokens(id)?.mean;
        for (shares, &layer) in shares.iter_mut().zip(&pruned) {
            shares.extend(share_needed(&received, layer));
        }
    }
    Ok(schedule(&pruned, &shares))
}

fn schedule(pruned: &[usize], shares: &[Vec<f64>]) -> Option<BlockSchedule> {
    let needed = pruned.iter().zip(shares).filter(|(_, shares)| !shares.is_empty());
    let prunings: Vec<BlocksNeeded> = needed
        .map(|(&layer, shares)| BlocksNeeded {
            layer,
            share: mean(shares.iter().copied()),
            largest_share: shares.iter().copied().fold(0.0, f64::max),
        })
        .collect();
    let mut percent = 100.0;
    let steps: Vec<String> = prunings
        .iter()
        .map(|needed| {
            percent = (needed.share * 100.0).ceil().min(percent);
            format!("{}={percent}%", needed.layer)
        })
        .collect();
    let prompts = shares.iter().map(Vec::len).max()?;
    let policy = format!("sliminfer:{}", steps.join("+"));
    (!prunings.is_empty()).then_some(BlockSchedule { policy, coverage: COVERAGE, prompts, prunings })
}

/// Share of a prompt's tokens in the fewest blocks that hold [`COVERAGE`] of the attention which layers above one pay to whole
/// blocks, `received [L, p]`; the first block is always among them. `None` where the prompt is short or nothing is above.
fn share_needed(received: &Array2<f32>, layer: usize) -> Option<f64> {
    let (layers, p) = received.dim();
    let blocks = p.saturating_sub(1) / BLOCK;
    if blocks < FEWEST_BLOCKS || layer + 1 >= layers {
        return None;
    }
    let above = received.slice(ndarray::s![layer + 1.., ..blocks * BLOCK]).sum_axis(Axis(0));
    let held: Vec<f64> = above
        .exact_chunks(BLOCK)
        .into_iter()
        .map(|block| block.iter().map(|&x| f64::from(x)).sum())
        .collect();
    let target = COVERAGE * held.iter().sum::<f64>();
    let mut others = held[1..].to_vec();
    others.sort_by(|a, b| b.total_cmp(a));
    let mut covered = held[0];
    let mut needed = 1;
    for block in others {
        if covered >= target {
            break;
        }
        covered += block;
        needed += 1;
    }
    Some((needed * BLOCK) as f64 / p as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention of 1 on each token of some blocks, in the last layer of two.
    fn received(p: usize, blocks: &[usize]) -> Array2<f32> {
        Array2::from_shape_fn((2, p), |(layer, position)| {
            f32::from(u8::from(layer == 1 && blocks.contains(&(position / BLOCK))))
        })
    }

    #[test]
    fn blocks_are_counted_by_hand() {
        let p = 1_024;
        // Without the first block, which stays anyway, it is one more.
        assert_eq!(share_needed(&received(p, &[3, 5]), 0), Some(3.0 / 16.0));
        assert_eq!(share_needed(&received(p, &[0, 3, 5]), 0), Some(3.0 / 16.0));
        // The last 64 tokens end with the last prompt token, and are no whole block.
        assert_eq!(share_needed(&received(p, &[0, 15]), 0), Some(1.0 / 16.0));
        // 14 of 15 blocks hold less than 95 %.
        assert_eq!(share_needed(&received(p, &(0..15).collect::<Vec<_>>()), 0), Some(15.0 / 16.0));
        assert_eq!(share_needed(&received(p, &[3]), 1), None);
        assert_eq!(share_needed(&received(512, &[3]), 0), None);
    }

    #[test]
    fn shares_become_a_policy_that_parses_and_never_widens() {
        let found = schedule(&[1, 4, 6], &[vec![0.2, 0.3], vec![0.5, 0.5], vec![0.101]]).expect("a schedule");
        assert_eq!(found.policy, "sliminfer:1=25%+4=25%+6=11%");
        assert_eq!((found.prompts, found.prunings[0].largest_share), (2, 0.3));
        assert!(layerscope_engine::Policy::parse(&found.policy, 8).is_ok());
        assert_eq!(schedule(&[1], &[vec![]]), None);
    }
}
