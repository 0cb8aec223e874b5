//! Blocks whose quants fit a byte, those of sixteen rows at a time, for integer products with activations of eight bits.

use super::k::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::nonlinear::{IQ4NL, IQ4XS, MXFP4, TWICE_E2M1, VALUES};
use super::{Block32, Block256, Offset, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::ahead::Ahead;
use crate::lanes::{BYTES, BlockWords, ByteLanes, LANES, Quants, SixteenRows, Vector, WordOrder};
use std::ops::Range;

/// 256 columns of sixteen rows, unpacked.
pub(in crate::matmul) struct Span {
    /// Columns 4i … 4i + 3 of each row, as products take them.
    pub(in crate::matmul) quants: [Vector<u8, BYTES>; 64],
    /// Those of each group of columns, of each row.
    pub(in crate::matmul) scales: [Vector<f32, LANES>; 16],
    pub(in crate::matmul) offsets: [Vector<f32, LANES>; 16],
    /// Of [`ByteBlock::WHOLE_SCALES`], instead: those of each group, as whole numbers, and what multiplies all of them.
    pub(in crate::matmul) whole_scales: [Vector<u8, BYTES>; 16],
    pub(in crate::matmul) unit: Vector<f32, LANES>,
}

impl Default for Span {
    fn default() -> Self {
        let zeros = [Vector([0.0; LANES]); 16];
        let none = Vector([0; BYTES]);
        Self { quants: [none; 64], scales: zeros, offsets: zeros, whole_scales: [none; 16], unit: zeros[0] }
    }
}

/// What is made of columns as they are unpacked.
pub(in crate::matmul) trait Unpacked<L: ByteLanes> {
    /// Takes sixteen columns from one on. The first sixteen of a group of 32 come before the others.
    fn quants<B: ByteBlock>(&mut self, l: L, column: usize, quants: [L::Bytes; 4]);
    /// Takes what a group of columns has in common; quants come later.
    fn scales(&mut self, l: L, group: usize, scales: L::Floats, offsets: L::Floats);
    /// The same of [`ByteBlock::WHOLE_SCALES`], from [`ByteLanes::scale_byte`].
    fn whole_scales(&mut self, l: L, group: usize, scales: L::Integers);
    /// Takes what multiplies all of these; quants come later.
    fn unit(&mut self, l: L, unit: L::Floats);
}

impl<L: ByteLanes> Unpacked<L> for Span {
    #[inline(always)]
    fn quants<B: ByteBlock>(&mut self, l: L, column: usize, quants: [L::Bytes; 4]) {
        for (i, quants) in quants.into_iter().enumerate() {
            l.store_64(quants, &mut self.quants[column / 4 + i].0);
        }
    }

    #[inline(always)]
    fn scales(&mut self, l: L, group: usize, scales: L::Floats, offsets: L::Floats) {
        l.store(scales, &mut self.scales[group].0);
        l.store(offsets, &mut self.offsets[group].0);
    }

    #[inline(always)]
    fn whole_scales(&mut self, l: L, group: usize, scales: L::Integers) {
        l.store_64(l.bytes(scales), &mut self.whole_scales[group].0);
    }

    #[inline(always)]
    fn unit(&mut self, l: L, unit: L::Floats) {
        l.store(unit, &mut self.unit.0);
    }
}

/// Passes columns on as products take them.
#[inline(always)]
fn pass<L: ByteLanes, B: ByteBlock>(
    l: L,
    to: &mut impl Unpacked<L>,
    column: usize,
    mut quants: [L::Bytes; 4],
) {
    if B::QUANTS.signed {
        for quants in &mut quants {
            *quants = l.signed_quants(*quants);
        }
    }
    to.quants::<B>(l, column, quants);
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
    /// Whether scales are signed bytes of sixteen columns each, which a number of the block multiplies, and quants of six bits less 32.
    const WHOLE_SCALES: bool = false;
    /// Whether columns of a group are unpacked before those of the next group are complete.
    const IN_ORDER: bool;
    /// Its words, where sixteen rows are interleaved.
    const WORDS: BlockWords;

    /// Unpacks some groups of 32 columns, at most eight; `rows` has the bytes of these. As many bytes are asked for ahead.
    fn unpack<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        groups: usize,
        ahead: &mut Ahead,
        to: &mut impl Unpacked<L>,
    );
}

