//! Eviction: tokens whose keys and values leave the store, and with them their memory.

use super::group::{HeadGroup, Memory, joined};
use super::{KvPrecision, KvStore};
use crate::{Error, Result};
use std::ops::Range;

/// A layer's keys and values as they were before some were evicted.
pub(crate) struct Evicted {
    pub(super) memory: Memory,
    pub(super) layout: Layout,
}

/// How the keys of a layer lie, and its values alike.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) precision: KvPrecision,
    pub(super) kv_heads: usize,
    pub(super) capacity: usize,
    pub(super) head_dim: usize,
}

/// What a KV head keeps: slots, ascending, and room for so many tokens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeptSlots {
    pub(crate) slots: Vec<Range<usize>>,
    pub(crate) capacity: usize,
}

impl KvStore {
    /// Forgets every key at `position` and after it, in the layers from `layer` on.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn truncate(&mut self, layer: usize, position: usize) -> Result<()> {
        for groups in &mut self.layers[layer..] {
            for group in groups {
                if !group.is_ascending() {
                    group.evict(position..usize::MAX, group.capacity)?;
                    continue;
                }
                // What goes is behind all that stays.
                group.runs.retain_mut(|run| {
                    run.len = run.len.min(position.saturating_sub(run.first_position));
                    run.len > 0
                });
            }
        }
        Ok(())
    }

    /// Evicts the tokens of a layer at some positions; it has room for `capacity` in all from then on.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn evict(&mut self, layer: usize, positions: Range<usize>, capacity: usize) -> Result<()> {
        self.layers[layer].iter_mut().try_for_each(|group| group.evict(positions.clone(), capacity))
    }

    /// Evicts a layer's tokens but for those in `slots`, ascending, which stay in their order, in room for `capacity`.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keep_slots(
        &mut self,
        layer: usize,
        slots: &[Range<usize>],
        capacity: usize,
    ) -> Result<Evicted> {
        let group = self.whole_mut(layer)?;
        let layout = group.layout();
        let kept = group.kept(group.heads.clone(), slots, capacity)?;
        let before = std::mem::replace(group, kept);
        Ok(Evicted { memory: before.memory, layout })
    }

    /// Evicts a layer's tokens but for what each KV head keeps, `[kv_heads]`. Heads side by side that keep the same stay
    /// together.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(crate) fn keep_by_head(&mut self, layer: usize, kept: &[KeptSlots]) -> Result<()> {
        if kept.len() != self.kv_heads {
            return Err(Error::failure("not every KV head is told what to keep; please report this"));
        }
        let group = self.whole(layer)?;
        let mut groups: Vec<HeadGroup> = vec![];
        let mut first = 0;
        for same in kept.chunk_by(PartialEq::eq) {
            let heads = first..first + same.len();
            groups.push(group.kept(heads.clone(), &same[0].slots, same[0].capacity)?);
            first = heads.end;
        }
        self.layers[layer] = groups;
        Ok(())
    }

    /// Gives a layer room for `capacity` tokens, which is no less than it has.
    ///
    /// # Errors
    /// Where a GPU has not so much memory left.
    pub(crate) fn grow(&mut self, layer: usize, capacity: usize) -> Result<()> {
        let all = 0..self.len(layer);
        self.keep_slots(layer, std::slice::from_ref(&all), capacity).map(drop)
    }
}

impl HeadGroup {
    pub(super) fn layout(&self) -> Layout {
        Layout {
            precision: self.precision,
            kv_heads: self.heads.len(),
            capacity: self.capacity,
            head_dim: self.head_dim,
        }
    }

    /// Copies of the tokens of some heads in `slots`, in room for `capacity`.
    fn kept(&self, heads: Range<usize>, slots: &[Range<usize>], capacity: usize) -> Result<Self> {
        let device = self.memory.device();
        let mut kept = Self::reserved(heads, self.head_dim, capacity, self.precision, &device)?;
        let mut first = 0;
        for slots in slots {
            for (to_head, head) in kept.heads.clone().enumerate() {
                let (from, to) =
                    (self.element(head - self.heads.start, slots.start), kept.element(to_head, first));
                kept.memory.copy_from(to, &self.memory, from, slots.len() * self.head_dim, self.precision)?;
            }
            first += slots.len();
        }
        kept.runs = joined(slots.iter().flat_map(|slots| self.runs_within(slots.clone())).collect());
        Ok(kept)
    }

    /// Evicts the tokens at some positions; there is room for `capacity` in all from then on.
    fn evict(&mut self, positions: Range<usize>, capacity: usize) -> Result<()> {
        let stay = self.slots_where(|position| !positions.contains(&position));
        let count: usize = stay.iter().map(Range::len).sum();
        if count != self.len() || capacity != self.capacity {
            *self = self.kept(self.heads.clone(), &stay, capacity)?;
        }
        Ok(())
    }
}
