//! The product of one row of W with a few rows of activations, without dequantising the row first.
//!
//! Σ w·x = Σ_groups scale·Σ q·x + offset·Σ x: the sums of x are the same for every row of W and made once. The quants are
//! unpacked once for all rows of activations, and each of these gets the bits that it has alone. Where the sums of all rows do not fit
//! the registers, quants go to memory, and a few rows of activations at a time meet them there.

use super::WeightFormat;
use super::blocks::{Block32, Block256, Offset, dequantize_32, dequantize_256};
use crate::instructions::Operation;
use crate::lanes::{LANES, Lanes, Vector};
use pulp::Simd;
use std::marker::PhantomData;

/// Columns whose products are summed apart: eight rows of activations of that many fit the L1 cache. Whole blocks of every format.
pub(super) const STRIP: usize = 1024;
/// Activations that leave room for weights in the L1 cache.
pub(super) const CACHED: usize = 6 << 10;

type Floats16 = Vector<f32, LANES>;

/// Up to eight rows of activations that meet each row of W at the same time, with what products with some formats need beside. They
/// are interleaved: sixteen elements of each, or what belongs to them, then the next sixteen.
pub(super) struct Activations<'a> {
    /// How many rows.
    pub(super) count: usize,
    /// The rows, one after the other.
    rows: &'a [f32],
    columns: usize,
    /// x, `[columns / 16, count, 16]`.
    x: Vec<Floats16>,
    /// Σ x over each 32 elements of each row, `[columns / 32, 16]`; zeros behind the last row.
    of_32: Vec<Floats16>,
    /// x and its sums as blocks of 256 need them.
    words: Words,
}

/// x in sixteen bits, in units that each 32 elements have in common.
#[derive(Default)]
struct Words {
    /// x in these units, `[columns / 32, count, 32]`.
    rounded: Vec<Vector<i16, { 2 * LANES }>>,
    sums: Sums,
}

/// Sums of x over parts of 256 elements, and the units of these parts, `[columns / 256, count, 16]` each.
#[derive(Default)]
struct Sums {
    /// Σ x over each 16 elements.
    of_16: Vec<Floats16>,
    /// Σ x over each 32 elements, eight zeros after each eight.
    of_32: Vec<Floats16>,
    /// The units, each twice.
    units_by_16: Vec<Floats16>,
    /// The units, eight zeros after each eight.
    units_by_32: Vec<Floats16>,
}

/// Makes the [`Activations`] of rows `[rows, columns]` for products with matrices of some formats.
pub(super) struct Prepare<'a, F> {
    pub(super) x: &'a [f32],
    pub(super) columns: usize,
    pub(super) formats: F,
}

impl<'a, F: Iterator<Item = WeightFormat> + Clone> Operation for Prepare<'a, F> {
    type Output = Vec<Activations<'a>>;

    #[inline(always)]
    fn run<S: Simd, L: Lanes>(self, _: S, l: L) -> Vec<Activations<'a>> {
        let Self { mut x, columns, formats } = self;
        let mut groups = vec![];
        while !x.is_empty() {
            let rows;
            let count = match x.len() / columns {
                8.. => 8,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            (rows, x) = x.split_at(count * columns);
            groups.push(Activations::new(l, rows, count, formats.clone()));
        }
        groups
    }
}

impl<'a> Activations<'a> {
    #[inline(always)]
    fn new<L: Lanes>(
        l: L,
        rows: &'a [f32],
        count: usize,
        formats: impl Iterator<Item = WeightFormat>,
    ) -> Self {
        let columns = rows.len() / count;
        let mut made = Self { count, rows, columns, x: vec![], of_32: vec![], words: Words::default() };
        for format in formats {
            let elements = format.block().0;
            if elements == 256 && made.words.rounded.is_empty() {
                made.words = Words::new(l, rows, count);
            }
            if elements < 256 && made.x.is_empty() {
                made.x = vec![Vector([0.0; LANES]); columns / LANES * count];
                for (row, x) in rows.chunks_exact(columns).enumerate() {
                    for (at, x) in x.as_chunks().0.iter().enumerate() {
                        made.x[at * count + row] = Vector(*x);
                    }
                }
            }
            if elements == 32 && made.of_32.is_empty() {
                made.of_32 = vec![Vector([0.0; LANES]); columns / 32];
                for (row, x) in rows.chunks_exact(columns).enumerate() {
                    for (x, sums) in x.as_chunks().0.iter().zip(&mut made.of_32) {
                        let [low, upper] = halves(x);
                        sums.0[row] = l.sum(l.load(low)) + l.sum(l.load(upper));
                    }
                }
            }
        }
        made
    }

