//! One block of query rows of one KV head against tiles of keys.

use super::few;
use super::{AttentionShape, FEW_ROWS, KEY_TILE, KeySpan, Queries, SEGMENTS};
use crate::elementwise::softly_capped;
use crate::exp::{exp, exp_nonpositive};
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes};
use crate::line::Line;
use crate::tile::{COLUMN_ALIGNMENT, accumulate, dot, transpose};
use pulp::Simd;
use std::marker::PhantomData;
use std::ops::Range;

/// From this many entries on, keys are transposed.
const TRANSPOSE_FROM: usize = 8;

/// Rows of scores, weights and outputs come in blocks of as many.
const ROWS: usize = 16;

/// Query rows × the heads of one group. Entry `i` is row `first_row + i / group`, head `kv_head·group + i % group`.
pub(super) struct QueryBlock<'a> {
    pub(super) shape: AttentionShape,
    pub(super) queries: Queries<'a>,
    pub(super) kv_head: usize,
    pub(super) first_row: usize,
    pub(super) rows: usize,
}

/// Keys `start .. start + len` of a span.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    span: usize,
    /// Index of the first element of the block's KV head.
    head_start: usize,
    start: usize,
    pub(super) len: usize,
    pub(super) first_position: usize,
}

impl Tile {
    /// Where its keys and values are in their span.
    pub(super) fn elements(self, dim: usize) -> Range<usize> {
        let start = self.head_start + self.start * dim;
        start..start + self.len * dim
    }

    /// The part of it at some positions; `None` where there is none.
    pub(super) fn within(self, positions: Range<usize>) -> Option<Self> {
        let from = positions.start.max(self.first_position);
        let to = positions.end.min(self.first_position + self.len);
        (from < to).then(|| Self {
            start: self.start + from - self.first_position,
            len: to - from,
            first_position: from,
            ..self
        })
    }
}

impl<'a> QueryBlock<'a> {
    fn group(&self) -> usize {
        self.shape.query_heads / self.shape.kv_heads
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.rows * self.group()
    }

    /// Whether keys and values meet the entries in registers: few entries, of whole vectors.
    #[inline(always)]
    fn is_few<L: Lanes>(&self) -> bool {
        let few = self.queries.rows <= FEW_ROWS && self.len() <= few::most::<L>();
        few && self.shape.head_dim.is_multiple_of(LANES)
    }

    /// Whether keys are transposed. Always with more than a few rows, so that a row of a chunk has the same bits wherever it stands there
    /// and however many others there are.
    fn is_transposed(&self) -> bool {
        self.queries.rows > FEW_ROWS || self.len() >= TRANSPOSE_FROM
    }

    /// The row of an entry and its query head.
    pub(super) fn row_and_head(&self, entry: usize) -> (usize, usize) {
        let group = self.group();
        (self.first_row + entry / group, self.kv_head * group + entry % group)
    }

    fn position(&self, entry: usize) -> usize {
        self.queries.first_position + self.first_row + entry / self.group()
    }

    /// Columns of the output accumulator: head_dim, padded.
    pub(super) fn padded_dim(&self) -> usize {
        self.shape.head_dim.next_multiple_of(COLUMN_ALIGNMENT)
    }

    /// Zeros for a row of so many columns of each entry, whole lines each, and of rows that fill the last block of [`ROWS`].
    pub(super) fn lines(&self, columns: usize) -> Vec<Line> {
        vec![Line::default(); self.len().next_multiple_of(ROWS) * columns / LANES]
    }

