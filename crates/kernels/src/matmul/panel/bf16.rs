//! Products of bf16 pairs, summed in f32: twice as many multiplications per instruction as in f32.

use super::WIDTH;
use rayon::prelude::*;
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
};

/// Rows of x handled at once; 16 sums stay in registers.
const ROWS: usize = 8;
const LANES: usize = 16;

/// The nearest bf16, the even one of two; NaN stays NaN.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fc0 } else { rounded }
}

#[inline(always)]
fn round_pair(pair: &[f32]) -> u32 {
    round(pair[0]) | pair.get(1).map_or(0, |&second| round(second)) << 16
}

/// Activations `[rows, columns]` as pairs, `[rows, ⌈columns / 2⌉]`.
pub(super) fn rounded(x: &[f32], rows: usize) -> Vec<u32> {
    let columns = x.len() / rows;
    let mut pairs = vec![0; rows * columns.div_ceil(2)];
    let each_row = pairs.par_chunks_exact_mut(columns.div_ceil(2)).zip(x.par_chunks_exact(columns));
    each_row.with_min_len(16).for_each(|(pairs, x)| {
        // SAFETY: the processor has the instructions, or there would be no products of pairs.
        let done = unsafe { round_row(x, pairs) };
        for (pair, x) in pairs[done..].iter_mut().zip(x[2 * done..].chunks(2)) {
            *pair = round_pair(x);
        }
    });
    pairs
}

/// Rounds numbers to pairs, as many as fit into whole vectors; how many pairs that are.
///
/// # Safety
/// AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_row(x: &[f32], pairs: &mut [u32]) -> usize {
    assert_eq!(pairs.len(), x.len().div_ceil(2), "pairs");
    let (numbers, to) = (x.as_ptr(), pairs.as_mut_ptr());
    let vectors = x.len() / (2 * LANES);
    for vector in 0..vectors {
        // SAFETY: within both.
        unsafe {
            let at = numbers.add(vector * 2 * LANES);
            let rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at.add(LANES)), _mm512_loadu_ps(at));
            let rounded = std::mem::transmute::<__m512bh, __m512i>(rounded);
            _mm512_storeu_si512(to.add(vector * LANES).cast(), rounded);
        }
    }
    vectors * LANES
}

/// Rounds `[rows, depth]` in place to pairs `[rows, ⌈depth / 2⌉]`, which take the first half of the buffer.
#[inline(always)]
pub(super) fn round_rows(rows: &mut [f32], depth: usize) {
    let pairs = depth.div_ceil(2);
    for row in 0..rows.len() / depth {
        // Pairs are written at or before where they are read.
        // SAFETY: the processor has the instructions, or there would be no products of pairs.
        let done = unsafe { round_in_place(rows, row * depth, row * pairs, depth) };
        for pair in done..pairs {
            let from = row * depth + 2 * pair;
            let len = if 2 * pair + 1 < depth { 2 } else { 1 };
            rows[row * pairs + pair] = f32::from_bits(round_pair(&rows[from..from + len]));
        }
    }
}

/// Rounds numbers from `from` on to pairs from `to` on, which is not behind it, as many as fit into whole vectors; how many pairs
/// that are.
///
/// # Safety
/// AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_in_place(numbers: &mut [f32], from: usize, to: usize, count: usize) -> usize {
    assert!(to <= from && from + count <= numbers.len(), "numbers");
    let vectors = count / (2 * LANES);
    let numbers = numbers.as_mut_ptr();
    for vector in 0..vectors {
        // SAFETY: within the numbers; both vectors are read before the one is written, which ends before what is still to be read.
        unsafe {
            let at = numbers.add(from + vector * 2 * LANES);
            let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(at.add(LANES)), _mm512_loadu_ps(at));
            let pairs = std::mem::transmute::<__m512bh, __m512i>(pairs);
            _mm512_storeu_si512(numbers.add(to + vector * LANES).cast(), pairs);
        }
    }
    vectors * LANES
}

