//! One block of query rows of one KV head against tiles of keys.

use super::few;
use super::{AttentionShape, FEW_ROWS, KEY_TILE, KeySpan, Queries, SEGMENTS};
use crate::elementwise::softly_capped;
use crate::exp::exp_nonpositive;
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes};
use crate::rows::row_max;
use crate::tile::{COLUMN_ALIGNMENT, accumulate, dot, transpose};
use pulp::Simd;
use std::ops::Range;

/// From this many entries on, keys are transposed.
const TRANSPOSE_FROM: usize = 8;

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
    fn padded_dim(&self) -> usize {
        self.shape.head_dim.next_multiple_of(COLUMN_ALIGNMENT)
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
    pub(super) fn pass<'b>(
        &'b self,
        spans: &'b [KeySpan<'b>],
        tiles: &'b [Tile],
        with_statistics: bool,
    ) -> TilePass<'b> {
        TilePass { block: self, spans, tiles, with_statistics }
    }

    /// Scores of all entries against a tile into `scores[len, KEY_TILE]`; −∞ where hidden.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn score<S: Simd, L: Lanes>(
        &self,
        simd: S,
        lanes: L,
        queries: &[f32],
        spans: &[KeySpan<'_>],
        tile: Tile,
        buffers: &mut Buffers,
        scores: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let span = &spans[tile.span];
        let start = tile.head_start + tile.start * dim;
        let Buffers { widened, transposed } = buffers;
        let range = start..start + tile.len * dim;
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
pub(super) struct Buffers {
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
    /// Σ e^{s−m} v, `[len, padded head_dim]`.
    output: Vec<f32>,
    padded_dim: usize,
}

impl Partial {
    fn empty(block: &QueryBlock<'_>) -> Self {
        Self {
            max: vec![f32::NEG_INFINITY; block.len()],
            sum: vec![[0.0; SEGMENTS]; block.len()],
            weighted: vec![[0.0; SEGMENTS]; block.len()],
            output: vec![0.0; block.len() * block.padded_dim()],
            padded_dim: block.padded_dim(),
        }
    }

    fn output_row(&mut self, entry: usize) -> &mut [f32] {
        &mut self.output[entry * self.padded_dim..][..self.padded_dim]
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
                let other = &part.output[entry * part.padded_dim..][..part.padded_dim];
                for (x, y) in merged.output_row(entry).iter_mut().zip(other) {
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
        let row = &self.output[entry * self.padded_dim..][..dim];
        for (out, x) in output.iter_mut().zip(row) {
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

pub(super) struct TilePass<'a> {
    block: &'a QueryBlock<'a>,
    spans: &'a [KeySpan<'a>],
    tiles: &'a [Tile],
    with_statistics: bool,
}

impl Operation for TilePass<'_> {
    type Output = Partial;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, simd: S, lanes: L) -> Partial {
        let Self { block, spans, tiles, with_statistics } = self;
        let (dim, padded) = (block.shape.head_dim, block.padded_dim());
        let queries = block.scaled_queries();
        let mut state = Partial::empty(block);
        let mut buffers = Buffers::default();
        let mut scores = vec![0.0; block.len() * KEY_TILE];
        let mut padded_values =
            vec![0.0; if padded == dim || block.is_few::<L>() { 0 } else { KEY_TILE * padded }];
        for &tile in tiles {
            block.score(simd, lanes, &queries, spans, tile, &mut buffers, &mut scores);
            let span = &spans[tile.span];
            let segment = span.segment as usize;
            // Keys far apart come in short tiles.
            let columns = tile.len.next_multiple_of(LANES);
            for (entry, row) in scores.chunks_exact_mut(KEY_TILE).enumerate() {
                let row = &mut row[..columns];
                let max = row_max(row);
                if max == f32::NEG_INFINITY {
                    if row.iter().any(|score| score.is_nan()) {
                        state.sum[entry][segment] = f64::NAN;
                    }
                    row.fill(0.0);
                    continue;
                }
                state.raise_max(entry, max);
                if with_statistics {
                    let (sum, weighted) = exponentiate::<true>(row, state.max[entry]);
                    state.sum[entry][segment] += f64::from(sum);
                    state.weighted[entry][segment] += f64::from(weighted);
                } else {
                    let (sum, _) = exponentiate::<false>(row, state.max[entry]);
                    state.sum[entry][segment] += f64::from(sum);
                }
            }
            let start = tile.head_start + tile.start * dim;
            if block.is_few::<L>() {
                let values = span.values.within(start..start + tile.len * dim);
                few::accumulate(lanes, &scores, values, dim, &mut state.output, padded);
                continue;
            }
            let values = span.values.widened(lanes, start..start + tile.len * dim, &mut buffers.widened);
            let values = if padded == dim {
                values
            } else {
                for (to, from) in padded_values.chunks_exact_mut(padded).zip(values.chunks_exact(dim)) {
                    to[..dim].copy_from_slice(from);
                }
                &padded_values[..tile.len * padded]
            };
            let shape = (block.len(), tile.len, padded);
            accumulate(simd, shape, &scores, KEY_TILE, values, padded, &mut state.output, padded);
        }
        state
    }
}

/// Replaces scores by e^{s−max}; returns their sum, and Σ e^{s−max}(s−max) where asked for.
#[inline(always)]
fn exponentiate<const WEIGHTED: bool>(row: &mut [f32], max: f32) -> (f32, f32) {
    let (mut sum, mut weighted) = ([0f32; LANES], [0f32; LANES]);
    let (chunks, _) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            // Keeps 0·(−∞) out of the weighted sum, but NaN in it.
            let shifted = chunk[lane] - max;
            let shifted = if shifted < -100.0 { -100.0 } else { shifted };
            let p = exp_nonpositive(shifted);
            chunk[lane] = p;
            sum[lane] += p;
            if WEIGHTED {
                weighted[lane] += p * shifted;
            }
        }
    }
    (sum.iter().sum(), weighted.iter().sum())
}
