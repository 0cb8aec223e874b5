//! The product of one row of W with one row of activations, straight from blocks.
//!
//! Σ w·x = Σ_groups scale·Σ q·x + offset·Σ x: the sums of x are the same for every row of W and made once; what is left for
//! each group is one product for each sixteen elements and one for its scale.

use super::Format;
use super::blocks::{
    Block32, Block256, Offset, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, bytes, stored,
};
use crate::lanes::{LANES, Lanes};

/// A row of activations and its sums.
pub(super) struct Activations<'a> {
    x: &'a [f32],
    /// Σ x over each 16 elements.
    of_16: Vec<f32>,
    /// Σ x over each 32 elements.
    of_32: Vec<f32>,
    /// Σ x over each 32 elements of a block of 256, eight zeros after each eight.
    of_32_by_8: Vec<f32>,
}

impl<'a> Activations<'a> {
    pub(super) fn new(x: &'a [f32]) -> Self {
        let of_16: Vec<f32> = x.chunks(16).map(|x| x.iter().sum()).collect();
        let of_32: Vec<f32> = of_16.chunks(2).map(|two| two.iter().sum()).collect();
        let mut of_32_by_8 = vec![];
        for eight in of_32.chunks(8) {
            of_32_by_8.extend(eight);
            of_32_by_8.resize(of_32_by_8.len().next_multiple_of(16), 0.0);
        }
        Self { x, of_16, of_32, of_32_by_8 }
    }
}

/// Σ w_i·x_i over a row of whole blocks.
#[inline(always)]
pub(super) fn dot<L: Lanes>(l: L, format: Format, row: &[u8], x: &Activations<'_>) -> f32 {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => floats(l, format, row, x.x),
        Format::Q4_0 => blocks_of_32::<L, Q4_0>(l, row, x),
        Format::Q4_1 => blocks_of_32::<L, Q4_1>(l, row, x),
        Format::Q5_0 => blocks_of_32::<L, Q5_0>(l, row, x),
        Format::Q5_1 => blocks_of_32::<L, Q5_1>(l, row, x),
        Format::Q8_0 => blocks_of_32::<L, Q8_0>(l, row, x),
        Format::Q2K => blocks_of_256::<L, Q2K>(l, row, x),
        Format::Q3K => blocks_of_256::<L, Q3K>(l, row, x),
        Format::Q4K => blocks_of_256::<L, Q4K>(l, row, x),
        Format::Q5K => blocks_of_256::<L, Q5K>(l, row, x),
        Format::Q6K => blocks_of_256::<L, Q6K>(l, row, x),
    }
}

#[inline(always)]
fn floats<L: Lanes>(l: L, format: Format, row: &[u8], x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<LANES>();
    let rest_bytes = &row[format.bytes(groups.len() * LANES)..];
    let mut sums = [l.splat(0.0); 4];
    let (fours, last) = groups.as_chunks::<4>();
    macro_rules! sum_up {
        ($from:ident, $bytes:literal) => {{
            let (bytes, _) = row.as_chunks::<$bytes>();
            let (bytes_of_fours, bytes_of_last) = bytes.as_chunks::<4>();
            for (x, w) in fours.iter().zip(bytes_of_fours) {
                for part in 0..4 {
                    sums[part] = l.multiply_add(l.$from(&w[part]), l.load(&x[part]), sums[part]);
                }
            }
            for (x, w) in last.iter().zip(bytes_of_last) {
                sums[0] = l.multiply_add(l.$from(w), l.load(x), sums[0]);
            }
        }};
    }
    match format {
        Format::F32 => sum_up!(from_f32, 64),
        Format::F16 => sum_up!(from_f16, 32),
        _ => sum_up!(from_bf16, 32),
    }
    let mut total = l.sum(l.add(l.add(sums[0], sums[1]), l.add(sums[2], sums[3])));
    for (x, bytes) in rest.iter().zip(rest_bytes.chunks(format.block().1)) {
        total += x * format.float(bytes);
    }
    total
}

#[inline(always)]
fn blocks_of_32<L: Lanes, B: Block32>(l: L, row: &[u8], x: &Activations<'_>) -> f32 {
    let (mut sum, mut offset_sum) = (l.splat(0.0), 0.0);
    for ((block, x), of_x) in row.chunks_exact(B::BYTES).zip(x.x.as_chunks::<32>().0).zip(&x.of_32) {
        let (scales, [scale, next]) = l.two_halves(bytes(block, B::SCALE));
        match B::OFFSET {
            Offset::None => {}
            Offset::OfScale(factor) => offset_sum += scale * (factor * of_x),
            Offset::NextToScale => offset_sum += next * of_x,
        }
        let [low, upper] = B::quants(l, block);
        let (x, _) = x.as_chunks::<LANES>();
        let products = l.multiply(l.float(low), l.load(&x[0]));
        let products = l.multiply_add(l.float(upper), l.load(&x[1]), products);
        sum = l.multiply_add(products, scales, sum);
    }
    l.sum(sum) + offset_sum
}

#[inline(always)]
fn blocks_of_256<L: Lanes, B: Block256>(l: L, row: &[u8], x: &Activations<'_>) -> f32 {
    let mut totals = [l.splat(0.0); 2];
    let mut offset_sum = l.splat(0.0);
    let sums = if B::GROUPS == 8 { &x.of_32_by_8 } else { &x.of_16 };
    let blocks = row.chunks_exact(B::BYTES).zip(x.x.as_chunks::<256>().0).zip(sums.as_chunks::<LANES>().0);
    for ((block, x), sums) in blocks {
        let scales = B::scales(l, block);
        offset_sum = l.multiply_add(scales[1], l.load(sums), offset_sum);
        let [scale_of, _] = stored(l, scales);
        let (x, _) = x.as_chunks::<LANES>();
        for pair in 0..8 {
            let products = [
                l.multiply(l.float(B::quants(l, block, 2 * pair)), l.load(&x[2 * pair])),
                l.float(B::quants(l, block, 2 * pair + 1)),
            ];
            let second = l.load(&x[2 * pair + 1]);
            if B::GROUPS == 8 {
                let products = l.multiply_add(products[1], second, products[0]);
                totals[pair % 2] = l.multiply_add(products, l.splat(scale_of[pair]), totals[pair % 2]);
            } else {
                let products = [products[0], l.multiply(products[1], second)];
                totals[0] = l.multiply_add(products[0], l.splat(scale_of[2 * pair]), totals[0]);
                totals[1] = l.multiply_add(products[1], l.splat(scale_of[2 * pair + 1]), totals[1]);
            }
        }
    }
    l.sum(l.add(l.add(totals[0], totals[1]), offset_sum))
}
