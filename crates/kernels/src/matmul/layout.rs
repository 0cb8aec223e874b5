//! The order of a matrix's bytes: row by row, as files have them, or sixteen rows at a time, as products in whole numbers read them.

use super::format::by_byte_block;
use super::{WeightFormat, Weights};
use crate::Instructions;
use crate::instructions::Operation;
use crate::lanes::{BYTES, BlockWords, LANES, Lanes, WordOrder};
use pulp::Simd;
use std::borrow::Cow;
use std::ops::Range;

/// The order of a matrix's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One row after the other.
    Rows,
    /// Sixteen rows at a time: the first four bytes of a block of each of them, then the next four of each. Bytes of
    /// blocks that are no whole fours follow behind these. Rows behind the last sixteen are one after the other. Reading it, a decode step
    /// moves no bytes between vectors, and memory is read in its order.
    Interleaved,
}

impl WeightFormat {
    /// Whether products in whole numbers are faster from [`Layout::Interleaved`].
    pub const fn prefers_interleaved(self) -> bool {
        self.has_bytes()
    }

    const fn words(self) -> BlockWords {
        let (elements, bytes) = self.block();
        by_byte_block!(
            self,
            B => <B as blocks::ByteBlock>::WORDS,
            others => BlockWords::new(elements, bytes, WordOrder::File)
        )
    }

    /// Brings rows of so many columns from [`Layout::Rows`] into [`Layout::Interleaved`].
    ///
    /// # Panics
    /// If these are not whole rows, or `to` is not as long.
    pub fn interleave(self, columns: usize, rows: &[u8], to: &mut [u8]) {
        assert_eq!(rows.len(), to.len(), "as many bytes");
        assert!(rows.len().is_multiple_of(self.bytes(columns)), "whole rows");
        let sixteen = LANES * self.bytes(columns);
        let (mut from, mut to) = (rows.chunks_exact(sixteen), to.chunks_exact_mut(sixteen));
        for (from, to) in from.by_ref().zip(to.by_ref()) {
            self.interleave_sixteen(from, to);
        }
        to.into_remainder().copy_from_slice(from.remainder());
    }

    /// Sixteen rows.
    fn interleave_sixteen(self, rows: &[u8], to: &mut [u8]) {
        let kind = self.words();
        let (row_bytes, block_bytes) = (rows.len() / LANES, self.block().1);
        let (words, rests) = to.split_at_mut(row_bytes / block_bytes * kind.words * BYTES);
        for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
            for (block, bytes) in blocks.chunks_exact(block_bytes).enumerate() {
                let to = &mut words[block * kind.words * BYTES..][..kind.words * BYTES];
                let to = to.as_chunks_mut::<BYTES>().0;
                for (word, from) in bytes[kind.first..].as_chunks::<4>().0[..kind.words].iter().enumerate() {
                    to[kind.place(word)][4 * row..][..4].copy_from_slice(from);
                }
                let rest = &bytes[kind.rest_at()..][..kind.rest];
                rests[(block * LANES + row) * kind.rest..][..kind.rest].copy_from_slice(rest);
            }
        }
    }
}

impl<'a> Weights<'a> {
    /// All bytes, one row after the other.
    pub fn in_rows(&self) -> Cow<'a, [u8]> {
        if self.layout == Layout::Rows {
            return Cow::Borrowed(self.data);
        }
        let mut copy = vec![];
        self.blocks_of(
            Instructions::best(),
            0..self.rows,
            0..self.columns / self.format.block().0,
            &mut copy,
        );
        Cow::Owned(copy)
    }

    /// The sixteen rows from one on, where they are interleaved; `first` is a multiple of sixteen.
    pub(super) fn sixteen(&self, first: usize) -> Option<&'a [u8]> {
        let is_whole = self.layout == Layout::Interleaved && first + LANES <= self.rows;
        is_whole.then(|| &self.data[first * self.row_bytes()..][..LANES * self.row_bytes()])
    }

    /// Some blocks of rows, one row after the other; `copy` is for interleaved rows.
    ///
    /// # Panics
    /// If there are no such rows or blocks.
    pub(super) fn blocks_of<'b>(
        &self,
        instructions: Instructions,
        rows: Range<usize>,
        blocks: Range<usize>,
        copy: &'b mut Vec<u8>,
    ) -> RowBytes<'b>
    where
        'a: 'b,
    {
        let block_bytes = self.format.block().1;
        let bytes = blocks.start * block_bytes..blocks.end * block_bytes;
        if rows.is_empty() {
            return RowBytes { data: &[], stride: 0, bytes };
        }
        if self.layout == Layout::Rows {
            let data = &self.data[rows.start * self.row_bytes()..rows.end * self.row_bytes()];
            return RowBytes { data, stride: self.row_bytes(), bytes };
        }
        copy.resize(rows.len() * bytes.len(), 0);
        let (mut to, mut row) = (&mut copy[..], rows.start);
        while row < rows.end {
            let first = row / LANES * LANES;
            let sixteen = self.sixteen(first);
            let last = if sixteen.is_some() { rows.end.min(first + LANES) } else { row + 1 };
            let here;
            (here, to) = to.split_at_mut((last - row) * bytes.len());
            match sixteen {
                None => here.copy_from_slice(&self.row(row)[bytes.clone()]),
                Some(data) => {
                    let sixteen = Sixteen::new(self, data, blocks.clone());
                    if last - row == LANES {
                        instructions.dispatch(RowByRow { sixteen, to: here });
                    } else {
                        let rows = row - first..last - first;
                        rows.zip(here.chunks_exact_mut(bytes.len()))
                            .for_each(|(row, to)| sixteen.row(row, 0..blocks.len(), to));
                    }
                }
            }
            row = last;
        }
        RowBytes { data: copy, stride: bytes.len(), bytes: 0..bytes.len() }
    }
}