/// A block of 32 columns of sixteen rows at once.
trait Columns32: Block32 {
    const QUANTS: Quants;

    /// Columns 4i … 4i + 3 and 16 + 4i … 16 + 4i + 3 of a block.
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2];

    /// Scales and offsets of some blocks. All bytes are gathered first, because numbers of four bytes cannot be read as vectors right
    /// behind.
    #[inline(always)]
    fn scales<L: ByteLanes, R: SixteenRows>(l: L, rows: R, blocks: Range<usize>, to: &mut impl Unpacked<L>) {
        let mut numbers = [[0; LANES]; 8];
        for (block, numbers) in blocks.clone().zip(&mut numbers) {
            *numbers = match Self::OFFSET {
                Offset::NextToScale => rows.words(block, 0),
                _ => rows.halves(block, 0),
            };
        }
        for (block, numbers) in blocks.zip(&numbers) {
            let [scales, next] = l.two_halves_each(numbers);
            let offsets = match Self::OFFSET {
                Offset::OfScale(factor) => l.multiply(scales, l.splat(factor)),
                _ => next,
            };
            to.scales(l, block, scales, offsets);
        }
    }
}

impl<B: Columns32> ByteBlock for B {
    const COLUMNS: usize = 32;
    const BLOCK_BYTES: usize = B::BYTES;
    const GROUP: usize = 32;
    const QUANTS: Quants = <B as Columns32>::QUANTS;
    const OFFSETS: bool = !matches!(B::OFFSET, Offset::None);
    const IN_ORDER: bool = true;
    const WORDS: BlockWords = BlockWords::new(32, B::BYTES, WordOrder::File);

    #[inline(always)]
    fn unpack<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        groups: usize,
        ahead: &mut Ahead,
        to: &mut impl Unpacked<L>,
    ) {
        let groups = groups.min(8);
        if R::APART {
            B::scales(l, rows, 0..groups, to);
        }
        for group in 0..groups {
            if !R::APART {
                B::scales(l, rows, group..group + 1, to);
            }
            ahead.ask(LANES * B::BYTES);
            let [low, upper] = B::columns(l, rows, group);
            pass::<L, B>(l, to, 32 * group, low);
            pass::<L, B>(l, to, 32 * group + 16, upper);
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
fn nibbles<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize, at: usize) -> [[L::Bytes; 4]; 2] {
    let packed = rows.columns(l, block, at);
    [bits(l, packed, 0, 15), bits(l, packed, 4, 15)]
}

/// The same, with a fifth bit from a number of four bytes.
#[inline(always)]
fn five_bits<L: ByteLanes, R: SixteenRows>(
    l: L,
    rows: R,
    block: usize,
    [high, at]: [usize; 2],
) -> [[L::Bytes; 4]; 2] {
    let mut quants = nibbles(l, rows, block, at);
    let high = rows.words(block, high);
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
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        nibbles(l, rows, block, 2)
    }
}

impl Columns32 for Q4_1 {
    const QUANTS: Quants = Quants { signed: false, most: 15 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        nibbles(l, rows, block, 4)
    }
}

impl Columns32 for Q5_0 {
    const QUANTS: Quants = Quants { signed: false, most: 31 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        five_bits(l, rows, block, [2, 6])
    }
}

impl Columns32 for Q5_1 {
    const QUANTS: Quants = Quants { signed: false, most: 31 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        five_bits(l, rows, block, [4, 8])
    }
}

impl Columns32 for Q8_0 {
    const QUANTS: Quants = Quants { signed: true, most: 128 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        [rows.columns(l, block, 2), rows.columns(l, block, 18)]
    }
}

impl Columns32 for IQ4NL {
    const QUANTS: Quants = Quants { signed: true, most: 127 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        let [low, upper] = nibbles(l, rows, block, 2);
        [entries(l, &VALUES, low), entries(l, &VALUES, upper)]
    }
}

impl Columns32 for MXFP4 {
    const QUANTS: Quants = Quants { signed: true, most: 12 };