    /// Elements behind the last sixteen of a row.
    fn rest(&self, row: usize) -> &'a [f32] {
        let row = &self.rows[row * self.columns..][..self.columns];
        row.as_chunks::<LANES>().1
    }
}

#[inline(always)]
fn halves(x: &[f32; 2 * LANES]) -> [&[f32; LANES]; 2] {
    let (halves, _) = x.as_chunks();
    [&halves[0], &halves[1]]
}

impl Sums {
    fn new(blocks: usize) -> Self {
        let zeros = || vec![Vector([0.0; LANES]); blocks];
        Self { of_16: zeros(), of_32: zeros(), units_by_16: zeros(), units_by_32: zeros() }
    }

    /// Those of 32 elements of a block.
    #[inline(always)]
    fn set(&mut self, block: usize, at: usize, unit: f32, sums: [f32; 2]) {
        for (half, sum) in sums.into_iter().enumerate() {
            self.of_16[block].0[2 * at + half] = sum;
            self.units_by_16[block].0[2 * at + half] = unit;
        }
        self.of_32[block].0[at] = sums[0] + sums[1];
        self.units_by_32[block].0[at] = unit;
    }

    /// Σ x and units of blocks with so many groups.
    #[inline(always)]
    fn of(&self, groups: usize) -> (&[Floats16], &[Floats16]) {
        match groups {
            8 => (&self.of_32, &self.units_by_32),
            _ => (&self.of_16, &self.units_by_16),
        }
    }
}

impl Words {
    #[inline(always)]
    fn new<L: Lanes>(l: L, rows: &[f32], count: usize) -> Self {
        let blocks = rows.len() / 256;
        let mut words = Self { rounded: vec![Vector([0; 2 * LANES]); blocks * 8], sums: Sums::new(blocks) };
        let blocks_of_row = blocks / count;
        for (index, x) in rows.as_chunks::<256>().0.iter().enumerate() {
            let (row, block) = (index / blocks_of_row, index % blocks_of_row);
            let to = block * count + row;
            for (at, x) in x.as_chunks::<{ 2 * LANES }>().0.iter().enumerate() {
                let unit = round(x, &mut words.rounded[(block * 8 + at) * count + row].0);
                let [low, upper] = halves(x);
                let sums = [l.sum(l.load(low)), l.sum(l.load(upper))];
                words.sums.set(to, at, unit, sums);
            }
        }
        words
    }
}

/// Rounds numbers to whole units, at most 2¹⁵ − 1 of them; the unit. It is NaN where one of the numbers is not finite, which the
/// product then shows.
#[inline(always)]
fn round(x: &[f32; 32], rounded: &mut [i16; 32]) -> f32 {
    let unit = unit(x, i16::MAX.into());
    for (rounded, x) in rounded.iter_mut().zip(x) {
        *rounded = (x / unit).round_ties_even() as i16;
    }
    unit
}

/// A unit in which no number is larger than so many.
#[inline(always)]
pub(super) fn unit(x: &[f32; 32], largest: f32) -> f32 {
    let mut magnitude = 0;
    for x in x {
        // Bits of magnitudes are in their order; those of what is not finite are the largest.
        magnitude = magnitude.max(x.to_bits() & i32::MAX as u32);
    }
    let most = f32::from_bits(magnitude);
    if !most.is_finite() {
        f32::NAN
    } else if most > f32::MIN_POSITIVE * largest {
        most / largest
    } else {
        // Nothing, or next to nothing.
        1.0
    }
}

/// Weights of a strip, unpacked.
pub(super) struct Unpacked {
    floats: [Floats16; STRIP / LANES],
    words: [Vector<i16, { 2 * LANES }>; STRIP / (2 * LANES)],
}

impl Default for Unpacked {
    fn default() -> Self {
        Self {
            floats: [Vector([0.0; LANES]); STRIP / LANES],
            words: [Vector([0; 2 * LANES]); STRIP / (2 * LANES)],
        }
    }
}

/// Rows of activations that meet unpacked floats at a time: their sums over every other sixteen elements fit the registers.
const FEW: usize = 4;