/// Rows of bf16, two bytes a number, as pairs `[rows, ⌈depth / 2⌉]`.
#[inline(always)]
pub(super) fn pairs_of(row: &[u8], pairs: &mut [f32]) {
    let (whole, rest) = row.as_chunks::<4>();
    for (pair, bytes) in pairs.iter_mut().zip(whole) {
        *pair = f32::from_bits(u32::from_le_bytes(*bytes));
    }
    if let (Some(last), &[low, high]) = (pairs.last_mut(), rest) {
        *last = f32::from_bits(u32::from(u16::from_le_bytes([low, high])));
    }
}

/// Rows of activations, of which the pairs from `start` on are multiplied.
#[derive(Clone, Copy)]
pub(super) struct PairRows<'a> {
    pub(super) pairs: &'a [u32],
    pub(super) stride: usize,
    pub(super) start: usize,
    pub(super) rows: usize,
}

/// `sums [rows, WIDTH] += x [rows, pairs] · panel [pairs, WIDTH]`, pairs of bf16 in the bits of f32.
pub(super) fn accumulate(x: PairRows<'_>, pairs: usize, panel: &[f32], sums: &mut [f32]) {
    assert!(panel.len() >= pairs * WIDTH && sums.len() >= x.rows * WIDTH, "panel and sums");
    assert!(x.pairs.len() >= x.rows * x.stride && x.start + pairs <= x.stride, "activations");
    assert!(is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f"), "bf16 products");
    for first in (0..x.rows).step_by(ROWS) {
        let count = ROWS.min(x.rows - first);
        let a = &x.pairs[first * x.stride + x.start..];
        let sums = &mut sums[first * WIDTH..][..count * WIDTH];
        // SAFETY: the processor has the instructions; sizes are checked above.
        unsafe {
            match count {
                1 => multiply_rows::<1>(a, x.stride, pairs, panel, sums),
                2 => multiply_rows::<2>(a, x.stride, pairs, panel, sums),
                3 => multiply_rows::<3>(a, x.stride, pairs, panel, sums),
                4 => multiply_rows::<4>(a, x.stride, pairs, panel, sums),
                5 => multiply_rows::<5>(a, x.stride, pairs, panel, sums),
                6 => multiply_rows::<6>(a, x.stride, pairs, panel, sums),
                7 => multiply_rows::<7>(a, x.stride, pairs, panel, sums),
                _ => multiply_rows::<ROWS>(a, x.stride, pairs, panel, sums),
            }
        }
    }
}

/// # Safety
/// AVX-512 F and BF16; `a` has M rows of `pairs`, `stride` apart; `panel [pairs, WIDTH]`; `sums [M, WIDTH]`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_rows<const M: usize>(
    a: &[u32],
    stride: usize,
    pairs: usize,
    panel: &[f32],
    sums: &mut [f32],
) {
    let (a, panel, sums) = (a.as_ptr(), panel.as_ptr(), sums.as_mut_ptr());
    let mut totals: [[__m512; 2]; M] = [[_mm512_setzero_ps(); 2]; M];
    for step in 0..pairs {
        // SAFETY: within the panel, and an integer vector is as good a vector of bf16. (A closure would not be inlined: it would
        // run without the instructions that this function may use.)
        let b: [__m512bh; 2] = unsafe {
            let at = panel.add(step * WIDTH);
            [
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())),
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.add(LANES).cast())),
            ]
        };
        for (row, totals) in totals.iter_mut().enumerate() {
            // SAFETY: within the activations; as above.
            let x: __m512bh =
                unsafe { std::mem::transmute(_mm512_set1_epi32(*a.add(row * stride + step) as i32)) };
            totals[0] = _mm512_dpbf16_ps(totals[0], x, b[0]);
            totals[1] = _mm512_dpbf16_ps(totals[1], x, b[1]);
        }
    }
    for (row, totals) in totals.iter().enumerate() {
        for (half, total) in totals.iter().enumerate() {
            // SAFETY: within the sums.
            unsafe {
                let at = sums.add(row * WIDTH + half * LANES);
                _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), *total));
            }
        }
    }
}
