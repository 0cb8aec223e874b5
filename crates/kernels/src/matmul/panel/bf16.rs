//! Products of bf16 pairs, summed in f32: twice as many multiplications per instruction as in f32.

use super::packed::{Packed, ROWS};
use super::{DEPTH, WIDTH};
use rayon::prelude::*;
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
};

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

/// Activations `[rows, columns]` as pairs, packed.
pub(super) fn rounded(x: &[f32], rows: usize) -> Packed {
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
    Packed::new(bytemuck::cast_slice(&pairs), rows, DEPTH / 2)
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

/// `sums [rows, WIDTH] += x · panel [pairs, WIDTH]`, with all groups of `x`; pairs of bf16 in the bits of f32.
pub(super) fn accumulate(x: &[[f32; ROWS]], panel: &[[f32; WIDTH]], sums: &mut [[f32; WIDTH]]) {
    assert!(is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f"), "bf16 products");
    for (x, sums) in x.chunks_exact(panel.len()).zip(sums.chunks_mut(ROWS)) {
        let mut row = 0;
        while row < sums.len() {
            // SAFETY: the processor has the instructions.
            row += unsafe {
                match sums.len() - row {
                    12.. => tile::<12>(x, row, panel, sums),
                    8.. => tile::<8>(x, row, panel, sums),
                    4.. => tile::<4>(x, row, panel, sums),
                    2.. => tile::<2>(x, row, panel, sums),
                    _ => tile::<1>(x, row, panel, sums),
                }
            };
        }
    }
}

/// M rows of a group from one on; M.
///
/// # Safety
/// AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile<const M: usize>(
    x: &[[f32; ROWS]],
    row: usize,
    panel: &[[f32; WIDTH]],
    sums: &mut [[f32; WIDTH]],
) -> usize {
    // Outside the loop, where the compiler then checks nothing.
    assert!(row + M <= ROWS);
    let mut totals: [[__m512; 2]; M] = [[_mm512_setzero_ps(); 2]; M];
    for (x, panel) in x.iter().zip(panel) {
        // SAFETY: within the panel, and an integer vector is as good a vector of bf16. (A closure would not be inlined: it would
        // run without the instructions that this function may use.)
        let b: [__m512bh; 2] = unsafe {
            let at = panel.as_ptr();
            [
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.cast())),
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(at.add(LANES).cast())),
            ]
        };
        for (x, totals) in x[row..row + M].iter().zip(&mut totals) {
            // SAFETY: as above.
            let x: __m512bh = unsafe { std::mem::transmute(_mm512_set1_epi32(x.to_bits() as i32)) };
            totals[0] = _mm512_dpbf16_ps(totals[0], x, b[0]);
            totals[1] = _mm512_dpbf16_ps(totals[1], x, b[1]);
        }
    }
    for (sums, totals) in sums[row..].iter_mut().zip(&totals) {
        for (sums, total) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(totals) {
            // SAFETY: as long as what is loaded and stored.
            unsafe {
                let at = sums.as_mut_ptr();
                _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), *total));
            }
        }
    }
    M
}
