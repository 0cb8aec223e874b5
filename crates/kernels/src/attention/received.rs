//! What queries read, position by position: a second pass over the keys, once the maximum and sum of each softmax are known. It goes
//! chunk by chunk of positions, so that no row of probabilities is ever whole.

use super::block::{Partial, QueryBlock, Tile, TileProducts};
use super::{KEY_TILE, KeySpan};
use crate::Instructions;
use crate::exp::exp_nonpositive;
use crate::instructions::Operation;
use crate::lanes::Lanes;
use pulp::Simd;
use rayon::prelude::*;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a chunk, at least and at most.
const CHUNK: [usize; 2] = [4 * KEY_TILE, 64 * KEY_TILE];
/// Chunks that there are at most, where that is possible: each has the strongest positions of every row and head.
const MOST_CHUNKS: usize = 64;

/// Attention received by key positions 0 … len−1, over all query rows and heads given so far.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// Sum of probabilities.
    pub sum: Vec<f32>,
    /// Largest probability.
    pub max: Vec<f32>,
    /// What is listed of each row; `None` lists nothing.
    pub limits: Option<ReadLimits>,
    /// The strongest positions of each row, in the order of the rows; none without limits.
    pub reads: Vec<RowReads>,
}

impl Received {
    /// Zeros for positions 0 … `positions`−1.
    pub fn new(positions: usize) -> Self {
        Self { sum: vec![0.0; positions], max: vec![0.0; positions], ..Self::default() }
    }

    /// The same, which lists the strongest positions of each row.
    pub fn with_reads(positions: usize, limits: Option<ReadLimits>) -> Self {
        Self { limits, ..Self::new(positions) }
    }

    /// Adds what other rows give the same positions.
    pub fn add(&mut self, other: &Self) {
        for (total, x) in self.sum.iter_mut().zip(&other.sum) {
            *total += x;
        }
        for (largest, &x) in self.max.iter_mut().zip(&other.max) {
            *largest = largest.max(x);
        }
        undefine(&self.sum, &mut self.max);
        self.reads.extend(other.reads.iter().cloned());
    }
}

/// `f32::max` passes over NaN.
fn undefine(sum: &[f32], max: &mut [f32]) {
    for (largest, total) in max.iter_mut().zip(sum) {
        *largest = if total.is_nan() { f32::NAN } else { *largest };
    }
}

/// How much is listed of what a row reads.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadLimits {
    /// Positions that may be listed, among those whose attention received is wanted.
    pub positions: Range<usize>,
    /// Most positions of a row and head.
    pub of_head: usize,
    /// Least attention of a row and head that is listed.
    pub least_of_head: f32,
    /// Most positions of a row's mean over heads.
    pub of_mean: usize,
    /// Least mean attention that is listed.
    pub least_of_mean: f32,
}

/// A position that a query reads.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Read {
    /// The key's position.
    pub position: u32,
    /// Attention on it, a probability.
    pub attention: f32,
}

impl Read {
    /// Whether it comes before another in a list: by attention, then by position.
    fn precedes(self, other: Self) -> bool {
        self.attention > other.attention
            || (self.attention == other.attention && self.position < other.position)
    }
}

/// The positions that a query row reads most; strongest first, of equal ones the first position first. Where a softmax is undefined,
/// nothing is listed.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct RowReads {
    /// By the mean over heads.
    pub mean: Vec<Read>,
    /// By head, one after the other.
    pub heads: Vec<Read>,
    /// Where each head's list ends in `heads`; length H.
    pub ends: Vec<usize>,
}

impl RowReads {
    /// The list of a head; empty for a head that there is not.
    pub fn of_head(&self, head: usize) -> &[Read] {
        let start = head.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(head).and_then(|&end| self.heads.get(start..end)).unwrap_or(&[])
    }
}

/// The strongest of what is offered.
#[derive(Clone)]
struct Strongest {
    most: usize,
    /// What is offered must be at least this; rises once there are `most`.
    bar: f32,
    reads: Vec<Read>,
}

impl Strongest {
    fn new(most: usize, least: f32) -> Self {
        // What gets nothing is not read.
        let bar = if most == 0 { f32::INFINITY } else { least.max(f32::MIN_POSITIVE) };
        Self { most, bar, reads: Vec::new() }
    }

