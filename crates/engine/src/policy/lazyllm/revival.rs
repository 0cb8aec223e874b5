//! Prompt tokens that go on by the attention they receive, wait where they were dropped, and come back (LazyLLM, Fu et al.
//! 2024, arXiv 2407.14057).
//!
//! In the prefill the last prompt token's attention in a pruning layer says which tokens go on; the residual streams of the
//! others wait in the auxiliary store, where the model runs. A decode step asks its own attention in the same layer, over the
//! tokens that it reads there: the layers of the next stage read, of the prompt, only those it chooses. A chosen token that
//! has no keys in that stage goes through it now, as a row beside the decode row, and leaves its keys behind all that are
//! stored; at the next pruning layer it is one among the others. So a token runs through a stage at most once, in the step
//! that first chooses it, and its states above are made of what that step read.

use super::TokenPruning;
use crate::kv::KvStore;
use crate::policy::top::top_with_first;
use crate::policy::{Arrived, RunningSelection};
use crate::rows::ResidualRows;
use crate::{Decoder, Depth, Result, memory};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Range;

/// What came back of the tokens that were dropped, so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RevivalCounters {
    /// Bytes of the residual streams that wait, where the model runs.
    pub auxiliary_bytes: u64,
    /// Times that a decode step chose tokens at a pruning layer.
    pub choices: u64,
    /// Tokens chosen, over all these times.
    pub tokens_chosen: u64,
    /// Those of them that had to run through the stage first.
    pub tokens_revived: u64,
}

/// The prompt tokens of a running sequence.
pub(super) struct DroppedTokens {
    pruning: TokenPruning,
    prefill_len: usize,
    decode_len: usize,
    /// Prefill tokens that are chosen at each pruning layer.
    kept: Vec<usize>,
    /// Those that wait at each pruning layer.
    waiting: Vec<Waiting>,
    /// Prefill tokens with keys in the stage after each pruning layer, and how many it has room for.
    stored: Vec<usize>,
    room: Vec<usize>,
    /// Whether a decode row reads each prefill token in the stage that it is in; `None` where it reads all that are there.
    visible: Option<Vec<bool>>,
    counters: RevivalCounters,
}

/// Residual streams of tokens that went no further.
#[derive(Default)]
struct Waiting {
    /// As they were dropped.
    dropped: Vec<Option<ResidualRows>>,
    /// Where each that is still waiting is among them, by position: which of `dropped`, and which row.
    at: BTreeMap<usize, (usize, u32)>,
}

impl DroppedTokens {
    /// For a sequence of `prefill_len` prefill tokens and `decode_len` decode tokens.
    pub(super) fn new(pruning: &TokenPruning, prefill_len: usize, decode_len: usize) -> Self {
        let kept = pruning.kept(prefill_len);
        Self {
            pruning: pruning.clone(),
            prefill_len,
            decode_len,
            waiting: kept.iter().map(|_| Waiting::default()).collect(),
            stored: kept.clone(),
            room: kept.clone(),
            kept,
            visible: None,
            counters: RevivalCounters::default(),
        }
    }

    /// Which pruning a point is.
    fn index(&self, point: Depth) -> Option<usize> {
        self.choice_points().iter().position(|&of| of == point)
    }

    /// The candidates, ascending, that go on from a pruning layer.
    fn chosen(
        &self,
        pruning: usize,
        candidates: impl Iterator<Item = usize>,
        received: &[f32],
    ) -> Vec<usize> {
        let candidates: Vec<usize> = candidates.collect();
        let scores: Vec<f32> = candidates.iter().map(|&position| received[position]).collect();
        top_with_first(&scores, self.kept[pruning]).into_iter().map(|index| candidates[index]).collect()
    }

    /// Room for the keys of so many tokens more in the stage after a pruning layer: twice as much where it does not suffice.
    fn make_room(
        &mut self,
        pruning: usize,
        more: usize,
        decoder: &Decoder,
        store: &mut KvStore,
    ) -> Result<()> {
        self.stored[pruning] += more;
        let (stored, room) = (self.stored[pruning], self.room[pruning]);
        if stored <= room {
            return Ok(());
        }
        let grown = (2 * room).max(stored).min(self.prefill_len);
        let layers = self.layers_after(pruning, decoder.config().layers);
        let need = layers.clone().map(|_| grown - room).chain([grown]).collect::<Vec<_>>();
        memory::check("bringing back prompt tokens", &decoder.sequence_need(&need), decoder.device())?;
        for layer in layers {
            store.grow(layer, grown + self.decode_len)?;
        }
        self.room[pruning] = grown;
        Ok(())
    }

