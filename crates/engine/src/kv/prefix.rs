//! Keys and values of a prompt's first tokens, taken over from another sequence.

use super::KvStore;
use crate::{Error, Result};
use std::ops::Range;

impl KvStore {
    /// Whether all KV heads of a layer store each of some positions.
    pub(crate) fn holds(&self, layer: usize, positions: Range<usize>) -> bool {
        self.layers[layer].iter().all(|group| {
            let stored = group.slots_where(|position| positions.contains(&position));
            stored.iter().map(Range::len).sum::<usize>() == positions.len()
        })
    }

    /// Stores copies of what another store holds at some positions of a layer, behind what is stored.
    ///
    /// # Errors
    /// [`Error::Failure`] where the layer has no room left; where a GPU fails.
    pub(crate) fn copy_positions(
        &mut self,
        layer: usize,
        other: &Self,
        positions: Range<usize>,
    ) -> Result<()> {
        self.check_room(layer, positions.len())?;
        let other = other.whole(layer)?;
        let group = self.whole_mut(layer)?;
        if (other.precision, other.head_dim) != (group.precision, group.head_dim) {
            return Err(Error::misuse("keys and values of another type cannot be taken over"));
        }
        let mut slot = group.len();
        for from in other.slots_where(|position| positions.contains(&position)) {
            for head in 0..group.heads.len() {
                let (to, at) = (group.element(head, slot), other.element(head, from.start));
                let len = from.len() * group.head_dim;
                group.memory.copy_from(to, &other.memory, at, len, group.precision)?;
            }
            slot += from.len();
        }
        group.add(&positions.collect::<Vec<_>>());
        Ok(())
    }
}
