//! Blocks whose quants fit a byte, those of sixteen rows at a time, for integer products with activations of eight bits.

use super::k::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::nonlinear::{IQ4NL, IQ4XS, MXFP4, TWICE_E2M1, VALUES};
use super::{Block32, Block256, Offset, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::lanes::{BYTES, ByteLanes, LANES, Quants, SixteenRows, prefetch};

/// Numbers of one vector, where no load of it touches two cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(in crate::matmul) struct Vector<T, const N: usize>(pub(in crate::matmul) [T; N]);

/// 256 columns of sixteen rows, unpacked.
pub(in crate::matmul) struct Span {
    /// Columns 4i … 4i + 3 of each row, as products take them.
    pub(in crate::matmul) quants: [Vector<u8, BYTES>; 64],
    /// Those of each group of columns, of each row.
    pub(in crate::matmul) scales: [Vector<f32, LANES>; 16],
    pub(in crate::matmul) offsets: [Vector<f32, LANES>; 16],
}

impl Default for Span {
    fn default() -> Self {
        let zeros = [Vector([0.0; LANES]); 16];
        Self { quants: [Vector([0; BYTES]); 64], scales: zeros, offsets: zeros }
    }
}

impl Span {
    #[inline(always)]
    fn set_quants<L: ByteLanes, B: ByteBlock>(&mut self, l: L, column: usize, quants: [L::Bytes; 4]) {
        for i in 0..4 {
            let quants = if B::QUANTS.signed { l.signed_quants(quants[i]) } else { quants[i] };
            l.store_64(quants, &mut self.quants[column / 4 + i].0);
        }
    }

    #[inline(always)]
    fn set_scales<L: ByteLanes>(&mut self, l: L, group: usize, scales: L::Floats, offsets: L::Floats) {
        l.store(scales, &mut self.scales[group].0);
        l.store(offsets, &mut self.offsets[group].0);
    }
}

/// Bytes that are needed some time later: they are asked for a few at a time, in the order of memory.
pub(in crate::matmul) struct Ahead<'a>(pub(in crate::matmul) &'a [u8]);

impl Ahead<'_> {
    #[inline(always)]
    fn ask(&mut self, bytes: usize) {
        // Where there are as many, their number is known when compiling, and nothing is left of the loop.
        let (now, later) = self.0.split_at_checked(bytes).unwrap_or((self.0, &[]));
        self.0 = later;
        prefetch::<true>(now);
    }
}

/// A block type with quants of at most eight bits.
pub(in crate::matmul) trait ByteBlock {
    /// Columns of a block: 32 or 256.
    const COLUMNS: usize;
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// Columns with a scale of their own: 16 or 32.
    const GROUP: usize;
    const QUANTS: Quants;
    /// Whether there are offsets.
    const OFFSETS: bool;

    /// Unpacks some groups of 32 columns, at most eight; `rows` has the bytes of these. As many bytes are asked for ahead.
    fn unpack<L: ByteLanes>(
        l: L,
        rows: SixteenRows<'_>,
        groups: usize,
        ahead: &mut Ahead<'_>,
        span: &mut Span,
    );
}

/// A block of 32 columns of sixteen rows at once.
trait Columns32: Block32 {
    const QUANTS: Quants;

    /// Columns 4i … 4i + 3 and 16 + 4i … 16 + 4i + 3 of the block that begins at a byte.
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2];

    /// Scales and offsets of some blocks. All bytes are gathered first, because numbers of four bytes cannot be read as vectors right
    /// behind.
    #[inline(always)]
    fn scales<L: ByteLanes>(l: L, rows: SixteenRows<'_>, blocks: usize, span: &mut Span) {
        let mut numbers = [[0; LANES]; 8];
        for (block, numbers) in numbers[..blocks].iter_mut().enumerate() {
            *numbers = match Self::OFFSET {
                Offset::NextToScale => rows.words(block * Self::BYTES),
                _ => rows.halves(block * Self::BYTES),
            };
        }
        for (block, numbers) in numbers[..blocks].iter().enumerate() {
            let [scales, next] = l.two_halves_each(numbers);
            let offsets = match Self::OFFSET {
                Offset::OfScale(factor) => l.multiply(scales, l.splat(factor)),
                _ => next,
            };
            span.set_scales(l, block, scales, offsets);
        }
    }
}

impl<B: Columns32> ByteBlock for B {
    const COLUMNS: usize = 32;
    const BLOCK_BYTES: usize = B::BYTES;
    const GROUP: usize = 32;
    const QUANTS: Quants = <B as Columns32>::QUANTS;
    const OFFSETS: bool = !matches!(B::OFFSET, Offset::None);