/// A kind of format. What is compiled for one is a function of its own for each set of instructions: all of them in one take a compiler
/// minutes.
pub(super) trait Kind {
    /// Σ w_i·x_i over the columns of a strip, whole blocks from column `start` on, for each of M rows of activations; `start` is
    /// a multiple of [`STRIP`], and `unpacked` is for the rows of one matrix.
    fn dots<L: Lanes, const M: usize>(
        l: L,
        format: WeightFormat,
        weights: &[u8],
        x: &Activations<'_>,
        start: usize,
        unpacked: &mut Unpacked,
    ) -> [f32; M];

    /// Whole blocks in f32.
    fn dequantize<L: Lanes>(l: L, format: WeightFormat, blocks: &[u8], output: &mut [f32]);
}

/// The float formats.
pub(super) struct Floats;

/// A block type of 32 elements.
pub(super) struct Of32<B>(PhantomData<B>);

/// A block type of 256 elements.
pub(super) struct Of256<B>(PhantomData<B>);

/// The groups of M from an index on.
#[inline(always)]
fn of_rows<T, const M: usize>(groups: &[T], start: usize) -> &[[T; M]] {
    &groups.as_chunks().0[start..]
}

/// Σ w·x over even and over odd groups of sixteen, for each of M rows.
#[inline(always)]
fn sums_of_floats<L: Lanes, const M: usize>(
    l: L,
    w: &[Floats16],
    x: &[[Floats16; M]],
) -> [[L::Floats; 2]; M] {
    let mut sums = [[l.splat(0.0); 2]; M];
    let (twos, last) = w.as_chunks::<2>();
    let (twos_of_x, last_of_x) = x[..w.len()].as_chunks::<2>();
    for first in (0..M).step_by(FEW) {
        for part in 0..2 {
            let mut few = [l.splat(0.0); FEW];
            for (w, x) in twos.iter().zip(twos_of_x) {
                let (w, x) = (l.load(&w[part].0), &x[part]);
                for m in 0..FEW.min(M) {
                    few[m] = l.multiply_add(w, l.load(&x[first + m].0), few[m]);
                }
            }
            if let ([w], [x], 0) = (last, last_of_x, part) {
                for m in 0..FEW.min(M) {
                    few[m] = l.multiply_add(l.load(&w.0), l.load(&x[first + m].0), few[m]);
                }
            }
            for m in 0..FEW.min(M) {
                sums[first + m][part] = few[m];
            }
        }
    }
    sums
}

/// Σ w·x over even and over odd groups of sixteen of R rows of W, with one row of activations.
macro_rules! sums_of_rows {
    ($l:ident, $from:ident, $bytes:literal, $strips:ident, $x:ident) => {{
        let (mut even, mut odd) = ([$l.splat(0.0); R], [$l.splat(0.0); R]);
        let mut rows = [$strips[0].as_chunks::<$bytes>().0; R];
        for row in 0..R {
            rows[row] = $strips[row].as_chunks().0;
        }
        let count = rows[0].len();
        let (twos, last) = $x[..count].as_chunks::<2>();
        for (at, [first, second]) in twos.iter().enumerate() {
            let (first, second) = ($l.load(&first.0), $l.load(&second.0));
            for row in 0..R {
                even[row] = $l.multiply_add($l.$from(&rows[row][2 * at]), first, even[row]);
            }
            for row in 0..R {
                odd[row] = $l.multiply_add($l.$from(&rows[row][2 * at + 1]), second, odd[row]);
            }
        }
        for x in last {
            for row in 0..R {
                let w = $l.$from(&rows[row][count - 1]);
                even[row] = $l.multiply_add(w, $l.load(&x.0), even[row]);
            }
        }
        (even, odd)
    }};
}

