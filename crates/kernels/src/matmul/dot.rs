//! The product of one row of W with one row of activations, without dequantising the row first.
//!
//! Σ w·x = Σ_groups scale·Σ q·x + offset·Σ x: the sums of x are the same for every row of W and made once; what is left for
//! each group is its product with the quants and one for its scale.

use super::WeightFormat;
use super::blocks::{Block32, Block256, Offset};
use super::format::by_block;
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
    /// x in sixteen bits, in units that each 32 elements have in common.
    rounded: Vec<i16>,
    /// These units, eight zeros after each eight.
    units_by_8: Vec<f32>,
    /// These units, each twice.
    units_by_16: Vec<f32>,
}

impl<'a> Activations<'a> {
    pub(super) fn new(x: &'a [f32]) -> Self {
        let of_16: Vec<f32> = x.chunks(16).map(|x| x.iter().sum()).collect();
        let of_32: Vec<f32> = of_16.chunks(2).map(|two| two.iter().sum()).collect();
        let (mut rounded, mut units) = (Vec::with_capacity(x.len()), Vec::with_capacity(of_32.len()));
        for x in x.chunks(32) {
            let unit = unit(x);
            // NaN and what is infinite make the unit NaN, which the product then shows.
            rounded.extend(x.iter().map(|x| (x / unit).round_ties_even() as i16));
            units.push(unit);
        }
        let units_by_16 = units.iter().flat_map(|&unit| [unit; 2]).collect();
        Self {
            x,
            of_16,
            of_32_by_8: eight_by_eight(&of_32),
            of_32,
            rounded,
            units_by_8: eight_by_eight(&units),
            units_by_16,
        }
    }
}

/// The unit in which numbers are whole and at most 2¹⁵ − 1; NaN where one of them is not finite.
fn unit(x: &[f32]) -> f32 {
    let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
    let finite = x.iter().all(|x| x.is_finite());
    match (finite, most > f32::MIN_POSITIVE) {
        (false, _) => f32::NAN,
        (true, true) => most / f32::from(i16::MAX),
        // Nothing, or next to nothing.
        (true, false) => 1.0,
    }
}

/// Eight zeros after each eight numbers.
fn eight_by_eight(numbers: &[f32]) -> Vec<f32> {
    let mut spread = Vec::with_capacity(2 * numbers.len());
    for eight in numbers.chunks(8) {
        spread.extend(eight);
        spread.resize(spread.len().next_multiple_of(LANES), 0.0);
    }
    spread
}

/// Σ w_i·x_i over a row of whole blocks.
#[inline(always)]
pub(super) fn dot<L: Lanes>(l: L, format: WeightFormat, row: &[u8], x: &Activations<'_>) -> f32 {
    by_block!(
        format,
        floats => floats(l, format, row, x.x),
        B of 32 => blocks_of_32::<L, B>(l, row, x),
        of 256 => blocks_of_256::<L, B>(l, row, x)
    )
}

#[inline(always)]
fn floats<L: Lanes>(l: L, format: WeightFormat, row: &[u8], x: &[f32]) -> f32 {
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
        WeightFormat::F32 => sum_up!(load_bytes, 64),
        WeightFormat::F16 => sum_up!(widen_f16, 32),
        _ => sum_up!(widen_bf16, 32),
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
        let (scales, [scale, next]) = B::scale(l, block);
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

/// Activations are rounded to sixteen bits, 32 at a time: products of pairs are then whole numbers, twice as many at once.
#[inline(always)]
fn blocks_of_256<L: Lanes, B: Block256>(l: L, row: &[u8], x: &Activations<'_>) -> f32 {
    let mut totals = [l.splat(0.0); 2];
    let mut offset_sum = l.splat(0.0);
    let (sums, units) =
        if B::GROUPS == 8 { (&x.of_32_by_8, &x.units_by_8) } else { (&x.of_16, &x.units_by_16) };
    let x_of = x.rounded.as_chunks::<256>().0.iter();
    let sums_of = sums.as_chunks::<LANES>().0.iter().zip(units.as_chunks::<LANES>().0);
    for ((block, x), (sums, units)) in row.chunks_exact(B::BYTES).zip(x_of).zip(sums_of) {
        let [scales, offsets] = B::scales(l, block);
        offset_sum = l.multiply_add(offsets, l.load(sums), offset_sum);
        let mut scale_of = [0.0; LANES];
        l.store(l.multiply(scales, l.load(units)), &mut scale_of);
        let (x, _) = x.as_chunks::<{ 2 * LANES }>();
        macro_rules! part {
            ($at:literal) => {{
                let products = l.float(l.pair_products(B::words(l, block, $at), l.load_words(&x[$at])));
                let scale = if B::GROUPS == 8 {
                    l.splat(scale_of[$at])
                } else {
                    l.splat_two(scale_of[2 * $at], scale_of[2 * $at + 1])
                };
                totals[$at % 2] = l.multiply_add(products, scale, totals[$at % 2]);
            }};
        }
        // Written out, so that the shifts of each part are known when compiling.
        part!(0);
        part!(1);
        part!(2);
        part!(3);
        part!(4);
        part!(5);
        part!(6);
        part!(7);
    }
    l.sum(l.add(l.add(totals[0], totals[1]), offset_sum))
}