    #[inline(always)]
    fn unpack<L: ByteLanes>(
        l: L,
        rows: SixteenRows<'_>,
        groups: usize,
        ahead: &mut Ahead<'_>,
        span: &mut Span,
    ) {
        B::scales(l, rows, groups, span);
        for group in 0..groups {
            ahead.ask(LANES * B::BYTES);
            let [low, upper] = B::columns(l, rows, group * B::BYTES);
            span.set_quants::<L, B>(l, 32 * group, low);
            span.set_quants::<L, B>(l, 32 * group + 16, upper);
        }
    }
}

/// Some bits of each byte.
#[inline(always)]
fn bits<L: ByteLanes>(l: L, [a, b, c, d]: [L::Bytes; 4], right: u32, mask: u8) -> [L::Bytes; 4] {
    [l.bits(a, right, mask), l.bits(b, right, mask), l.bits(c, right, mask), l.bits(d, right, mask)]
}

/// The low four bits of sixteen bytes, and the high ones.
#[inline(always)]
fn nibbles<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
    let packed = l.columns(rows, at);
    [bits(l, packed, 0, 15), bits(l, packed, 4, 15)]
}

/// The same, with a fifth bit from a number of four bytes.
#[inline(always)]
fn five_bits<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize, high: usize) -> [[L::Bytes; 4]; 2] {
    let mut quants = nibbles(l, rows, at);
    let high = rows.words(high);
    for (i, quants) in quants.as_flattened_mut().iter_mut().enumerate() {
        *quants = l.or_64(*quants, l.where_bits(&high, 4 * i as u32, 16));
    }
    quants
}

/// The same as indices into a table.
#[inline(always)]
fn entries<L: ByteLanes>(l: L, table: &[i8; 16], [a, b, c, d]: [L::Bytes; 4]) -> [L::Bytes; 4] {
    [l.entries_of(table, a), l.entries_of(table, b), l.entries_of(table, c), l.entries_of(table, d)]
}

impl Columns32 for Q4_0 {
    const QUANTS: Quants = Quants { signed: false, most: 15 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        nibbles(l, rows, at + 2)
    }
}

impl Columns32 for Q4_1 {
    const QUANTS: Quants = Quants { signed: false, most: 15 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        nibbles(l, rows, at + 4)
    }
}

impl Columns32 for Q5_0 {
    const QUANTS: Quants = Quants { signed: false, most: 31 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        five_bits(l, rows, at + 6, at + 2)
    }
}

impl Columns32 for Q5_1 {
    const QUANTS: Quants = Quants { signed: false, most: 31 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        five_bits(l, rows, at + 8, at + 4)
    }
}

impl Columns32 for Q8_0 {
    const QUANTS: Quants = Quants { signed: true, most: 128 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        [l.columns(rows, at + 2), l.columns(rows, at + 18)]
    }
}

impl Columns32 for IQ4NL {
    const QUANTS: Quants = Quants { signed: true, most: 127 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        let [low, upper] = nibbles(l, rows, at + 2);
        [entries(l, &VALUES, low), entries(l, &VALUES, upper)]
    }
}

impl Columns32 for MXFP4 {
    const QUANTS: Quants = Quants { signed: true, most: 12 };

    #[inline(always)]
    fn columns<L: ByteLanes>(l: L, rows: SixteenRows<'_>, at: usize) -> [[L::Bytes; 4]; 2] {
        let [low, upper] = nibbles(l, rows, at + 1);
        [entries(l, &TWICE_E2M1, low), entries(l, &TWICE_E2M1, upper)]
    }

    #[inline(always)]
    fn scales<L: ByteLanes>(l: L, rows: SixteenRows<'_>, blocks: usize, span: &mut Span) {
        for block in 0..blocks {
            let mut scales = [0.0; LANES];
            for (row, scale) in scales.iter_mut().enumerate() {
                let [exponent] = *rows.part(row, block * Self::BYTES);
                *scale = super::nonlinear::half_power_of_two(exponent);
            }
            span.set_scales(l, block, l.load(&scales), l.splat(0.0));
        }
    }
}

/// A block of 256 columns of sixteen rows at once.
trait Columns256: Block256 {
    const QUANTS: Quants;
    const OFFSETS: bool;

