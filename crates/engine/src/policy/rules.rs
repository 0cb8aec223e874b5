//! What a policy is.

use super::{Anchors, BlockPruning, SinksAndWindow, TokenPruning};
use crate::{Depth, KvStore, Tensor};
use std::fmt;

/// Said of every policy whose weights were not trained for it.
pub const UNTRAINED: &str = "efficiency-faithful, quality not representative";

/// Which prompt tokens exist where, and what decode tokens read: everything that tells one policy from another.
/// `Display` is the name that parses back.
///
/// The prefill goes in *stages*: ranges of depth within which the set of rows is constant. Each of [`Self::exits`] ends
/// one. Rows go through a stage in chunks; at its end [`Self::goes_on`] says which of them enter the next, and
/// [`Self::keys_values_above`] what the others leave to the layers that they never reach. The last prompt token is the
/// first decode token: it always goes on. Decode tokens run full depth.
///
/// What a policy does not say is as it is under `full`. A method that differs otherwise fits in as follows.
///
/// - *Layers that drop the prompt's KV although its rows ran through* (any set S of layers): one exit at the entrance of
///   the layer after the highest one outside S; [`Self::kept`] is the number of anchors in the layers of S, which is less
///   than what the prefill stores there. The session then has to give up the difference as the prefill ends.
/// - *Blocks of the prompt chosen from data* otherwise than by [`Self::block_pruning`]: an exit after the attention of each
///   pruning layer; [`Self::goes_on`] answers `None` until the whole prompt has arrived, then scores the blocks by
///   [`Arrived::queries`] against the keys in [`Arrived::store`]. [`Self::rows_at`] is the size of each active set, and
///   [`Self::kept`] follows from it.
pub trait PolicyRules: fmt::Display + Send + Sync {
    /// Depths at which rows leave the prefill, ascending; none where all go all the way.
    fn exits(&self) -> Vec<Depth> {
        vec![]
    }

    /// Which of the rows that arrived at an exit go on, one answer for each; whatever it is, the last prompt token goes
    /// on. `None` while that cannot be told: the same rows are then shown again, together with the next chunk's.
    fn goes_on(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(vec![true; arrived.positions.len()])
    }

    /// Of `prefill_len` prefill tokens (the prompt but its last token), how many run through the half-layer that begins
    /// at a depth.
    fn rows_at(&self, _depth: Depth, prefill_len: usize) -> usize {
        prefill_len
    }

    /// Where blocks go on by their scores, and KV leaves the device: everything that is to be known of it. Its exits are those
    /// after the attention of its pruning layers, and [`Self::goes_on`] is not asked.
    fn block_pruning(&self) -> Option<&BlockPruning> {
        None
    }

    /// Where tokens go on by the attention that the last one pays them, and come back: everything that is to be known of it.
    /// Its exits are those after the attention of its pruning layers, and [`Self::goes_on`] is not asked.
    fn token_pruning(&self) -> Option<&TokenPruning> {
        None
    }

    /// What rows, prompt and decode rows alike, see of the keys before them, where that is less than everything. Prompt keys
    /// that no later row sees are given up after each chunk of the prefill; [`Self::kept`] is what is left of them.
    fn window(&self) -> Option<SinksAndWindow> {
        None
    }

    /// Keys and values of layers that rows do not run through.
    fn keys_values_above(&self) -> KeysValuesAbove {
        KeysValuesAbove::Nothing
    }

    /// Of `prefill_len` prefill tokens, how many have KV at a layer after the prefill.
    fn kept(&self, layer: usize, prefill_len: usize) -> usize {
        match self.keys_values_above() {
            KeysValuesAbove::Nothing => self.rows_at(Depth::entering(layer), prefill_len),
            _ => prefill_len,
        }
    }

    /// Whether decode rows see each other's keys at a layer. A decode row always sees its own key and, of the prompt,
    /// every key that is stored there.
    fn decode_rows_see_each_other(&self, _layer: usize) -> bool {
        true
    }

    /// What has to be said wherever its output is shown.
    fn caveat(&self) -> Option<&'static str> {
        None
    }
}

/// Rows that have arrived at an exit.
pub struct Arrived<'a> {
    /// The exit.
    pub exit: Depth,
    /// Their positions, ascending.
    pub positions: &'a [usize],
    /// Prompt tokens p; the last row of the prompt is at position p − 1.
    pub prompt_len: usize,
    /// Queries `[rows, H, head_dim]`, rotated, of the last chunk in the last attention before the exit; none at the entrance of
    /// layer 0.
    pub queries: Option<&'a Tensor>,
    /// Keys and values of all layers below the exit.
    pub store: &'a KvStore,
}

/// Where keys and values come from at layers that rows do not run through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeysValuesAbove {
    /// From nowhere: there are none.
    Nothing,
    /// From the residual stream with which a row left, through each layer's own attention norm and projections.
    OwnNorms,
    /// From the residual stream at the entrance of this layer, through the attention norm of this layer and the
    /// projections of each layer above; of rows that go on, too, decode rows among them.
    SharedNorm(usize),
}

/// The exit that most policies have: prompt tokens stop at the entrance of a layer, all but the anchors.
#[derive(Debug)]
pub(super) struct Cut {
    /// Prompt tokens run through layers 0 … this−1.
    pub(super) layer: usize,
    /// Which of them run full depth nevertheless.
    pub(super) anchors: Anchors,
}

impl Cut {
    pub(super) fn exits(&self) -> Vec<Depth> {
        vec![Depth::entering(self.layer)]
    }

    pub(super) fn goes_on(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(arrived.positions.iter().map(|&position| self.anchors.contains(position)).collect())
    }

    pub(super) fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        if depth < Depth::entering(self.layer) { prefill_len } else { self.anchors.within(prefill_len) }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.layer, self.anchors)
    }
}
