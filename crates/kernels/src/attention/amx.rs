//! Products of queries and keys, and of weights and values, in bf16 on tiles, summed in f32. Softmax stays in f32.

use super::block::{QueryBlock, Tile, TileProducts};
use super::{KEY_TILE, KeySpan};
use crate::amx::{self, Amx, DEPTH, ROWS};
use crate::lanes::Lanes;
use crate::line::{Line, NUMBERS};
use pulp::Simd;

/// Lines of a row of scores.
const LINES: usize = KEY_TILE / NUMBERS;

/// The products of one query block.
pub(super) struct AmxProducts {
    amx: Amx,
    /// Queries, `[⌈entries / 16⌉, ⌈head_dim / 32⌉, 16]` lines.
    queries: Vec<Line>,
    /// Weights of one tile, `[⌈entries / 16⌉, KEY_TILE / 32, 16]` lines.
    weights: Vec<Line>,
    /// A tile's keys, `[KEY_TILE / 16, ⌈head_dim / 32⌉, 16]` lines.
    keys: Vec<Line>,
    /// Pairs of a tile's keys, `[16·⌈head_dim / 32⌉, KEY_TILE]`, or of its values, `[KEY_TILE / 2, padded head_dim]`.
    pairs: Vec<Line>,
    /// A tile's keys or values in f32 where they are stored otherwise.
    widened: Vec<f32>,
}

impl TileProducts for AmxProducts {
    fn new(block: &QueryBlock<'_>) -> Self {
        let dim = block.shape.head_dim;
        let blocks = block.len().div_ceil(ROWS);
        let mut queries = vec![Line::default(); blocks * dim.div_ceil(DEPTH) * ROWS];
        let amx = Amx::new();
        // SAFETY: a processor with tiles, which `Amx` makes sure of, has AVX-512 BF16.
        unsafe { amx::round_rows(&block.scaled_queries(), dim, &mut queries) };
        let weights = vec![Line::default(); blocks * KEY_TILE / DEPTH * ROWS];
        Self { amx, queries, weights, keys: vec![], pairs: vec![], widened: vec![] }
    }

    #[inline(always)]
    fn multiply_keys<S: Simd, L: Lanes>(
        &mut self,
        (_, l): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        scores: &mut [Line],
    ) {
        let dim = block.shape.head_dim;
        let steps = dim.div_ceil(DEPTH);
        let keys = span.keys.widened(l, tile.elements(dim), &mut self.widened);
        self.keys.resize(LINES * steps * ROWS, Line::default());
        let (there, missing) = self.keys.split_at_mut(tile.len.div_ceil(ROWS) * steps * ROWS);
        // SAFETY: a processor with tiles has AVX-512 BF16.
        unsafe { amx::round_rows(keys, dim, there) };
        missing.fill(Line::default());
        self.pairs.resize(steps * NUMBERS * LINES, Line::default());
        for (index, rows) in self.keys.as_chunks::<ROWS>().0.iter().enumerate() {
            let (line, step) = (index / steps, index % steps);
            let mut columns = [l.splat(0.0); ROWS];
            for (column, row) in columns.iter_mut().zip(rows) {
                *column = l.load(&row.0);
            }
            for (pair, column) in l.transposed(columns).into_iter().enumerate() {
                l.store(column, &mut self.pairs[(step * NUMBERS + pair) * LINES + line].0);
            }
        }
        self.amx.multiply::<false>(KEY_TILE, (steps, steps), &self.queries, &self.pairs, scores);
    }

    #[inline(always)]
    fn add_values<S: Simd, L: Lanes>(
        &mut self,
        (_, l): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        weights: &[Line],
        output: &mut [Line],
    ) {
        let (dim, padded) = (block.shape.head_dim, block.padded_dim());
        let values = span.values.widened(l, tile.elements(dim), &mut self.widened);
        let steps = tile.len.div_ceil(DEPTH);
        let lines = steps * NUMBERS * padded / NUMBERS;
        self.pairs.resize(self.pairs.len().max(lines), Line::default());
        let pairs = &mut self.pairs[..lines];
        // SAFETY: a processor with tiles has AVX-512 BF16.
        unsafe {
            amx::round_rows(bytemuck::cast_slice(weights), KEY_TILE, &mut self.weights);
            amx::pairs_of_rows(values, dim, pairs, padded);
        }
        self.amx.multiply::<true>(padded, (steps, KEY_TILE / DEPTH), &self.weights, pairs, output);
    }
}