    /// Unpacks a quarter of the columns, those that share most bytes: of most types columns 128·half + 16·part + 32i … + 15, i from 0
    /// to 3; there are two halves of two parts.
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span);

    /// Scales and offsets of all groups: row by row, and then those of all rows for each group.
    #[inline(always)]
    fn scales_of_rows<L: ByteLanes>(l: L, rows: SixteenRows<'_>, span: &mut Span) {
        let (mut scales, mut offsets) = ([l.splat(0.0); LANES], [l.splat(0.0); LANES]);
        for row in 0..LANES {
            [scales[row], offsets[row]] = Self::scales(l, rows.row(row));
        }
        let (scales, offsets) = (l.transposed(scales), l.transposed(offsets));
        for group in 0..Self::GROUPS {
            span.set_scales(l, group, scales[group], offsets[group]);
        }
    }
}

/// What is the same for each block of 256.
macro_rules! byte_block {
    ($Block:ident) => {
        impl ByteBlock for $Block {
            const COLUMNS: usize = 256;
            const BLOCK_BYTES: usize = <Self as Block256>::BYTES;
            const GROUP: usize = 256 / <Self as Block256>::GROUPS;
            const QUANTS: Quants = <Self as Columns256>::QUANTS;
            const OFFSETS: bool = <Self as Columns256>::OFFSETS;

            #[inline(always)]
            fn unpack<L: ByteLanes>(
                l: L,
                rows: SixteenRows<'_>,
                _: usize,
                ahead: &mut Ahead<'_>,
                span: &mut Span,
            ) {
                Self::scales_of_rows(l, rows, span);
                macro_rules! half {
                    ($half:literal) => {{
                        for part in 0..2 {
                            ahead.ask(LANES * Self::BLOCK_BYTES / 4);
                            Self::quarter(l, rows, $half, part, span);
                        }
                    }};
                }
                // Written out, so that the shifts of each half are known when compiling.
                half!(0);
                half!(1);
            }
        }
    };
}

byte_block!(Q2K);
byte_block!(Q3K);
byte_block!(Q4K);
byte_block!(Q5K);
byte_block!(Q6K);
byte_block!(IQ4XS);

/// Low bits, and high ones shifted left.
#[inline(always)]
fn joined<L: ByteLanes, const BITS: u32>(l: L, mut low: [L::Bytes; 4], high: [L::Bytes; 4]) -> [L::Bytes; 4] {
    for i in 0..4 {
        low[i] = l.or_64(low[i], l.shift_64_left::<BITS>(high[i]));
    }
    low
}

impl Columns256 for Q2K {
    const QUANTS: Quants = Quants { signed: false, most: 3 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        let packed = l.columns(rows, 16 + 32 * half + 16 * part);
        let first = 128 * half + 16 * part;
        span.set_quants::<L, Self>(l, first, bits(l, packed, 0, 3));
        span.set_quants::<L, Self>(l, first + 32, bits(l, packed, 2, 3));
        span.set_quants::<L, Self>(l, first + 64, bits(l, packed, 4, 3));
        span.set_quants::<L, Self>(l, first + 96, bits(l, packed, 6, 3));
    }
}

impl Columns256 for Q3K {
    const QUANTS: Quants = Quants { signed: false, most: 7 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        let (low, third) = (l.columns(rows, 32 + 32 * half + 16 * part), l.columns(rows, 16 * part));
        let (first, bit) = (128 * half + 16 * part, 4 * half as u32);
        macro_rules! columns {
            ($i:literal) => {{
                let third = bits(l, third, bit + $i, 1);
                let quants = joined::<L, 2>(l, bits(l, low, 2 * $i, 3), third);
                span.set_quants::<L, Self>(l, first + 32 * $i, quants);
            }};
        }
        columns!(0);
        columns!(1);
        columns!(2);
        columns!(3);
    }
}

/// Scales and offsets of Q4_K and Q5_K, all rows at once: as [`Block256::scales`] of these.
#[inline(always)]
fn eight_scales<L: ByteLanes>(l: L, rows: SixteenRows<'_>, span: &mut Span) {
    let [_, low, middle, high] = l.columns(rows, 0);
    let (low, middle, high) = (l.integers(low), l.integers(middle), l.integers(high));
    let [d, minimum] = l.two_halves_each(&rows.words(0));
    let minimum = l.multiply(minimum, l.splat(-1.0));
    macro_rules! group {
        ($at:literal) => {{
            let whole = [l.shift_right::<{ 8 * $at }>(low), l.shift_right::<{ 8 * $at }>(middle)];
            let scales = l.multiply(l.float(l.and(whole[0], 63)), d);
            let offsets = l.multiply(l.float(l.and(whole[1], 63)), minimum);
            span.set_scales(l, $at, scales, offsets);
            // Of group 4 + $at: four low bits and two high ones.
            let four = [
                l.and(l.shift_right::<{ 8 * $at }>(high), 15),
                l.and(l.shift_right::<{ 8 * $at + 4 }>(high), 15),
            ];
            let two = [l.and(l.shift_right::<6>(whole[0]), 3), l.and(l.shift_right::<6>(whole[1]), 3)];
            let scales = l.multiply(l.float(l.or(four[0], l.shift_left::<4>(two[0]))), d);
            let offsets = l.multiply(l.float(l.or(four[1], l.shift_left::<4>(two[1]))), minimum);
            span.set_scales(l, 4 + $at, scales, offsets);
        }};
    }
    group!(0);
    group!(1);
    group!(2);
    group!(3);
}

