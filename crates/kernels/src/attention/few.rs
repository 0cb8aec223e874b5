//! Scores and weighted values of a few queries, as decode rows have them: keys and values go from where they are stored straight into
//! registers, and meet up to four queries there.
//!
//! A product of a query and a key has the same bits wherever the two stand.

use super::{Elements, KEY_TILE, Q8Block};
use crate::ahead::prefetch;
use crate::lanes::{LANES, Lanes};

/// Keys whose products are summed over lanes together.
const KEYS: usize = 4;

/// Keys and values are asked for so many of them ahead: the processor itself looks ahead only within a page of memory.
const AHEAD: usize = 32;

/// Numbers as they are stored, a few vectors in each.
trait Stored: Copy {
    /// How many vectors.
    const VECTORS: usize;

    /// One of those of consecutive numbers.
    fn load<L: Lanes>(l: L, x: &[Self], vector: usize) -> L::Floats;
}

impl Stored for [f32; LANES] {
    const VECTORS: usize = 1;

    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self], vector: usize) -> L::Floats {
        l.load(&x[vector])
    }
}

/// The bits of f16.
impl Stored for [u16; LANES] {
    const VECTORS: usize = 1;

    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self], vector: usize) -> L::Floats {
        l.widen_f16(bytemuck::cast_ref::<[u16; LANES], [u8; 2 * LANES]>(&x[vector]))
    }
}

impl Stored for Q8Block {
    const VECTORS: usize = Self::ELEMENTS / LANES;

    #[inline(always)]
    fn load<L: Lanes>(l: L, x: &[Self], vector: usize) -> L::Floats {
        x[vector / Self::VECTORS].vector(l, vector % Self::VECTORS)
    }
}

/// Most entries of a block for which this is faster than transposed keys.
#[inline(always)]
pub(super) fn most<L: Lanes>() -> usize {
    if has_room::<L>() { 32 } else { 7 }
}

/// Queries that meet a key while it is in registers.
#[inline(always)]
fn at_once<L: Lanes>() -> usize {
    if L::REGISTERS >= 8 { 4 } else { 1 }
}

/// Whether registers have room for the sums of four queries with four keys.
#[inline(always)]
fn has_room<L: Lanes>() -> bool {
    L::REGISTERS >= 24
}

/// q·k of queries `[n, dim]` and keys `[k, dim]` into `scores[n, KEY_TILE]`, `dim` a multiple of [`LANES`].
#[inline(always)]
pub(super) fn scores<L: Lanes>(l: L, queries: &[f32], keys: Elements<'_>, dim: usize, scores: &mut [f32]) {
    match keys {
        Elements::F32(keys) => scores_of(l, queries, keys.as_chunks::<LANES>().0, dim, scores),
        Elements::F16(keys) => scores_of(l, queries, keys.as_chunks::<LANES>().0, dim, scores),
        Elements::Q8(keys) => scores_of(l, queries, keys, dim, scores),
    }
}

#[inline(always)]
fn scores_of<L: Lanes, T: Stored>(l: L, queries: &[f32], keys: &[T], dim: usize, scores: &mut [f32]) {
    let mut scores = scores.chunks_mut(at_once::<L>() * KEY_TILE);
    for queries in queries.chunks(at_once::<L>() * dim) {
        let Some(scores) = scores.next() else { return };
        match queries.len() / dim {
            1 => scores_of_rows::<L, T, 1, KEYS>(l, queries, keys, dim, scores),
            2 if has_room::<L>() => scores_of_rows::<L, T, 2, KEYS>(l, queries, keys, dim, scores),
            2 => scores_of_rows::<L, T, 2, 2>(l, queries, keys, dim, scores),
            3 if has_room::<L>() => scores_of_rows::<L, T, 3, KEYS>(l, queries, keys, dim, scores),
            3 => scores_of_rows::<L, T, 3, 1>(l, queries, keys, dim, scores),
            _ if has_room::<L>() => scores_of_rows::<L, T, 4, KEYS>(l, queries, keys, dim, scores),
            _ => scores_of_rows::<L, T, 4, 1>(l, queries, keys, dim, scores),
        }
    }
}