    #[inline(always)]
    fn columns<L: ByteLanes, R: SixteenRows>(l: L, rows: R, block: usize) -> [[L::Bytes; 4]; 2] {
        let [low, upper] = nibbles(l, rows, block, 1);
        [entries(l, &TWICE_E2M1, low), entries(l, &TWICE_E2M1, upper)]
    }

    #[inline(always)]
    fn scales<L: ByteLanes, R: SixteenRows>(l: L, rows: R, blocks: Range<usize>, to: &mut impl Unpacked<L>) {
        for block in blocks {
            let mut scales = [0.0; LANES];
            for (scale, exponent) in scales.iter_mut().zip(rows.bytes(block, 0)) {
                *scale = super::nonlinear::half_power_of_two(exponent);
            }
            to.scales(l, block, l.load(&scales), l.splat(0.0));
        }
    }
}

/// A block of 256 columns of sixteen rows at once.
trait Columns256: Block256 {
    const QUANTS: Quants;
    const OFFSETS: bool;
    const WHOLE_SCALES: bool = false;
    const ORDER: WordOrder = WordOrder::File;

    /// Unpacks a quarter of the columns, those that share most bytes: of most types columns 128·half + 16·part + 32i … + 15, i from 0
    /// to 3; there are two halves of two parts.
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    );

    /// Scales and offsets of all groups of the first block, as [`Block256::scales`] of each row.
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>);
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
            const WHOLE_SCALES: bool = <Self as Columns256>::WHOLE_SCALES;
            const IN_ORDER: bool = Self::GROUP == 32;
            const WORDS: BlockWords = BlockWords::new(256, Self::BLOCK_BYTES, <Self as Columns256>::ORDER);

            #[inline(always)]
            fn unpack<L: ByteLanes, R: SixteenRows>(
                l: L,
                rows: R,
                _: usize,
                ahead: &mut Ahead,
                to: &mut impl Unpacked<L>,
            ) {
                Self::scales_of_rows(l, rows, to);
                macro_rules! quarter {
                    ($half:literal, $part:literal) => {{
                        ahead.ask(LANES * Self::BLOCK_BYTES / 4);
                        Self::quarter(l, rows, $half, $part, to);
                    }};
                }
                // Written out, so that shifts and offsets are known when compiling.
                quarter!(0, 0);
                quarter!(0, 1);
                quarter!(1, 0);
                quarter!(1, 1);
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

/// Four bytes of each row of the first block, as a number.
#[inline(always)]
fn word_of_each<L: ByteLanes, R: SixteenRows>(l: L, rows: R, at: usize) -> L::Integers {
    l.integers(l.load_64(bytemuck::cast_ref(&rows.words(0, at))))
}

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
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        let [d, minimum] = l.two_halves_each(&rows.words(0, 80));
        let minimum = l.multiply(minimum, l.splat(-1.0));
        for (four, both) in rows.columns(l, 0, 0).into_iter().enumerate() {
            let both = l.integers(both);
            macro_rules! group {
                ($at:literal) => {{
                    let scales = l.float(l.and(l.shift_right::<{ 8 * $at }>(both), 15));
                    let minima = l.float(l.and(l.shift_right::<{ 8 * $at + 4 }>(both), 15));
                    to.scales(l, 4 * four + $at, l.multiply(scales, d), l.multiply(minima, minimum));
                }};
            }
            group!(0);
            group!(1);
            group!(2);
            group!(3);
        }
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        let packed = rows.columns(l, 0, 16 + 32 * half + 16 * part);
        let first = 128 * half + 16 * part;
        pass::<L, Self>(l, to, first, bits(l, packed, 0, 3));
        pass::<L, Self>(l, to, first + 32, bits(l, packed, 2, 3));
        pass::<L, Self>(l, to, first + 64, bits(l, packed, 4, 3));
        pass::<L, Self>(l, to, first + 96, bits(l, packed, 6, 3));
    }
}