impl Columns256 for Q4K {
    const QUANTS: Quants = Quants { signed: false, most: 15 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes>(l: L, rows: SixteenRows<'_>, span: &mut Span) {
        eight_scales(l, rows, span);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        let first = 128 * half + 64 * part;
        for of_16 in [0, 16] {
            let [low, upper] = nibbles(l, rows, 16 + first / 2 + of_16);
            span.set_quants::<L, Self>(l, first + of_16, low);
            span.set_quants::<L, Self>(l, first + of_16 + 32, upper);
        }
    }
}

impl Columns256 for Q5K {
    const QUANTS: Quants = Quants { signed: false, most: 31 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes>(l: L, rows: SixteenRows<'_>, span: &mut Span) {
        eight_scales(l, rows, span);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        let fifth = l.columns(rows, 16 + 16 * part);
        let (first, bit) = (128 * half + 16 * part, 4 * half as u32);
        macro_rules! columns {
            ($of_64:literal) => {{
                let [low, upper] = nibbles(l, rows, 48 + 64 * half + 32 * $of_64 + 16 * part);
                let low = joined::<L, 4>(l, low, bits(l, fifth, bit + 2 * $of_64, 1));
                let upper = joined::<L, 4>(l, upper, bits(l, fifth, bit + 2 * $of_64 + 1, 1));
                span.set_quants::<L, Self>(l, first + 64 * $of_64, low);
                span.set_quants::<L, Self>(l, first + 64 * $of_64 + 32, upper);
            }};
        }
        columns!(0);
        columns!(1);
    }
}

impl Columns256 for Q6K {
    const QUANTS: Quants = Quants { signed: false, most: 63 };
    const OFFSETS: bool = true;

    /// As [`Block256::scales`], all rows at once.
    #[inline(always)]
    fn scales_of_rows<L: ByteLanes>(l: L, rows: SixteenRows<'_>, span: &mut Span) {
        let [d, _] = l.two_halves_each(&rows.halves(208));
        for (four, scales) in l.columns(rows, 192).into_iter().enumerate() {
            let scales = l.integers(scales);
            macro_rules! group {
                ($at:literal) => {{
                    let scales = l.multiply(l.float(l.signed_byte::<{ 24 - 8 * $at }>(scales)), d);
                    span.set_scales(l, 4 * four + $at, scales, l.multiply(scales, l.splat(-32.0)));
                }};
            }
            group!(0);
            group!(1);
            group!(2);
            group!(3);
        }
    }

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        // Two high bits of four columns lie in one byte, four low ones of two.
        let high = l.columns(rows, 128 + 32 * half + 16 * part);
        let first = 128 * half + 16 * part;
        for (behind, right) in [(0, 0), (32, 2)] {
            let low = l.columns(rows, 64 * half + 16 * part + behind);
            let quants = joined::<L, 4>(l, bits(l, low, 0, 15), bits(l, high, right, 3));
            let upper = joined::<L, 4>(l, bits(l, low, 4, 15), bits(l, high, right + 4, 3));
            span.set_quants::<L, Self>(l, first + behind, quants);
            span.set_quants::<L, Self>(l, first + behind + 64, upper);
        }
    }
}

impl Columns256 for IQ4XS {
    const QUANTS: Quants = Quants { signed: true, most: 127 };
    const OFFSETS: bool = false;

    #[inline(always)]
    fn quarter<L: ByteLanes>(l: L, rows: SixteenRows<'_>, half: usize, part: usize, span: &mut Span) {
        let first = 128 * half + 64 * part;
        for of_32 in 0..2 {
            // Low and high four bits of sixteen bytes are 32 columns that follow each other.
            let [low, upper] = nibbles(l, rows, 8 + first / 2 + 16 * of_32);
            span.set_quants::<L, Self>(l, first + 32 * of_32, entries(l, &VALUES, low));
            span.set_quants::<L, Self>(l, first + 32 * of_32 + 16, entries(l, &VALUES, upper));
        }
    }
}