    #[inline(always)]
    fn offer(&mut self, read: Read) {
        // Not so for NaN.
        if read.attention >= self.bar {
            self.insert(read);
        }
    }

    fn insert(&mut self, read: Read) {
        let place = self.reads.partition_point(|&listed| listed.precedes(read));
        if place < self.most {
            self.reads.truncate(self.most - 1);
            self.reads.insert(place, read);
        }
        if let Some(last) = self.reads.last().filter(|_| self.reads.len() == self.most) {
            self.bar = last.attention;
        }
    }
}

/// The strongest positions of rows × heads, and of the means of rows.
struct Lists {
    heads: Vec<Strongest>,
    means: Vec<Strongest>,
}

impl Lists {
    fn new(limits: &ReadLimits, rows: usize, query_heads: usize) -> Self {
        Self {
            heads: vec![Strongest::new(limits.of_head, limits.least_of_head); rows * query_heads],
            means: vec![Strongest::new(limits.of_mean, limits.least_of_mean); rows],
        }
    }

    fn merge(&mut self, other: Self) {
        let all = self.heads.iter_mut().chain(&mut self.means);
        for (list, other) in all.zip(other.heads.into_iter().chain(other.means)) {
            other.reads.into_iter().for_each(|read| list.offer(read));
        }
    }

    fn into_rows(self, query_heads: usize) -> impl Iterator<Item = RowReads> {
        let mut of_heads = self.heads.into_iter();
        self.means.into_iter().map(move |mean| {
            let mut row = RowReads { mean: mean.reads, ..RowReads::default() };
            for list in of_heads.by_ref().take(query_heads) {
                row.heads.extend(list.reads);
                row.ends.push(row.heads.len());
            }
            row
        })
    }
}

/// Adds what all rows of `blocks`, whose softmax is `finished`, give to positions, and lists what they read. `P` multiplies queries and keys as
/// for the softmax: other products round otherwise, which moves probabilities by thousandths where scores are in the thousands.
pub(super) fn add<P: TileProducts>(
    instructions: Instructions,
    (blocks, finished): (&[QueryBlock<'_>], &[Partial]),
    spans: &[KeySpan<'_>],
    received: &mut Received,
) {
    let Some(shape) = blocks.first().map(|block| block.shape) else { return };
    let rows = blocks[0].queries.rows;
    let Received { sum, max, limits, reads } = received;
    let chunk = sum.len().div_ceil(MOST_CHUNKS).next_multiple_of(KEY_TILE).clamp(CHUNK[0], CHUNK[1]);
    let pass = |(index, (sum, max)): (usize, (&mut [f32], &mut [f32]))| {
        let first = index * chunk;
        let lists = limits.as_ref().map(|limits| {
            let listed = limits.positions.start.max(first)..limits.positions.end.min(first + sum.len());
            (Lists::new(limits, rows, shape.query_heads), listed)
        });
        let products = PhantomData::<P>;
        instructions.dispatch(ChunkPass { blocks, finished, spans, first, sum, max, lists, products })
    };
    let parts: Vec<Option<Lists>> =
        sum.par_chunks_mut(chunk).zip(max.par_chunks_mut(chunk)).enumerate().map(pass).collect();
    let Some(limits) = limits else { return };
    let mut all = Lists::new(limits, rows, shape.query_heads);
    parts.into_iter().flatten().for_each(|part| all.merge(part));
    reads.extend(all.into_rows(shape.query_heads));
}

/// All rows against the keys of one chunk of positions.
struct ChunkPass<'a, P> {
    blocks: &'a [QueryBlock<'a>],
    finished: &'a [Partial],
    spans: &'a [KeySpan<'a>],
    /// First position of the chunk.
    first: usize,
    /// Of each position of the chunk.
    sum: &'a mut [f32],
    max: &'a mut [f32],
    /// With the positions that may be listed.
    lists: Option<(Lists, Range<usize>)>,
    products: PhantomData<P>,
}