impl Columns256 for Q3K {
    const QUANTS: Quants = Quants { signed: false, most: 7 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        let [d, _] = l.two_halves_each(&rows.halves(0, 108));
        // Sixteen scales of six bits: four low ones of two in each of eight bytes, two high ones of four in each of four.
        let low = [word_of_each(l, rows, 96), word_of_each(l, rows, 100)];
        let high = word_of_each(l, rows, 104);
        macro_rules! group {
            ($four:literal, $at:literal) => {{
                let low = l.shift_right::<{ 8 * $at + 4 * ($four / 2) }>(low[$four % 2]);
                let high = l.and(l.shift_right::<{ 8 * $at + 2 * $four }>(high), 3);
                let scales = l.float(l.or(l.and(low, 15), l.shift_left::<4>(high)));
                let scales = l.multiply(l.add(scales, l.splat(-32.0)), d);
                to.scales(l, 4 * $four + $at, scales, l.multiply(scales, l.splat(-4.0)));
            }};
        }
        macro_rules! four {
            ($four:literal) => {{
                group!($four, 0);
                group!($four, 1);
                group!($four, 2);
                group!($four, 3);
            }};
        }
        four!(0);
        four!(1);
        four!(2);
        four!(3);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        let (low, third) = (rows.columns(l, 0, 32 + 32 * half + 16 * part), rows.columns(l, 0, 16 * part));
        let (first, bit) = (128 * half + 16 * part, 4 * half as u32);
        macro_rules! columns {
            ($i:literal) => {{
                let third = bits(l, third, bit + $i, 1);
                let quants = joined::<L, 2>(l, bits(l, low, 2 * $i, 3), third);
                pass::<L, Self>(l, to, first + 32 * $i, quants);
            }};
        }
        columns!(0);
        columns!(1);
        columns!(2);
        columns!(3);
    }
}

/// Scales and offsets of Q4_K and Q5_K.
#[inline(always)]
fn eight_scales<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
    let [_, low, middle, high] = rows.columns(l, 0, 0);
    let (low, middle, high) = (l.integers(low), l.integers(middle), l.integers(high));
    let [d, minimum] = l.two_halves_each(&rows.words(0, 0));
    let minimum = l.multiply(minimum, l.splat(-1.0));
    macro_rules! group {
        ($at:literal) => {{
            let whole = [l.shift_right::<{ 8 * $at }>(low), l.shift_right::<{ 8 * $at }>(middle)];
            let scales = l.multiply(l.float(l.and(whole[0], 63)), d);
            let offsets = l.multiply(l.float(l.and(whole[1], 63)), minimum);
            to.scales(l, $at, scales, offsets);
            // Of group 4 + $at: four low bits and two high ones.
            let four = [
                l.and(l.shift_right::<{ 8 * $at }>(high), 15),
                l.and(l.shift_right::<{ 8 * $at + 4 }>(high), 15),
            ];
            let two = [l.and(l.shift_right::<6>(whole[0]), 3), l.and(l.shift_right::<6>(whole[1]), 3)];
            let scales = l.multiply(l.float(l.or(four[0], l.shift_left::<4>(two[0]))), d);
            let offsets = l.multiply(l.float(l.or(four[1], l.shift_left::<4>(two[1]))), minimum);
            to.scales(l, 4 + $at, scales, offsets);
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
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        eight_scales(l, rows, to);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        let first = 128 * half + 64 * part;
        macro_rules! columns {
            ($of_16:literal) => {{
                let [low, upper] = nibbles(l, rows, 0, 16 + first / 2 + $of_16);
                pass::<L, Self>(l, to, first + $of_16, low);
                pass::<L, Self>(l, to, first + $of_16 + 32, upper);
            }};
        }
        columns!(0);
        columns!(16);
    }
}

impl Columns256 for Q5K {
    const QUANTS: Quants = Quants { signed: false, most: 31 };
    const OFFSETS: bool = true;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        eight_scales(l, rows, to);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        let fifth = rows.columns(l, 0, 16 + 16 * part);
        let (first, bit) = (128 * half + 16 * part, 4 * half as u32);
        macro_rules! columns {
            ($of_64:literal) => {{
                let [low, upper] = nibbles(l, rows, 0, 48 + 64 * half + 32 * $of_64 + 16 * part);
                let low = joined::<L, 4>(l, low, bits(l, fifth, bit + 2 * $of_64, 1));
                let upper = joined::<L, 4>(l, upper, bits(l, fifth, bit + 2 * $of_64 + 1, 1));
                pass::<L, Self>(l, to, first + 64 * $of_64, low);
                pass::<L, Self>(l, to, first + 64 * $of_64 + 32, upper);
            }};
        }
        columns!(0);
        columns!(1);
    }
}

