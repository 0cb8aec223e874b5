//! Reach: which prompt rows run through which depth.

use super::Anchors;
use crate::{Depth, KvStore, Tensor};
use std::fmt;

/// Which prompt rows run through which depth.
///
/// The prefill goes in *stages*: ranges of depth within which the set of rows is constant. Each of
/// [`Self::pruning_points`] ends one. Rows go through a stage in chunks; at its end [`Self::keep_mask`] says which of them
/// enter the next.
pub trait Reach: Send + Sync {
    /// Depths at which rows are dropped from the prefill, ascending.
    fn pruning_points(&self) -> Vec<Depth> {
        vec![]
    }

    /// Of `prefill_len` prefill tokens (the prompt but its last token), how many run through the half-layer that begins
    /// at a depth.
    fn rows_at(&self, _depth: Depth, prefill_len: usize) -> usize {
        prefill_len
    }

    /// Which of the rows that arrived at a pruning point are kept, one answer for each; whatever it is, the last prompt token
    /// is. `None` while that cannot be told: the same rows are then shown again, together with the next chunk's.
    ///
    /// Not asked where a [`super::RunningSelection`] chooses.
    fn keep_mask(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(vec![true; arrived.positions.len()])
    }

    /// The cutoff, where rows are dropped at one alone, by their positions.
    fn cutoff(&self) -> Option<&Cutoff> {
        None
    }
}

/// Rows that have arrived at a pruning point.
pub struct Arrived<'a> {
    /// The pruning point.
    pub point: Depth,
    /// Their positions, ascending.
    pub positions: &'a [usize],
    /// Prompt tokens p; the last row of the prompt is at position p − 1.
    pub prompt_len: usize,
    /// Queries `[rows, H, head_dim]`, rotated, of the last chunk in the last attention before the point; none at the entrance of
    /// layer 0.
    pub queries: Option<&'a Tensor>,
    /// Attention that each prompt position received from the prompt's last row in that attention, summed over heads; only once
    /// that row has arrived, and where a selection asks for it.
    pub received: Option<&'a [f32]>,
    /// Keys and values of all layers below the point.
    pub store: &'a KvStore,
}

/// Which rows exist at which layers, and what they read: a cutoff with its anchors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visibility {
    /// Prompt rows but the anchors end at the entrance of this layer.
    pub cutoff: usize,
    /// Positions of prompt rows that run through all layers.
    pub anchors: Anchors,
    /// Whether decode rows from the cutoff on read themselves and anchors alone.
    pub self_only: bool,
}

impl Visibility {
    /// Whether a row at a position goes on from the cutoff, in a sequence of so many prompt tokens.
    pub fn goes_on(&self, position: usize, prompt_len: usize) -> bool {
        position + 1 >= prompt_len || self.anchors.contains(position)
    }
}

/// Prompt tokens stop at the entrance of a layer, all but the anchors.
#[derive(Debug, Clone)]
pub struct Cutoff {
    /// Prompt tokens run through layers 0 … this−1.
    pub layer: usize,
    /// Which of them run full depth nevertheless.
    pub anchors: Anchors,
}

impl Reach for Cutoff {
    fn pruning_points(&self) -> Vec<Depth> {
        vec![Depth::entering(self.layer)]
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        if depth < Depth::entering(self.layer) { prefill_len } else { self.anchors.within(prefill_len) }
    }

    fn keep_mask(&self, arrived: &Arrived<'_>) -> Option<Vec<bool>> {
        Some(arrived.positions.iter().map(|&position| self.anchors.contains(position)).collect())
    }

    fn cutoff(&self) -> Option<&Cutoff> {
        Some(self)
    }
}

impl fmt::Display for Cutoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.layer, self.anchors)
    }
}