impl<P: TileProducts> Operation for ChunkPass<'_, P> {
    type Output = Option<Lists>;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) -> Option<Lists> {
        let Self { blocks, finished, spans, first, sum, max, mut lists, .. } = self;
        let positions = sum.len();
        let mut of_block = vec![0.0; positions];
        // Sums over heads, `[rows, positions]`.
        let rows = blocks.first().map_or(0, |block| block.queries.rows);
        let mut over_heads = vec![0.0; if lists.is_some() { rows * positions } else { 0 }];
        for (block, finished) in blocks.iter().zip(finished) {
            of_block.fill(0.0);
            let mut products = P::new(block);
            let mut scores = block.lines(KEY_TILE);
            let scale: Vec<f32> =
                (0..block.len()).map(|entry| (1.0 / finished.total(entry)) as f32).collect();
            for tile in block.tiles(spans) {
                let Some(tile) = tile.within(first..first + positions) else { continue };
                let scores = block.score((simd, lanes), &mut products, spans, tile, &mut scores);
                let columns = tile.first_position - first..tile.first_position - first + tile.len;
                let sums = &mut of_block[columns.clone()];
                let maxima = &mut max[columns.clone()];
                for (entry, row) in scores.chunks_exact_mut(KEY_TILE).enumerate() {
                    let row = &mut row[..tile.len];
                    probabilities(block, tile, entry, finished.max[entry], scale[entry], row);
                    for ((sum, largest), &p) in sums.iter_mut().zip(&mut *maxima).zip(&*row) {
                        *sum += p;
                        *largest = if p > *largest { p } else { *largest };
                    }
                    let Some((lists, listed)) = &mut lists else { continue };
                    let (row_index, head) = block.row_and_head(entry);
                    let means = &mut over_heads[row_index * positions..][columns.clone()];
                    means.iter_mut().zip(&*row).for_each(|(mean, p)| *mean += p);
                    let list = &mut lists.heads[row_index * block.shape.query_heads + head];
                    offer_all(list, tile.first_position, row, 1.0, listed);
                }
            }
            sum.iter_mut().zip(&of_block).for_each(|(total, x)| *total += x);
        }
        undefine(sum, max);
        let (mut lists, listed) = lists?;
        let heads = blocks.first().map_or(1, |block| block.shape.query_heads);
        for (list, means) in lists.means.iter_mut().zip(over_heads.chunks_exact(positions.max(1))) {
            offer_all(list, first, means, 1.0 / heads as f32, &listed);
        }
        Some(lists)
    }
}

/// Scores of an entry to probabilities; NaN where it sees a key and its softmax is undefined, 0 where it sees none.
#[inline(always)]
fn probabilities(block: &QueryBlock<'_>, tile: Tile, entry: usize, max: f32, scale: f32, row: &mut [f32]) {
    if scale.is_finite() {
        row.iter_mut().for_each(|score| *score = exp_nonpositive(*score - max) * scale);
        return;
    }
    row.fill(f32::NAN);
    let len = row.len();
    for hidden in block.hidden(entry, tile) {
        row[hidden.start.min(len)..hidden.end.min(len)].fill(0.0);
    }
}

/// Offers the attention on consecutive positions, times a factor, as far as they may be listed.
#[inline(always)]
fn offer_all(list: &mut Strongest, first: usize, attention: &[f32], factor: f32, listed: &Range<usize>) {
    let from = listed.start.saturating_sub(first).min(attention.len());
    let to = listed.end.saturating_sub(first).clamp(from, attention.len());
    let offered = &attention[from..to];
    // Mostly nothing is strong enough.
    if !offered.iter().fold(false, |any, &x| any | (x * factor >= list.bar)) {
        return;
    }
    for (index, &x) in offered.iter().enumerate() {
        list.offer(Read { position: (first + from + index) as u32, attention: x * factor });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_are_listed_in_order_whatever_the_order_of_offers() {
        let offers = [(5, 0.25), (9, 0.5), (1, 0.25), (7, f32::NAN), (3, 0.0), (2, 0.01), (8, 0.25)];
        for turn in 0..offers.len() {
            let mut list = Strongest::new(3, 0.02);
            for (position, attention) in offers[turn..].iter().chain(&offers[..turn]) {
                list.offer(Read { position: *position, attention: *attention });
            }
            let listed: Vec<(u32, f32)> = list.reads.iter().map(|r| (r.position, r.attention)).collect();
            assert_eq!(listed, [(9, 0.5), (1, 0.25), (5, 0.25)], "turn {turn}");
        }
        let mut none = Strongest::new(0, 0.0);
        none.offer(Read { position: 0, attention: 1.0 });
        assert!(none.reads.is_empty());
    }
}