/// M queries, K keys at a time.
// Queries and keys have the same index.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn scores_of_rows<L: Lanes, T: Stored, const M: usize, const K: usize>(
    l: L,
    queries: &[f32],
    keys: &[T],
    dim: usize,
    scores: &mut [f32],
) {
    let vectors = dim / LANES;
    let (queries, _) = queries.as_chunks::<LANES>();
    let queries: [&[[f32; LANES]]; M] = std::array::from_fn(|row| &queries[row * vectors..][..vectors]);
    let units = vectors / T::VECTORS;
    for (index, keys) in keys.chunks(KEYS * units).enumerate() {
        let count = keys.len() / units;
        prefetch::<false, T>(keys.as_ptr().wrapping_add(AHEAD * units), size_of_val(keys));
        // Where fewer are left, the last one stands in for the others.
        let keys: [&[T]; KEYS] = std::array::from_fn(|key| &keys[key.min(count - 1) * units..][..units]);
        let mut sums = [[l.splat(0.0); KEYS]; M];
        for first in (0..KEYS).step_by(K) {
            let mut of_these = [[l.splat(0.0); K]; M];
            for at in 0..vectors {
                let mut of_keys = [l.splat(0.0); K];
                for key in 0..K {
                    of_keys[key] = T::load(l, keys[first + key], at);
                }
                for row in 0..M {
                    let query = l.load(&queries[row][at]);
                    for key in 0..K {
                        of_these[row][key] = l.multiply_add(query, of_keys[key], of_these[row][key]);
                    }
                }
            }
            for row in 0..M {
                sums[row][first..first + K].copy_from_slice(&of_these[row]);
            }
        }
        for row in 0..M {
            let products = l.sums(sums[row]);
            scores[row * KEY_TILE + KEYS * index..][..count].copy_from_slice(&products[..count]);
        }
    }
}

/// `output[n, dim] += weights[n, k] · values[k, dim]`, rows of weights [`KEY_TILE`] and of outputs `stride` elements apart, `dim` a multiple
/// of [`LANES`].
#[inline(always)]
pub(super) fn accumulate<L: Lanes>(
    l: L,
    weights: &[f32],
    values: Elements<'_>,
    dim: usize,
    output: &mut [f32],
    stride: usize,
) {
    match values {
        Elements::F32(values) => {
            accumulate_of(l, weights, values.as_chunks::<LANES>().0, dim, output, stride);
        }
        Elements::F16(values) => {
            accumulate_of(l, weights, values.as_chunks::<LANES>().0, dim, output, stride);
        }
        Elements::Q8(values) => accumulate_of(l, weights, values, dim, output, stride),
    }
}

#[inline(always)]
fn accumulate_of<L: Lanes, T: Stored>(
    l: L,
    weights: &[f32],
    values: &[T],
    dim: usize,
    output: &mut [f32],
    stride: usize,
) {
    let mut output = output.chunks_mut(at_once::<L>() * stride);
    for weights in weights.chunks(at_once::<L>() * KEY_TILE) {
        let Some(output) = output.next() else { return };
        match weights.len() / KEY_TILE {
            1 => accumulate_rows::<L, T, 1, 4>(l, weights, values, dim, output, stride),
            2 if has_room::<L>() => accumulate_rows::<L, T, 2, 4>(l, weights, values, dim, output, stride),
            2 => accumulate_rows::<L, T, 2, 2>(l, weights, values, dim, output, stride),
            3 if has_room::<L>() => accumulate_rows::<L, T, 3, 4>(l, weights, values, dim, output, stride),
            3 => accumulate_rows::<L, T, 3, 2>(l, weights, values, dim, output, stride),
            _ if has_room::<L>() => accumulate_rows::<L, T, 4, 4>(l, weights, values, dim, output, stride),
            _ => accumulate_rows::<L, T, 4, 1>(l, weights, values, dim, output, stride),
        }
    }
}

/// M rows of weights, V vectors of columns at a time.
#[inline(always)]
fn accumulate_rows<L: Lanes, T: Stored, const M: usize, const V: usize>(
    l: L,
    weights: &[f32],
    values: &[T],
    dim: usize,
    output: &mut [f32],
    stride: usize,
) {
    let mut column = 0;
    while column + V * LANES <= dim {
        accumulate_columns::<L, T, M, V>(l, weights, values, dim, column, output, stride);
        column += V * LANES;
    }
    while column < dim {
        accumulate_columns::<L, T, M, 1>(l, weights, values, dim, column, output, stride);
        column += LANES;
    }
}

/// V vectors of columns, whose sums stay in registers.
// A vector of values has an index of its own in each row's sums.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn accumulate_columns<L: Lanes, T: Stored, const M: usize, const V: usize>(
    l: L,
    weights: &[f32],
    values: &[T],
    dim: usize,
    column: usize,
    output: &mut [f32],
    stride: usize,
) {
    let mut sums = [[l.splat(0.0); V]; M];
    let at = column / LANES;
    for (key, value) in values.chunks_exact(dim / LANES / T::VECTORS).enumerate() {
        let next = value[at / T::VECTORS..].as_ptr().wrapping_add(AHEAD * value.len());
        prefetch::<false, T>(next, V.div_ceil(T::VECTORS) * size_of::<T>());
        for vector in 0..V {
            let value = T::load(l, value, at + vector);
            for row in 0..M {
                let weight = l.splat(weights[row * KEY_TILE + key]);
                sums[row][vector] = l.multiply_add(weight, value, sums[row][vector]);
            }
        }
    }
    for row in 0..M {
        let (output, _) = output[row * stride + column..].as_chunks_mut::<LANES>();
        for vector in 0..V {
            l.store(l.add(l.load(&output[vector]), sums[row][vector]), &mut output[vector]);
        }
    }
}