    fn layers_after(&self, pruning: usize, layers: usize) -> Range<usize> {
        self.pruning.schedule.layers_of_stage(pruning + 1, layers)
    }
}

impl RunningSelection for DroppedTokens {
    fn scores_by_attention(&self) -> bool {
        true
    }

    /// Of the prefill rows, all but the prompt's last, by the attention received from that one.
    fn keep_mask(&mut self, arrived: &Arrived<'_>, _: &Decoder) -> Result<Option<Vec<bool>>> {
        let (point, positions) = (arrived.point, arrived.positions);
        let Some(received) = arrived.received else { return Ok(None) };
        let Some(pruning) = self.index(point) else { return Ok(Some(vec![true; positions.len()])) };
        let chosen =
            self.chosen(pruning, positions.iter().copied().filter(|&at| at < self.prefill_len), received);
        let is_chosen = |position| chosen.binary_search(position).is_ok();
        Ok(Some(positions.iter().map(is_chosen).collect()))
    }

    /// They wait there.
    fn dropped(&mut self, point: Depth, rows: ResidualRows) {
        let Some(pruning) = self.index(point) else { return };
        self.counters.auxiliary_bytes += rows.bytes() as u64;
        let Waiting { dropped, at } = &mut self.waiting[pruning];
        at.extend((0u32..).zip(&rows.positions).map(|(row, &position)| (position, (dropped.len(), row))));
        dropped.push(Some(rows));
    }

    fn begin_step(&mut self) {
        self.visible = None;
    }

    fn choice_points(&self) -> Vec<Depth> {
        self.pruning.schedule.pruning_points()
    }

    /// Prompt rows that came back before are beside the decode row.
    fn choose(
        &mut self,
        point: Depth,
        rows: ResidualRows,
        received: &[f32],
        decoder: &Decoder,
        store: &mut KvStore,
    ) -> Result<ResidualRows> {
        let Some(pruning) = self.index(point) else { return Ok(rows) };
        let candidates =
            (0..self.prefill_len).filter(|&at| self.visible.as_ref().is_none_or(|visible| visible[at]));
        let chosen = self.chosen(pruning, candidates, received);
        let (last, prefill_len) = (rows.len() - 1, self.prefill_len);
        // What is not chosen any more waits here; those that are go on with those that have waited.
        let is_chosen: Vec<bool> = rows.positions.iter().map(|at| chosen.binary_search(at).is_ok()).collect();
        let leaves: Vec<bool> = is_chosen.iter().enumerate().map(|(row, on)| row < last && !on).collect();
        if let Some(leaving) = rows.select(&leaves)? {
            self.dropped(point, leaving);
        }
        let decode_row = rows.narrow(last, 1)?;
        let mut onward: Vec<ResidualRows> = rows.select(&is_chosen)?.into_iter().collect();
        onward.extend(self.waiting[pruning].take(&chosen, &mut self.counters)?);
        let onward = ResidualRows::in_order(onward)?;
        let revived = onward.as_ref().map_or(0, ResidualRows::len);
        self.make_room(pruning, revived, decoder, store)?;
        self.counters.choices += 1;
        self.counters.tokens_chosen += chosen.len() as u64;
        self.counters.tokens_revived += revived as u64;
        // Nothing is hidden where everything is chosen.
        self.visible = (chosen.len() < prefill_len).then(|| {
            let mut visible = vec![false; prefill_len];
            chosen.iter().for_each(|&position| visible[position] = true);
            visible
        });
        ResidualRows::joined(onward.into_iter().chain([decode_row]).collect())
    }

    fn visible(&self) -> Option<&[bool]> {
        self.visible.as_deref()
    }

    fn revivals(&self) -> Option<&RevivalCounters> {
        Some(&self.counters)
    }
}

impl Waiting {
    /// Those of the chosen positions that wait, which then do so no more. What is left of their batch makes way once the
    /// last of it has gone.
    fn take(&mut self, chosen: &[usize], counters: &mut RevivalCounters) -> Result<Vec<ResidualRows>> {
        let mut wanted: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for position in chosen {
            if let Some((of, row)) = self.at.remove(position) {
                wanted.entry(of).or_default().push(row);
            }
        }
        let mut taken = vec![];
        for (of, rows) in wanted {
            let Some(batch) = &self.dropped[of] else { continue };
            taken.push(batch.rows(&rows)?);
            if !self.at.values().any(|&(other, _)| other == of) {
                counters.auxiliary_bytes -= batch.bytes() as u64;
                self.dropped[of] = None;
            }
        }
        Ok(taken)
    }
}