/// Blocks of sixteen interleaved rows.
struct Sixteen<'a> {
    /// `[blocks, words, 16]` times four bytes.
    words: &'a [[u8; BYTES]],
    /// `[blocks, 16]` times the bytes of a block that are in no word.
    rests: &'a [u8],
    block_bytes: usize,
    kind: BlockWords,
}

impl<'a> Sixteen<'a> {
    /// Some blocks of sixteen rows of a matrix, `data`.
    fn new(weights: &Weights<'_>, data: &'a [u8], blocks: Range<usize>) -> Self {
        let (kind, block_bytes) = (weights.format.words(), weights.format.block().1);
        let (words, rests) = data.split_at(weights.row_bytes() / block_bytes * kind.words * BYTES);
        let words = &words.as_chunks().0[blocks.start * kind.words..blocks.end * kind.words];
        let rests = &rests[blocks.start * LANES * kind.rest..blocks.end * LANES * kind.rest];
        Self { words, rests, block_bytes, kind }
    }

    /// Blocks of one of the rows.
    fn row(&self, row: usize, blocks: Range<usize>, to: &mut [u8]) {
        let Self { words, block_bytes, kind, .. } = *self;
        for (block, to) in blocks.zip(to.chunks_exact_mut(block_bytes)) {
            let words = &words[block * kind.words..];
            for (word, to) in to[kind.first..].as_chunks_mut::<4>().0[..kind.words].iter_mut().enumerate() {
                to.copy_from_slice(&words[kind.place(word)][4 * row..][..4]);
            }
            let rest = &self.rests[(block * LANES + row) * kind.rest..][..kind.rest];
            to[kind.rest_at()..][..kind.rest].copy_from_slice(rest);
        }
    }

    /// The bytes of a block of a row that are in no word.
    #[inline(always)]
    fn rest<const REST: usize>(&self, row: usize, block: usize) -> &[u8; REST] {
        &self.rests.as_chunks().0[block * LANES + row]
    }
}

/// Sixteen rows one after the other: sixteen words of all of them at a time.
struct RowByRow<'a> {
    sixteen: Sixteen<'a>,
    to: &'a mut [u8],
}

impl Operation for RowByRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, l: L) {
        let Self { sixteen, to } = self;
        let row_bytes = to.len() / LANES;
        match sixteen.kind {
            BlockWords { rest: 0, order: WordOrder::File, .. } => sixteen.words_in_a_row(l, row_bytes, to),
            // Written out, so that lengths are known when compiling.
            BlockWords { words: 4, rest: 1, .. } => sixteen.whole_blocks::<L, 16, 1>(l, row_bytes, to),
            BlockWords { words: 4, rest: 2, .. } => sixteen.whole_blocks::<L, 16, 2>(l, row_bytes, to),
            BlockWords { words: 8, rest: 2, .. } => sixteen.whole_blocks::<L, 32, 2>(l, row_bytes, to),
            BlockWords { words: LANES.., rest: 2, .. } => sixteen.parts_of_blocks::<L, 2>(l, row_bytes, to),
            _ => {
                let blocks = row_bytes / sixteen.block_bytes;
                let rows = to.chunks_exact_mut(row_bytes).enumerate();
                rows.for_each(|(row, to)| sixteen.row(row, 0..blocks, to));
            }
        }
    }
}

