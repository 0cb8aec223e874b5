//! The kinds of pattern that a head has: vertical and slash lines, an A-shape, blocks (MInference, section 3).

use super::vertical_slash::{Lines, sets};
use crate::policy::PromptChunk;
use crate::policy::top::largest;
use layerscope_kernels::{KeySet, SPARSE_BLOCK};
use std::ops::Range;

/// The first keys and the shortest distances, which are always among the lines.
const FIRST_KEYS: usize = 30;
const SHORTEST_DISTANCES: usize = 100;

/// What the prompt rows of a head read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadPattern {
    /// As many keys, and as many distances, as the last 64 rows of a chunk read most.
    VerticalSlash {
        /// Keys.
        vertical: usize,
        /// Distances.
        slash: usize,
    },
    /// The first keys, and the last ones up to the row.
    AShape {
        /// First keys.
        first: usize,
        /// Last keys.
        last: usize,
    },
    /// For each block of 64 rows so many blocks of 64 keys: the first, the rows' own, and those whose mean key has the largest
    /// products with the rows' mean query.
    Blocks(usize),
}

impl HeadPattern {
    /// Whether it has every key of a chunk.
    pub(super) fn is_dense(self, chunk: &PromptChunk<'_>) -> bool {
        let keys = chunk.key_count();
        match self {
            Self::VerticalSlash { vertical, slash } => vertical >= keys || slash >= keys,
            Self::AShape { first, last } => first.saturating_add(last) >= keys,
            Self::Blocks(blocks) => blocks >= keys.div_ceil(SPARSE_BLOCK),
        }
    }

    /// What each block of rows of a head reads.
    pub(super) fn sets(self, estimates: &Estimates<'_, '_>) -> Vec<KeySet> {
        let chunk = estimates.chunk;
        match self {
            _ if self.is_dense(chunk) => row_blocks(chunk).map(|rows| up_to(&rows)).collect(),
            Self::VerticalSlash { vertical, slash } => {
                let [by_key, by_distance] = estimates.lines();
                let count = |order: &[usize], wanted: usize, least: usize| order.len().min(wanted.max(least));
                sets(
                    chunk,
                    &by_key[..count(by_key, vertical, FIRST_KEYS)],
                    &by_distance[..count(by_distance, slash, SHORTEST_DISTANCES)],
                )
            }
            Self::AShape { first, last } => {
                row_blocks(chunk).map(|rows| a_shape(&rows, first, last)).collect()
            }
            Self::Blocks(blocks) => {
                let orders = estimates.blocks().iter().zip(row_blocks(chunk));
                orders.map(|(order, rows)| largest_blocks(&rows, order, blocks)).collect()
            }
        }
    }
}

/// What a head's keys and queries say of its attention, each computed when it is first asked for.
pub(super) struct Estimates<'a, 'b> {
    chunk: &'a PromptChunk<'b>,
    head: usize,
    lines: std::cell::OnceCell<[Vec<usize>; 2]>,
    blocks: std::cell::OnceCell<Vec<Vec<usize>>>,
}

impl<'a, 'b> Estimates<'a, 'b> {
    pub(super) fn new(chunk: &'a PromptChunk<'b>, head: usize) -> Self {
        Self { chunk, head, lines: Default::default(), blocks: Default::default() }
    }

    /// Keys and distances, those that the last rows read most first.
    fn lines(&self) -> &[Vec<usize>; 2] {
        self.lines.get_or_init(|| {
            let Lines { mut vertical, mut slash } = Lines::of(&self.chunk.last_rows(self.head));
            vertical.iter_mut().take(FIRST_KEYS).for_each(|weight| *weight = f32::INFINITY);
            slash.iter_mut().take(SHORTEST_DISTANCES).for_each(|weight| *weight = f32::INFINITY);
            [vertical, slash].map(|weights| largest(&weights, weights.len()))
        })
    }

    /// For each block of rows, the blocks of keys up to its own in the order of their weights by means.
    fn blocks(&self) -> &[Vec<usize>] {
        self.blocks.get_or_init(|| {
            let weights = self.chunk.blocks(self.head);
            let order = |(weights, rows): (ndarray::ArrayView1<'_, f32>, Range<usize>)| {
                let seen = weights.as_slice().unwrap_or_default();
                largest(&seen[..seen.len().min((rows.end - 1) / SPARSE_BLOCK + 1)], seen.len())
            };
            weights.outer_iter().zip(row_blocks(self.chunk)).map(order).collect()
        })
    }
}

/// The positions of each block of rows.
pub(super) fn row_blocks(chunk: &PromptChunk<'_>) -> impl Iterator<Item = Range<usize>> {
    let (first, end) = (chunk.first_position, chunk.key_count());
    (first..end).step_by(SPARSE_BLOCK).map(move |first| first..end.min(first + SPARSE_BLOCK))
}

fn up_to(rows: &Range<usize>) -> KeySet {
    let blocks = (0..rows.end.div_ceil(SPARSE_BLOCK) as u32).collect();
    KeySet { blocks, columns: vec![] }
}

fn a_shape(rows: &Range<usize>, first: usize, last: usize) -> KeySet {
    let local = (rows.start + 1).saturating_sub(last.max(1)) / SPARSE_BLOCK;
    let whole = (first / SPARSE_BLOCK).min(local);
    KeySet {
        blocks: (0..whole).chain(local..rows.end.div_ceil(SPARSE_BLOCK)).map(|block| block as u32).collect(),
        columns: (whole * SPARSE_BLOCK..first.min(local * SPARSE_BLOCK)).map(|key| key as u32).collect(),
    }
}

fn largest_blocks(rows: &Range<usize>, order: &[usize], count: usize) -> KeySet {
    let own = rows.start / SPARSE_BLOCK..rows.end.div_ceil(SPARSE_BLOCK);
    let mut blocks: Vec<u32> = std::iter::once(0).chain(own).map(|block| block as u32).collect();
    blocks.dedup();
    for &block in order {
        if blocks.len() >= count {
            break;
        }
        if !blocks.contains(&(block as u32)) {
            blocks.push(block as u32);
        }
    }
    blocks.sort_unstable();
    KeySet { blocks, columns: vec![] }
}
