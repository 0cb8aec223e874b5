//! Vertical and slash lines: keys that all rows read, and distances at which all rows read.

use crate::policy::PromptChunk;
use layerscope_kernels::{KeySet, SPARSE_BLOCK};
use ndarray::Array2;

/// Attention of the last rows, added up: by key, and by distance from the row back to the key.
pub(super) struct Lines {
    pub(super) vertical: Vec<f32>,
    pub(super) slash: Vec<f32>,
}

impl Lines {
    /// Of attention `[rows, keys]` of the last rows.
    pub(super) fn of(last_rows: &Array2<f32>) -> Self {
        let (rows, keys) = last_rows.dim();
        let (mut vertical, mut slash) = (vec![0.0; keys], vec![0.0; keys]);
        for (row, weights) in last_rows.outer_iter().enumerate() {
            let weights = weights.to_slice().unwrap_or_default();
            // Distances from the last key to the first, so that both sums go the same way.
            let beyond = rows - 1 - row;
            let pairs = vertical.iter_mut().zip(&mut slash[beyond..]).zip(weights);
            pairs.for_each(|((by_key, by_distance), weight)| {
                *by_key += weight;
                *by_distance += weight;
            });
        }
        slash.reverse();
        Self { vertical, slash }
    }
}

/// What each block of rows of a head reads: the keys on vertical lines, and every block of keys that a slash line crosses;
/// besides them the rows' own blocks.
pub(super) fn sets(chunk: &PromptChunk<'_>, vertical: &[usize], slash: &[usize]) -> Vec<KeySet> {
    let mut vertical = vertical.to_vec();
    vertical.sort_unstable();
    let of_rows = |first_row: usize| {
        let first = chunk.first_position + first_row;
        let last = chunk.first_position + chunk.rows.min(first_row + SPARSE_BLOCK) - 1;
        let mut crossed = vec![false; last / SPARSE_BLOCK + 1];
        crossed[first / SPARSE_BLOCK..].fill(true);
        for &distance in slash.iter().filter(|&&distance| distance <= last) {
            let blocks = first.saturating_sub(distance) / SPARSE_BLOCK..=(last - distance) / SPARSE_BLOCK;
            crossed[blocks].fill(true);
        }
        let is_column = |&&key: &&usize| key < first && !crossed[key / SPARSE_BLOCK];
        KeySet {
            columns: vertical.iter().filter(is_column).map(|&key| key as u32).collect(),
            blocks: (0..crossed.len()).filter(|&block| crossed[block]).map(|block| block as u32).collect(),
        }
    };
    (0..chunk.rows).step_by(SPARSE_BLOCK).map(of_rows).collect()
}