impl Floats {
    /// Σ w·x over all columns of R rows of W, which are read at the same time; one row of activations. Each has the bits that it has
    /// alone.
    #[inline(always)]
    pub(super) fn dots_of_rows<L: Lanes, const R: usize>(
        l: L,
        format: WeightFormat,
        rows: [&[u8]; R],
        x: &Activations<'_>,
    ) -> [f32; R] {
        let mut totals = [0.0; R];
        for start in (0..x.columns).step_by(STRIP) {
            let bytes = format.bytes(start)..format.bytes(x.columns.min(start + STRIP));
            let groups = &x.x[start / LANES..];
            let mut strips = rows;
            for row in 0..R {
                strips[row] = &rows[row][bytes.clone()];
            }
            let (even, odd) = match format {
                WeightFormat::F32 => sums_of_rows!(l, load_bytes, 64, strips, groups),
                WeightFormat::F16 => sums_of_rows!(l, widen_f16, 32, strips, groups),
                _ => sums_of_rows!(l, widen_bf16, 32, strips, groups),
            };
            for row in 0..R {
                let mut total = l.sum(l.add(even[row], odd[row]));
                let rest = strips[row].len() % format.bytes(LANES);
                let rest = &strips[row][strips[row].len() - rest..];
                for (bytes, x) in rest.chunks(format.block().1).zip(x.rest(0)) {
                    total += x * format.float(bytes);
                }
                totals[row] = if start == 0 { total } else { totals[row] + total };
            }
        }
        totals
    }
}

impl Kind for Floats {
    #[inline(always)]
    fn dequantize<L: Lanes>(l: L, format: WeightFormat, blocks: &[u8], output: &mut [f32]) {
        format.widen(l, blocks, output);
    }

    #[inline(always)]
    fn dots<L: Lanes, const M: usize>(
        l: L,
        format: WeightFormat,
        weights: &[u8],
        x: &Activations<'_>,
        start: usize,
        unpacked: &mut Unpacked,
    ) -> [f32; M] {
        let groups = of_rows::<_, M>(&x.x, start / LANES);
        let mut sums = [[l.splat(0.0); 2]; M];
        macro_rules! sum_up {
            ($from:ident, $bytes:literal) => {{
                let (bytes, rest) = weights.as_chunks::<$bytes>();
                if M > L::ROWS {
                    for (w, to) in bytes.iter().zip(&mut unpacked.floats) {
                        l.store(l.$from(w), &mut to.0);
                    }
                    sums = sums_of_floats(l, &unpacked.floats[..bytes.len()], groups);
                } else {
                    let (twos, last) = bytes.as_chunks::<2>();
                    let (twos_of_x, _) = groups.as_chunks::<2>();
                    for (w, x) in twos.iter().zip(twos_of_x) {
                        for part in 0..2 {
                            let w = l.$from(&w[part]);
                            for m in 0..M {
                                sums[m][part] = l.multiply_add(w, l.load(&x[part][m].0), sums[m][part]);
                            }
                        }
                    }
                    for (w, x) in last.iter().zip(&groups[2 * twos.len()..]) {
                        let w = l.$from(w);
                        for m in 0..M {
                            sums[m][0] = l.multiply_add(w, l.load(&x[m].0), sums[m][0]);
                        }
                    }
                }
                rest
            }};
        }
        let rest = match format {
            WeightFormat::F32 => sum_up!(load_bytes, 64),
            WeightFormat::F16 => sum_up!(widen_f16, 32),
            _ => sum_up!(widen_bf16, 32),
        };
        let mut totals = [0.0; M];
        for m in 0..M {
            totals[m] = l.sum(l.add(sums[m][0], sums[m][1]));
            // Only the last strip has a rest.
            for (bytes, x) in rest.chunks(format.block().1).zip(x.rest(m)) {
                totals[m] += x * format.float(bytes);
            }
        }
        totals
    }
}

/// q·scale is exact in f32: quants have eight bits at most, scales eleven.
impl<B: Block32> Kind for Of32<B> {
    #[inline(always)]
    fn dequantize<L: Lanes>(l: L, _: WeightFormat, blocks: &[u8], output: &mut [f32]) {
        dequantize_32::<L, B>(l, blocks, output);
    }

