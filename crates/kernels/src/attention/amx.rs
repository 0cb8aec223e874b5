//! Products of queries and keys, and of weights and values, on tiles: in f32, as three bf16 of each factor.

use super::block::{F32Products, QueryBlock, Tile, TileProducts};
use super::{KEY_TILE, KeySpan};
use crate::amx::{self, Amx, DEPTH, PARTS, ROWS, Rows, WIDTH_OF_PARTS};
use crate::lanes::Lanes;
use crate::line::{Line, NUMBERS};
use pulp::Simd;

/// Lines of a row of scores, and of [`WIDTH_OF_PARTS`] columns of values.
const LINES: usize = KEY_TILE / NUMBERS;
const _: () = assert!(KEY_TILE == WIDTH_OF_PARTS, "a tile of keys is as wide as a product");

/// The products of one query block.
pub(super) struct AmxProducts {
    amx: Amx,
    /// Parts of the queries, `[⌈entries / 16⌉, ⌈head_dim / 32⌉, PARTS, 16]` lines; `None` where one is not finite.
    queries: Option<Vec<Line>>,
    /// Parts of a tile's weights, `[⌈entries / 16⌉, KEY_TILE / 32, PARTS, 16]` lines.
    weights: Vec<Line>,
    /// Parts of a tile's keys, `[⌈keys / 16⌉, ⌈head_dim / 32⌉, PARTS, 16]` lines.
    keys: Vec<Line>,
    /// Pairs of parts of a tile's keys, `[⌈head_dim / 32⌉, PARTS, 16, KEY_TILE]`, or of 64 columns of its values,
    /// `[⌈keys / 32⌉, PARTS, 16, 64]`.
    pairs: Vec<Line>,
    /// A tile's keys or values in f32 where they are stored otherwise.
    widened: Vec<f32>,
    /// What multiplies numbers that are not finite.
    in_f32: F32Products,
}

impl AmxProducts {
    /// Whether it multiplies heads of this size.
    pub(super) fn has(head_dim: usize) -> bool {
        head_dim.is_multiple_of(WIDTH_OF_PARTS)
    }
}

impl TileProducts for AmxProducts {
    fn new(block: &QueryBlock<'_>) -> Self {
        let dim = block.shape.head_dim;
        let blocks = block.len().div_ceil(ROWS);
        let mut queries = vec![Line::default(); blocks * dim.div_ceil(DEPTH) * PARTS * ROWS];
        let amx = Amx::new();
        let in_f32 = F32Products::new(block);
        // SAFETY: a processor with tiles, which `Amx` makes sure of, has AVX-512 BF16.
        let all_finite = unsafe { amx::split_rows(in_f32.queries(), dim, &mut queries) };
        let weights = vec![Line::default(); blocks * KEY_TILE / DEPTH * PARTS * ROWS];
        let queries = all_finite.then_some(queries);
        Self { amx, queries, weights, keys: vec![], pairs: vec![], widened: vec![], in_f32 }
    }

    #[inline(always)]
    fn multiply_keys<S: Simd, L: Lanes>(
        &mut self,
        (simd, l): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        scores: &mut [Line],
    ) {
        let dim = block.shape.head_dim;
        let steps = dim.div_ceil(DEPTH);
        let keys = span.keys.widened(l, tile.elements(dim), &mut self.widened);
        self.keys.resize(tile.len.div_ceil(ROWS) * steps * PARTS * ROWS, Line::default());
        // SAFETY: a processor with tiles has AVX-512 BF16.
        let all_finite = unsafe { amx::split_rows(keys, dim, &mut self.keys) };
        let (Some(queries), true) = (&self.queries, all_finite) else {
            return self.in_f32.multiply_keys((simd, l), block, span, tile, scores);
        };
        // Scores of keys that are not there are hidden, whatever they are.
        self.pairs.resize(self.pairs.len().max(steps * PARTS * NUMBERS * LINES), Line::default());
        for (index, rows) in self.keys.as_chunks::<ROWS>().0.iter().enumerate() {
            let (line, part) = (index / (steps * PARTS), index % (steps * PARTS));
            let mut columns = [l.splat(0.0); ROWS];
            for (column, row) in columns.iter_mut().zip(rows) {
                *column = l.load(&row.0);
            }
            for (pair, column) in l.transposed(columns).into_iter().enumerate() {
                l.store(column, &mut self.pairs[(part * NUMBERS + pair) * LINES + line].0);
            }
        }
        let to = Rows { start: scores.as_mut_ptr().cast(), stride: KEY_TILE };
        let blocks = scores.len() / (ROWS * LINES);
        // SAFETY: there are so many blocks of rows of scores.
        unsafe { self.amx.multiply_parts_to((steps, steps), queries, &self.pairs, blocks, (None, to)) };
    }

    #[inline(always)]
    fn add_values<S: Simd, L: Lanes>(
        &mut self,
        (simd, l): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        weights: &[Line],
        output: &mut [Line],
    ) {
        let dim = block.shape.head_dim;
        let steps = tile.len.div_ceil(DEPTH);
        let lines = steps * PARTS * NUMBERS * LINES;
        self.pairs.resize(self.pairs.len().max(lines * dim / WIDTH_OF_PARTS), Line::default());
        let values = span.values.widened(l, tile.elements(dim), &mut self.widened);
        let groups = self.pairs[..lines * dim / WIDTH_OF_PARTS].chunks_exact_mut(lines);
        // SAFETY: a processor with tiles has AVX-512 BF16.
        let all_finite = unsafe {
            let mut finite = amx::split_rows(bytemuck::cast_slice(weights), KEY_TILE, &mut self.weights);
            for (group, pairs) in groups.enumerate() {
                finite &= amx::split_pairs_of_rows(values, dim, group * WIDTH_OF_PARTS, pairs);
            }
            finite
        };
        if !all_finite {
            return self.in_f32.add_values((simd, l), block, span, tile, weights, output);
        }
        let blocks = output.len() * NUMBERS / (ROWS * dim);
        for (group, pairs) in self.pairs.chunks_exact(lines).take(dim / WIDTH_OF_PARTS).enumerate() {
            let start = output[group * LINES..].as_mut_ptr().cast();
            let to = Rows { start, stride: dim };
            let of = KEY_TILE / DEPTH;
            // SAFETY: there are so many blocks of rows of the output, of which these are 64 columns.
            unsafe { self.amx.multiply_parts_to((steps, of), &self.weights, pairs, blocks, (Some(to), to)) };
        }
    }
}