impl Columns256 for Q6K {
    const QUANTS: Quants = Quants::SIX_BITS;
    const OFFSETS: bool = false;
    const WHOLE_SCALES: bool = true;
    const ORDER: WordOrder = WordOrder::Q6K;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        let [d, _] = l.two_halves_each(&rows.halves(0, 208));
        to.unit(l, d);
        let scales = rows.columns(l, 0, 192);
        macro_rules! four {
            ($four:literal) => {{
                let scales = l.integers(scales[$four]);
                to.whole_scales(l, 4 * $four, l.scale_byte::<24>(scales));
                to.whole_scales(l, 4 * $four + 1, l.scale_byte::<16>(scales));
                to.whole_scales(l, 4 * $four + 2, l.scale_byte::<8>(scales));
                to.whole_scales(l, 4 * $four + 3, l.scale_byte::<0>(scales));
            }};
        }
        four!(0);
        four!(1);
        four!(2);
        four!(3);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        // Two high bits of four columns lie in one byte, four low ones of two.
        let high = rows.columns(l, 0, 128 + 32 * half + 16 * part);
        let first = 128 * half + 16 * part;
        macro_rules! columns {
            ($behind:literal, $right:literal) => {{
                let low = rows.columns(l, 0, 64 * half + 16 * part + $behind);
                let quants = joined::<L, 4>(l, bits(l, low, 0, 15), bits(l, high, $right, 3));
                let upper = joined::<L, 4>(l, bits(l, low, 4, 15), bits(l, high, $right + 4, 3));
                pass::<L, Self>(l, to, first + $behind, quants);
                pass::<L, Self>(l, to, first + $behind + 64, upper);
            }};
        }
        columns!(0, 0);
        columns!(32, 2);
    }
}

impl Columns256 for IQ4XS {
    const QUANTS: Quants = Quants { signed: true, most: 127 };
    const OFFSETS: bool = false;

    #[inline(always)]
    fn scales_of_rows<L: ByteLanes, R: SixteenRows>(l: L, rows: R, to: &mut impl Unpacked<L>) {
        // Eight scales of six bits: four low ones in four bytes, two high ones in the two behind d.
        let first = rows.words(0, 0);
        let [d, _] = l.two_halves_each(&first);
        let (high, low) = (l.integers(l.load_64(bytemuck::cast_ref(&first))), word_of_each(l, rows, 4));
        macro_rules! group {
            ($at:literal) => {{
                let low = l.and(l.shift_right::<{ 4 * $at }>(low), 15);
                let high = l.and(l.shift_right::<{ 16 + 2 * $at }>(high), 3);
                let scales = l.add(l.float(l.or(low, l.shift_left::<4>(high))), l.splat(-32.0));
                to.scales(l, $at, l.multiply(scales, d), l.splat(0.0));
            }};
        }
        group!(0);
        group!(1);
        group!(2);
        group!(3);
        group!(4);
        group!(5);
        group!(6);
        group!(7);
    }

    #[inline(always)]
    fn quarter<L: ByteLanes, R: SixteenRows>(
        l: L,
        rows: R,
        half: usize,
        part: usize,
        to: &mut impl Unpacked<L>,
    ) {
        let first = 128 * half + 64 * part;
        macro_rules! columns {
            ($of_32:literal) => {{
                // Low and high four bits of sixteen bytes are 32 columns that follow each other.
                let [low, upper] = nibbles(l, rows, 0, 8 + first / 2 + 16 * $of_32);
                pass::<L, Self>(l, to, first + 32 * $of_32, entries(l, &VALUES, low));
                pass::<L, Self>(l, to, first + 32 * $of_32 + 16, entries(l, &VALUES, upper));
            }};
        }
        columns!(0);
        columns!(1);
    }
}
