//! Attention over key ranges, with its statistics, in one pass and without a score matrix.
//!
//! Keys come as *spans*: contiguous key ranges, each belonging to one [`Segment`]. Policies, knockouts and statistics
//! all choose which spans there are.
//!
//! Online softmax with per-segment sums (DESIGN: masses and entropies without a matrix): with running maximum m,
//! ℓ_g = Σ e^{s−m} and t_g = Σ e^{s−m}(s−m) over the keys of segment g, mass_g = ℓ_g / Σℓ and
//! entropy_g = ln ℓ_g − t_g / ℓ_g.

#[cfg(target_arch = "x86_64")]
mod amx;
mod block;
pub mod cuda;
mod elements;
mod few;
mod received;
mod sparse;

pub use elements::{Elements, Q8Block};
pub use received::{Read, ReadLimits, Received, RowReads};
pub use sparse::{KeySet, SPARSE_BLOCK, SparseKeys, sparse_attention};

use crate::Instructions;
use block::{F32Products, Partial, QueryBlock, Tile, TileProducts};
use rayon::prelude::*;

/// Number of [`Segment`]s.
pub const SEGMENTS: usize = 3;

/// Keys handled at once.
const KEY_TILE: usize = 64;
/// Query rows times heads of a group handled at once.
const QUERY_TILE: usize = 192;
/// Up to this many query rows, keys are split among tasks, since there are too few query blocks for all threads; and products of
/// queries and keys may be summed in another order.
const FEW_ROWS: usize = 4;
/// Key tiles of one task when keys are split.
const TILES_PER_SPLIT: usize = 16;

/// The part of the sequence that a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Segment {
    /// Position 0.
    Bos = 0,
    /// Positions 1 … p−2.
    Prompt = 1,
    /// Positions ≥ p−1.
    Decode = 2,
}

/// Sizes of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads H.
    pub query_heads: usize,
    /// Key/value heads; each serves H / kv_heads query heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Scores are q·k times this.
    pub scale: f32,
    /// Scaled scores s become c·tanh(s/c).
    pub soft_cap: Option<f32>,
    /// A query at t sees keys t−window+1 … t; `None` sees all.
    pub window: Option<usize>,
    /// Keys at positions below this are seen outside the window, too (attention sinks, Xiao et al. 2023).
    pub sinks: usize,
}

impl AttentionShape {
    /// Whether a query at one position sees a key at another.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        key <= query && (key < self.sinks || self.window.is_none_or(|window| query - key < window))
    }
}

/// Consecutive query rows.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `[rows, query_heads, head_dim]`.
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row; the others follow it.
    pub first_position: usize,
}

/// A contiguous run of keys and values.
#[derive(Debug, Clone, Copy)]
pub struct KeySpan<'a> {
    /// The first KV head that has these keys; head `first_head` + i, index j at `i·head_stride + j·head_dim`.
    pub first_head: usize,
    /// Number of KV heads that have them; other heads do not see the span.
    pub heads: usize,
    /// Keys.
    pub keys: Elements<'a>,
    /// Values, laid out as the keys.
    pub values: Elements<'a>,
    /// Elements between two heads.
    pub head_stride: usize,
    /// Number of keys.
    pub len: usize,
    /// Position of the first key; the others follow it.
    pub first_position: usize,
    /// Where its mass is counted.
    pub segment: Segment,
}

impl KeySpan<'_> {
    /// Index of the first key of a KV head; `None` where the head does not have these keys.
    pub fn start_of(&self, kv_head: usize) -> Option<usize> {
        let index = kv_head.checked_sub(self.first_head).filter(|&index| index < self.heads)?;
        Some(index * self.head_stride)
    }
}

/// Mass and entropy of each query row and head: index `row · query_heads + head`.
#[derive(Debug, Clone, Default)]
pub struct AttentionStatistics {
    /// Share of attention on each segment; the shares of a row sum to 1, or are NaN where its softmax is.
    pub mass: Vec<[f32; SEGMENTS]>,
    /// Entropy of attention within each segment, nats; NaN where the segment has no mass.
    pub entropy: Vec<[f32; SEGMENTS]>,
}

/// softmax(q·kᵀ·scale)·v, `[rows, query_heads, head_dim]`, each query seeing the keys at or before its position.
///
/// NaN as PyTorch's softmax has it: a row yields NaN where a score is NaN or +∞, where all are −∞, and where it sees no key.
///
/// # Panics
/// If slices are shorter than the shape says, or heads do not divide evenly.
pub fn attention(shape: &AttentionShape, queries: &Queries<'_>, spans: &[KeySpan<'_>], output: &mut [f32]) {
    run(Instructions::best(), shape, queries, spans, output, None, None);
}