    /// The key tiles that at least one row of the block sees, in order.
    pub(super) fn tiles(&self, spans: &[KeySpan<'_>]) -> Vec<Tile> {
        let (first, last) = (self.position(0), self.position(self.len() - 1));
        let mut tiles = vec![];
        for (index, span) in spans.iter().enumerate() {
            let Some(head_start) = span.start_of(self.kv_head) else { continue };
            for start in (0..span.len).step_by(KEY_TILE) {
                let len = KEY_TILE.min(span.len - start);
                let first_position = span.first_position + start;
                let past_window =
                    self.shape.window.is_some_and(|window| first_position + len + window <= first + 1);
                let has_sinks = first_position < self.shape.sinks;
                if first_position <= last && (has_sinks || !past_window) {
                    tiles.push(Tile { span: index, head_start, start, len, first_position });
                }
            }
        }
        tiles
    }

    /// The columns of a tile that an entry does not see: those between the sinks and its window, and those after its position.
    #[inline(always)]
    pub(super) fn hidden(&self, entry: usize, tile: Tile) -> [Range<usize>; 2] {
        let column = |position: usize| position.saturating_sub(tile.first_position).min(tile.len);
        let next = self.position(entry) + 1;
        let window_start = self.shape.window.map_or(0, |window| column(next.saturating_sub(window)));
        let sinks = column(self.shape.sinks).min(window_start);
        [sinks..window_start, column(next)..KEY_TILE]
    }

    /// The queries, scaled, entry by entry: `[len, head_dim]`.
    pub(super) fn scaled_queries(&self) -> Vec<f32> {
        let (dim, group) = (self.shape.head_dim, self.group());
        let mut scaled = Vec::with_capacity(self.len() * dim);
        for row in self.first_row..self.first_row + self.rows {
            let start = (row * self.shape.query_heads + self.kv_head * group) * dim;
            scaled.extend(self.queries.data[start..start + group * dim].iter().map(|x| x * self.shape.scale));
        }
        scaled
    }

    /// One pass over some tiles.
    pub(super) fn pass<'b, P: TileProducts>(
        &'b self,
        spans: &'b [KeySpan<'b>],
        tiles: &'b [Tile],
        with_statistics: bool,
    ) -> TilePass<'b, P> {
        TilePass { block: self, spans, tiles, with_statistics, products: PhantomData }
    }

    /// Scores of all entries against a tile, `[len, KEY_TILE]`, in `scores`, whole blocks of rows; −∞ where hidden. Products of the same kind
    /// give the same bits each time.
    #[inline(always)]
    pub(super) fn score<'s, S: Simd, L: Lanes, P: TileProducts>(
        &self,
        with: (S, L),
        products: &mut P,
        spans: &[KeySpan<'_>],
        tile: Tile,
        scores: &'s mut [Line],
    ) -> &'s mut [f32] {
        products.multiply_keys(with, self, &spans[tile.span], tile, scores);
        let scores = &mut bytemuck::cast_slice_mut(scores)[..self.len() * KEY_TILE];
        self.finish(tile, scores);
        scores
    }

    /// q·k of all entries and the keys of a tile.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn multiply<S: Simd, L: Lanes>(
        &self,
        simd: S,
        lanes: L,
        queries: &[f32],
        span: &KeySpan<'_>,
        tile: Tile,
        buffers: &mut Buffers,
        scores: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let Buffers { widened, transposed } = buffers;
        let range = tile.elements(dim);
        if self.is_few::<L>() {
            few::scores(lanes, queries, span.keys.within(range), dim, scores);
        } else if self.is_transposed() {
            let keys = span.keys.widened(lanes, range, widened);
            transposed.resize(dim * KEY_TILE, 0.0);
            transpose(keys, tile.len, dim, transposed, KEY_TILE);
            scores.fill(0.0);
            let shape = (self.len(), dim, KEY_TILE);
            accumulate(simd, shape, queries, dim, transposed, KEY_TILE, scores, KEY_TILE);
        } else {
            let keys = span.keys.widened(lanes, range, widened);
            for (row, query) in scores.chunks_exact_mut(KEY_TILE).zip(queries.chunks_exact(dim)) {
                for (score, key) in row.iter_mut().zip(keys.chunks_exact(dim)) {
                    *score = dot(simd, query, key);
                }
            }
        }
    }

    /// Scores of products: capped, and −∞ where hidden.
    #[inline(always)]
    fn finish(&self, tile: Tile, scores: &mut [f32]) {
        if let Some(cap) = self.shape.soft_cap {
            scores.iter_mut().for_each(|score| *score = softly_capped(*score, cap));
        }
        for (entry, row) in scores.chunks_exact_mut(KEY_TILE).enumerate() {
            for hidden in self.hidden(entry, tile) {
                row[hidden].fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// A tile's keys or values in f32 where they are stored otherwise, and its keys transposed.
#[derive(Default)]
struct Buffers {
    widened: Vec<f32>,
    /// `[head_dim, KEY_TILE]`.
    transposed: Vec<f32>,
}

/// The online softmax's state after some tiles; one entry per block entry.
pub(super) struct Partial {
    pub(super) max: Vec<f32>,
    /// ℓ_g of each segment.
    sum: Vec<[f64; SEGMENTS]>,
    /// t_g of each segment.
    weighted: Vec<[f64; SEGMENTS]>,
    /// Σ e^{s−m} v, `[len, padded head_dim]`; rows are whole blocks of [`ROWS`].
    output: Vec<Line>,
    padded_dim: usize,
}

impl Partial {
    fn empty(block: &QueryBlock<'_>) -> Self {
        Self {
            max: vec![f32::NEG_INFINITY; block.len()],
            sum: vec![[0.0; SEGMENTS]; block.len()],
            weighted: vec![[0.0; SEGMENTS]; block.len()],
            output: block.lines(block.padded_dim()),
            padded_dim: block.padded_dim(),
        }
    }

    fn output_of(&self, entry: usize) -> &[f32] {
        &bytemuck::cast_slice(&self.output)[entry * self.padded_dim..][..self.padded_dim]
    }

    fn output_row(&mut self, entry: usize) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.output)[entry * self.padded_dim..][..self.padded_dim]
    }

    /// Rescales an entry to a maximum at least as large as its own.
    #[inline(always)]
    fn raise_max(&mut self, entry: usize, max: f32) {
        let old = self.max[entry];
        if max <= old {
            return;
        }
        self.max[entry] = max;
        if old == f32::NEG_INFINITY {
            return;
        }
        let change = old - max;
        let factor = exp_nonpositive(change);
        for x in self.output_row(entry) {
            *x *= factor;
        }
        let (factor, change) = (f64::from(factor), f64::from(change));
        for (sum, weighted) in self.sum[entry].iter_mut().zip(&mut self.weighted[entry]) {
            // Σ f·e^{s−m}(s − m + change), with the old m.
            *weighted = factor * (*weighted + *sum * change);
            *sum *= factor;
        }
    }

    /// Merges the states of disjoint sets of keys, in order.
    pub(super) fn merge(parts: Vec<Self>, block: &QueryBlock<'_>) -> Self {
        let mut parts = parts.into_iter();
        let mut merged = parts.next().unwrap_or_else(|| Self::empty(block));
        for mut part in parts {
            for entry in 0..merged.max.len() {
                merged.raise_max(entry, part.max[entry]);
                part.raise_max(entry, merged.max[entry]);
                for segment in 0..SEGMENTS {
                    merged.sum[entry][segment] += part.sum[entry][segment];
                    merged.weighted[entry][segment] += part.weighted[entry][segment];
                }
                for (x, y) in merged.output_row(entry).iter_mut().zip(part.output_of(entry)) {
                    *x += y;
                }
            }
        }
        merged
    }

    /// Σℓ of an entry.
    pub(super) fn total(&self, entry: usize) -> f64 {
        self.sum[entry].iter().sum()
    }

    /// The attention output of an entry; NaN where a score is NaN or +∞, or all are −∞, as softmax has it.
    pub(super) fn write_output(&self, entry: usize, dim: usize, output: &mut [f32]) {
        let scale = (1.0 / self.total(entry)) as f32;
        for (out, x) in output[..dim].iter_mut().zip(self.output_of(entry)) {
            *out = x * scale;
        }
    }

    /// Mass and entropy of an entry by segment.
    pub(super) fn statistics(&self, entry: usize) -> ([f32; SEGMENTS], [f32; SEGMENTS]) {
        let total = self.total(entry);
        let mut mass = [0.0; SEGMENTS];
        let mut entropy = [f32::NAN; SEGMENTS];
        for segment in 0..SEGMENTS {
            let sum = self.sum[entry][segment];
            mass[segment] = (sum / total) as f32;
            if sum > 0.0 && !total.is_nan() {
                // Rounding can leave −1e-8 for a single key.
                entropy[segment] = (sum.ln() - self.weighted[entry][segment] / sum).max(0.0) as f32;
            }
        }
        (mass, entropy)
    }
}

/// What multiplies queries with keys, and weights with values. Scores and weights are `[len, KEY_TILE]`, the output
/// `[len, padded head_dim]`, both of whole blocks of [`ROWS`] rows.
pub(super) trait TileProducts {
    fn new(block: &QueryBlock<'_>) -> Self;

    /// q·k of all entries and the keys of a tile.
    fn multiply_keys<S: Simd, L: Lanes>(
        &mut self,
        with: (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        scores: &mut [Line],
    );

    /// Adds the products of weights with the values of a tile.
    fn add_values<S: Simd, L: Lanes>(
        &mut self,
        with: (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        weights: &[Line],
        output: &mut [Line],
    );
}

/// Products in f32.
pub(super) struct F32Products {
    queries: Vec<f32>,
    buffers: Buffers,
    /// Values of a tile, `[KEY_TILE, padded head_dim]`, where a head is not as long.
    padded_values: Vec<f32>,
}

impl F32Products {
    /// Scaled queries, `[len, head_dim]`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn queries(&self) -> &[f32] {
        &self.queries
    }
}

impl TileProducts for F32Products {
    fn new(block: &QueryBlock<'_>) -> Self {
        Self { queries: block.scaled_queries(), buffers: Buffers::default(), padded_values: vec![] }
    }

    #[inline(always)]
    fn multiply_keys<S: Simd, L: Lanes>(
        &mut self,
        (simd, lanes): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        scores: &mut [Line],
    ) {
        let scores = &mut bytemuck::cast_slice_mut(scores)[..block.len() * KEY_TILE];
        block.multiply(simd, lanes, &self.queries, span, tile, &mut self.buffers, scores);
    }

    #[inline(always)]
    fn add_values<S: Simd, L: Lanes>(
        &mut self,
        (simd, lanes): (S, L),
        block: &QueryBlock<'_>,
        span: &KeySpan<'_>,
        tile: Tile,
        weights: &[Line],
        output: &mut [Line],
    ) {
        let (dim, padded) = (block.shape.head_dim, block.padded_dim());
        let weights = &bytemuck::cast_slice(weights)[..block.len() * KEY_TILE];
        let output = bytemuck::cast_slice_mut(output);
        if block.is_few::<L>() {
            return few::accumulate(
                lanes,
                weights,
                span.values.within(tile.elements(dim)),
                dim,
                output,
                padded,
            );
        }
        let mut values = span.values.widened(lanes, tile.elements(dim), &mut self.buffers.widened);
        if padded != dim {
            self.padded_values.resize(KEY_TILE * padded, 0.0);
            let rows = self.padded_values.chunks_exact_mut(padded).zip(values.chunks_exact(dim));
            rows.for_each(|(to, from)| to[..dim].copy_from_slice(from));
            values = &self.padded_values[..tile.len * padded];
        }
        accumulate(simd, (block.len(), tile.len, padded), weights, KEY_TILE, values, padded, output, padded);
    }
}

pub(super) struct TilePass<'a, P> {
    block: &'a QueryBlock<'a>,
    spans: &'a [KeySpan<'a>],
    tiles: &'a [Tile],
    with_statistics: bool,
    products: PhantomData<P>,
}

impl<P: TileProducts> Operation for TilePass<'_, P> {
    type Output = Partial;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) -> Partial {
        let Self { block, spans, tiles, with_statistics, .. } = self;
        let mut products = P::new(block);
        let mut state = Partial::empty(block);
        let mut scores = block.lines(KEY_TILE);
        for &tile in tiles {
            let span = &spans[tile.span];
            let rows = block.score((simd, lanes), &mut products, spans, tile, &mut scores);
            let segment = span.segment as usize;
            // Keys far apart come in short tiles.
            let columns = tile.len.next_multiple_of(LANES);
            for (entry, row) in rows.chunks_exact_mut(KEY_TILE).enumerate() {
                let (row, hidden) = row.split_at_mut(columns);
                hidden.fill(0.0);
                let max = largest(lanes, row);
                if max == f32::NEG_INFINITY {
                    if row.iter().any(|score| score.is_nan()) {
                        state.sum[entry][segment] = f64::NAN;
                    }
                    row.fill(0.0);
                    continue;
                }
                state.raise_max(entry, max);
                if with_statistics {
                    let (sum, weighted) = exponentiate::<L, true>(lanes, row, state.max[entry]);
                    state.sum[entry][segment] += f64::from(sum);
                    state.weighted[entry][segment] += f64::from(weighted);
                } else {
                    let (sum, _) = exponentiate::<L, false>(lanes, row, state.max[entry]);
                    state.sum[entry][segment] += f64::from(sum);
                }
            }
            products.add_values((simd, lanes), block, span, tile, &scores, &mut state.output);
        }
        state
    }
}

/// The largest score; −∞ where all are NaN or −∞. Scores are whole vectors.
#[inline(always)]
fn largest<L: Lanes>(l: L, row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in row.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    l.largest(l.load(&lanes))
}

/// Replaces scores by e^{s−max}; returns their sum, and Σ e^{s−max}(s−max) where asked for.
#[inline(always)]
fn exponentiate<L: Lanes, const WEIGHTED: bool>(l: L, row: &mut [f32], max: f32) -> (f32, f32) {
    let (mut sum, mut weighted) = ([0f32; LANES], [0f32; LANES]);
    let (chunks, _) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            // Keeps 0·(−∞) out of the weighted sum, but NaN in it.
            let shifted = chunk[lane] - max;
            let shifted = if shifted < -100.0 { -100.0 } else { shifted };
            let p = if L::FUSED { exp::<true>(shifted) } else { exp::<false>(shifted) };
            chunk[lane] = p;
            sum[lane] += p;
            if WEIGHTED {
                weighted[lane] += p * shifted;
            }
        }
    }
    (l.sum(l.load(&sum)), if WEIGHTED { l.sum(l.load(&weighted)) } else { 0.0 })
}