    #[inline(always)]
    fn dots<L: Lanes, const M: usize>(
        l: L,
        _: WeightFormat,
        weights: &[u8],
        x: &Activations<'_>,
        start: usize,
        unpacked: &mut Unpacked,
    ) -> [f32; M] {
        let groups = of_rows::<_, M>(&x.x, start / LANES);
        let mut sums = [[l.splat(0.0); 2]; M];
        // Of each row in a lane of its own.
        let mut offset_sums = l.splat(0.0);
        let of_blocks = groups.as_chunks::<2>().0.iter().zip(&x.of_32[start / 32..]);
        let blocks = weights.chunks_exact(B::BYTES).zip(unpacked.floats.as_chunks_mut::<2>().0);
        for ((block, to), (x, sums_of)) in blocks.zip(of_blocks) {
            let (scales, [_, next]) = B::scale(l, block);
            let [low, upper] = B::quants(l, block);
            let (low, upper) = (l.multiply(l.float(low), scales), l.multiply(l.float(upper), scales));
            if M > L::ROWS {
                l.store(low, &mut to[0].0);
                l.store(upper, &mut to[1].0);
            } else {
                for m in 0..M {
                    sums[m][0] = l.multiply_add(low, l.load(&x[0][m].0), sums[m][0]);
                    sums[m][1] = l.multiply_add(upper, l.load(&x[1][m].0), sums[m][1]);
                }
            }
            let offsets = match B::OFFSET {
                Offset::None => continue,
                Offset::OfScale(factor) => l.multiply(scales, l.splat(factor)),
                Offset::NextToScale => l.splat(next),
            };
            offset_sums = l.multiply_add(offsets, l.load(&sums_of.0), offset_sums);
        }
        if M > L::ROWS {
            sums = sums_of_floats(l, &unpacked.floats[..2 * (weights.len() / B::BYTES)], groups);
        }
        let mut offsets = [0.0; LANES];
        l.store(offset_sums, &mut offsets);
        let mut totals = [0.0; M];
        for m in 0..M {
            totals[m] = l.sum(l.add(sums[m][0], sums[m][1])) + offsets[m];
        }
        totals
    }
}

/// Activations are rounded to sixteen bits, 32 at a time: products of pairs are then whole numbers, twice as many at once.
impl<B: Block256> Kind for Of256<B> {
    #[inline(always)]
    fn dequantize<L: Lanes>(l: L, _: WeightFormat, blocks: &[u8], output: &mut [f32]) {
        dequantize_256::<L, B>(l, blocks, output);
    }

    #[inline(always)]
    fn dots<L: Lanes, const M: usize>(
        l: L,
        _: WeightFormat,
        weights: &[u8],
        x: &Activations<'_>,
        start: usize,
        unpacked: &mut Unpacked,
    ) -> [f32; M] {
        let words = &x.words;
        let (sums_of, units_of) = words.sums.of(B::GROUPS);
        let (x_of_blocks, _) = of_rows::<_, M>(&words.rounded, start / 32).as_chunks::<8>();
        let (sums_of, units_of) =
            (of_rows::<_, M>(sums_of, start / 256), of_rows::<_, M>(units_of, start / 256));
        let mut totals = [0.0; M];
        // As many rows at a time as have room; the first ones unpack for all.
        let at_once = M.min(L::ROWS);
        for first in (0..M).step_by(at_once) {
            let mut sums = [[l.splat(0.0); 2]; M];
            let mut offset_sums = [l.splat(0.0); M];
            let of_blocks = x_of_blocks.iter().zip(sums_of.iter().zip(units_of));
            let blocks = weights.chunks_exact(B::BYTES).zip(unpacked.words.as_chunks_mut::<8>().0);
            for ((block, to), (x, (sums_of, units_of))) in blocks.zip(of_blocks) {
                let [scales, offsets] = B::scales(l, block);
                let mut scales_of = [[0.0; LANES]; M];
                for m in 0..at_once {
                    offset_sums[m] = l.multiply_add(offsets, l.load(&sums_of[first + m].0), offset_sums[m]);
                    l.store(l.multiply(scales, l.load(&units_of[first + m].0)), &mut scales_of[m]);
                }
                macro_rules! part {
                    ($at:literal) => {{
                        let words = match first {
                            0 => B::words(l, block, $at),
                            _ => l.load_words(&to[$at].0),
                        };
                        if first == 0 && M > L::ROWS {
                            l.store_words(words, &mut to[$at].0);
                        }
                        for m in 0..at_once {
                            let products =
                                l.float(l.pair_products(words, l.load_words(&x[$at][first + m].0)));
                            let scale = if B::GROUPS == 8 {
                                l.splat(scales_of[m][$at])
                            } else {
                                l.splat_two(scales_of[m][2 * $at], scales_of[m][2 * $at + 1])
                            };
                            sums[m][$at % 2] = l.multiply_add(products, scale, sums[m][$at % 2]);
                        }
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
            for m in 0..at_once {
                totals[first + m] = l.sum(l.add(l.add(sums[m][0], sums[m][1]), offset_sums[m]));
            }
        }
        totals
    }
}