/// [`attention`], with the mass and entropy of each row, head and segment, and, where asked for, the attention that
/// each key position receives from these rows, with the positions that each row reads most.
///
/// # Panics
/// As [`attention`].
pub fn attention_with_statistics(
    shape: &AttentionShape,
    queries: &Queries<'_>,
    spans: &[KeySpan<'_>],
    output: &mut [f32],
    received: Option<&mut Received>,
) -> AttentionStatistics {
    let rows_and_heads = queries.rows * shape.query_heads;
    let mut statistics = AttentionStatistics {
        mass: vec![[0.0; SEGMENTS]; rows_and_heads],
        entropy: vec![[f32::NAN; SEGMENTS]; rows_and_heads],
    };
    run(Instructions::best(), shape, queries, spans, output, Some(&mut statistics), received);
    statistics
}

#[allow(clippy::too_many_arguments)]
fn run(
    instructions: Instructions,
    shape: &AttentionShape,
    queries: &Queries<'_>,
    spans: &[KeySpan<'_>],
    output: &mut [f32],
    statistics: Option<&mut AttentionStatistics>,
    received: Option<&mut Received>,
) {
    check(shape, queries, spans, output);
    #[cfg(target_arch = "x86_64")]
    if instructions.has_amx() && queries.rows > FEW_ROWS && amx::AmxProducts::has(shape.head_dim) {
        return run_by::<amx::AmxProducts>(instructions, shape, queries, spans, output, statistics, received);
    }
    run_by::<F32Products>(instructions, shape, queries, spans, output, statistics, received);
}

/// [`run`] with some products.
#[allow(clippy::too_many_arguments)]
fn run_by<P: TileProducts>(
    instructions: Instructions,
    shape: &AttentionShape,
    queries: &Queries<'_>,
    spans: &[KeySpan<'_>],
    output: &mut [f32],
    mut statistics: Option<&mut AttentionStatistics>,
    received: Option<&mut Received>,
) {
    let blocks = blocks(shape, queries);
    let with_statistics = statistics.is_some();
    let pass = |block: &QueryBlock<'_>, tiles: &[Tile]| {
        instructions.dispatch(block.pass::<P>(spans, tiles, with_statistics))
    };
    let finished: Vec<Partial> = blocks
        .par_iter()
        .map(|block| {
            let tiles = block.tiles(spans);
            let split = if queries.rows <= FEW_ROWS { TILES_PER_SPLIT } else { tiles.len() };
            let parts: Vec<Partial> =
                tiles.par_chunks(split.max(1)).map(|tiles| pass(block, tiles)).collect();
            Partial::merge(parts, block)
        })
        .collect();

    let group = shape.query_heads / shape.kv_heads;
    for (block, part) in blocks.iter().zip(&finished) {
        for index in 0..block.len() {
            let row = block.first_row + index / group;
            let slot = row * shape.query_heads + block.kv_head * group + index % group;
            part.write_output(index, shape.head_dim, &mut output[slot * shape.head_dim..]);
            if let Some(statistics) = statistics.as_deref_mut() {
                (statistics.mass[slot], statistics.entropy[slot]) = part.statistics(index);
            }
        }
    }
    if let Some(received) = received {
        received::add::<P>(instructions, (&blocks, &finished), spans, received);
    }
}

/// Query blocks in a fixed order: by KV head, then by row.
fn blocks<'a>(shape: &AttentionShape, queries: &Queries<'a>) -> Vec<QueryBlock<'a>> {
    let group = shape.query_heads / shape.kv_heads;
    let rows_per_block = (QUERY_TILE / group).max(1);
    let mut blocks = vec![];
    for kv_head in 0..shape.kv_heads {
        for first_row in (0..queries.rows).step_by(rows_per_block) {
            let rows = rows_per_block.min(queries.rows - first_row);
            blocks.push(QueryBlock { shape: *shape, queries: *queries, kv_head, first_row, rows });
        }
    }
    blocks
}

fn check(shape: &AttentionShape, queries: &Queries<'_>, spans: &[KeySpan<'_>], output: &[f32]) {
    assert!(shape.kv_heads > 0 && shape.query_heads.is_multiple_of(shape.kv_heads), "heads divide");
    let size = queries.rows * shape.query_heads * shape.head_dim;
    assert!(queries.data.len() >= size && output.len() >= size, "query and output sizes");
    for span in spans.iter().filter(|span| span.len > 0) {
        assert!(span.heads > 0 && span.first_head + span.heads <= shape.kv_heads, "heads of a key span");
        let needed = (span.heads - 1) * span.head_stride + span.len * shape.head_dim;
        assert!(span.keys.len() >= needed && span.values.len() >= needed, "key span size");
    }
}

#[cfg(test)]
mod tests;