impl Sixteen<'_> {
    /// Of blocks that are nothing but words, in the order of the file.
    #[inline(always)]
    fn words_in_a_row<L: Lanes>(&self, l: L, row_bytes: usize, to: &mut [u8]) {
        let (sixteens, others) = self.words.as_chunks::<LANES>();
        for (index, words) in sixteens.iter().enumerate() {
            for (row, bytes) in transposed(l, words).iter().enumerate() {
                to[row * row_bytes + index * BYTES..][..BYTES].copy_from_slice(bytes);
            }
        }
        for (index, word) in others.iter().enumerate() {
            for (row, bytes) in word.as_chunks::<4>().0.iter().enumerate() {
                to[row * row_bytes + sixteens.len() * BYTES + 4 * index..][..4].copy_from_slice(bytes);
            }
        }
    }

    /// Of blocks of a rest and so many bytes of words behind it: as many blocks as have sixteen words.
    #[inline(always)]
    fn whole_blocks<L: Lanes, const WORDS: usize, const REST: usize>(
        &self,
        l: L,
        row_bytes: usize,
        to: &mut [u8],
    ) {
        let (block_bytes, at_once) = (WORDS + REST, BYTES / WORDS);
        let sixteens = self.words.as_chunks::<LANES>().0;
        for (index, words) in sixteens.iter().enumerate() {
            for (row, bytes) in transposed(l, words).iter().enumerate() {
                let to = &mut to[row * row_bytes + index * at_once * block_bytes..];
                let parts = bytes.as_chunks::<WORDS>().0.iter().zip(to.chunks_exact_mut(block_bytes));
                for (part, (bytes, to)) in parts.enumerate() {
                    let (rest, words) = to.split_at_mut(REST);
                    words.copy_from_slice(bytes);
                    rest.copy_from_slice(self.rest::<REST>(row, index * at_once + part));
                }
            }
        }
        let done = sixteens.len() * at_once;
        for (row, to) in to.chunks_exact_mut(row_bytes).enumerate() {
            self.row(row, done..row_bytes / block_bytes, &mut to[done * block_bytes..]);
        }
    }

    /// Of blocks of sixteen words and more, four of which stay together, and a rest.
    #[inline(always)]
    fn parts_of_blocks<L: Lanes, const REST: usize>(&self, l: L, row_bytes: usize, to: &mut [u8]) {
        let Self { block_bytes, kind, .. } = *self;
        for (block, words) in self.words.chunks_exact(kind.words).enumerate() {
            for first in (0..kind.words).step_by(LANES) {
                // The last ones overlap those before.
                let first = first.min(kind.words - LANES);
                let Some(sixteen) = words[first..].first_chunk() else { continue };
                for (row, bytes) in transposed(l, sixteen).iter().enumerate() {
                    let to = &mut to[row * row_bytes + block * block_bytes + kind.first..];
                    for (four, bytes) in bytes.as_chunks::<16>().0.iter().enumerate() {
                        to[4 * kind.word(first + 4 * four)..][..16].copy_from_slice(bytes);
                    }
                }
            }
            for row in 0..LANES {
                let rest = &mut to[row * row_bytes + block * block_bytes + kind.rest_at()..][..REST];
                rest.copy_from_slice(self.rest::<REST>(row, block));
            }
        }
    }
}

/// Sixteen words of each row, from words of all rows.
#[inline(always)]
fn transposed<L: Lanes>(l: L, words: &[[u8; BYTES]; LANES]) -> [[u8; BYTES]; LANES] {
    let mut vectors = [l.splat(0.0); LANES];
    for (vector, word) in vectors.iter_mut().zip(words) {
        // As floats, whose bits nothing changes.
        *vector = l.load_bytes(word);
    }
    let mut rows = [[0; BYTES]; LANES];
    for (row, vector) in rows.iter_mut().zip(l.transposed(vectors)) {
        l.store(vector, bytemuck::cast_mut(row));
    }
    rows
}

/// Bytes of some rows.
#[derive(Clone)]
pub(super) struct RowBytes<'a> {
    data: &'a [u8],
    /// From a row to the next.
    stride: usize,
    /// Those asked for, of each row.
    bytes: Range<usize>,
}

impl<'a> RowBytes<'a> {
    /// Those of one row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [u8] {
        &self.data[row * self.stride..][self.bytes.clone()]
    }
}
