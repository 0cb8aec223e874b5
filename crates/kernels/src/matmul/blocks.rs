//! The block types of GGUF, each described once: where its quants are, and which scale and offset they have.
//!
//! w = q·scale + offset throughout. Functions here are compiled into their callers, with the vector instructions of these;
//! closures would not be, so there are none.

mod bytes;
mod grid;
mod grid_tables;
mod k;
mod nonlinear;
mod ternary;

pub(super) use bytes::{ByteBlock, Span, Unpacked};
pub(super) use grid::{IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS};
pub(super) use k::{Q2K, Q3K, Q4K, Q5K, Q6K, Q8K};
pub(super) use nonlinear::{IQ4NL, IQ4XS, MXFP4};
pub(super) use ternary::{TQ1_0, TQ2_0};

use crate::lanes::{LANES, Lanes, half};

/// A block of 32 elements with one scale.
pub(super) trait Block32 {
    /// Bytes of a block.
    const BYTES: usize;
    /// Where the offset comes from.
    const OFFSET: Offset;

    /// The scale sixteen times, and as a number with the one behind it: two f16 for most.
    #[inline(always)]
    fn scale<L: Lanes>(l: L, block: &[u8]) -> (L::Floats, [f32; 2]) {
        l.two_halves(bytes(block, 0))
    }

    /// The 32 quants; `block` has [`Self::BYTES`].
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2];
}

/// The offset of a block of 32.
pub(super) enum Offset {
    None,
    /// This many times the scale.
    OfScale(f32),
    /// The number behind the scale.
    NextToScale,
}

/// A block of 256 elements: groups of 16 or 32 have scales and offsets of their own.
pub(super) trait Block256 {
    /// Bytes of a block.
    const BYTES: usize;
    /// Groups with a scale of their own: 8 or 16.
    const GROUPS: usize;

    /// Elements 16·at … 16·at + 15.
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers;

    /// Elements 32·at … 32·at + 31, as words.
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words;

    /// Scale and offset of each group; what is beyond [`Self::GROUPS`] is not used.
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2];
}

/// A block of 256 elements whose quants are signed bytes, or magnitudes and signs.
trait Bytes256 {
    /// As of [`Block256`].
    const BYTES: usize;
    /// As of [`Block256`].
    const GROUPS: usize;

    /// Elements 32·at … 32·at + 31, eight at a time, and a bit for each that is set where it is to be times −1; no such one
    /// is −128.
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32);

    /// As of [`Block256`].
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2];
}

impl<B: Bytes256> Block256 for B {
    const BYTES: usize = B::BYTES;
    const GROUPS: usize = B::GROUPS;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        let ([a, b, c, d], negative) = B::quants(block, at / 2);
        match at % 2 {
            0 => l.negated([a, b], negative as u16),
            _ => l.negated([c, d], (negative >> 16) as u16),
        }
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        let (quants, negative) = B::quants(block, at);
        l.negated_words(quants, negative)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        B::scales(l, block)
    }
}

#[inline(always)]
pub(super) fn dequantize_32<L: Lanes, B: Block32>(l: L, blocks: &[u8], output: &mut [f32]) {
    for (block, y) in blocks.chunks_exact(B::BYTES).zip(output.as_chunks_mut::<32>().0) {
        let (scale, [_, next]) = B::scale(l, block);
        let offset = match B::OFFSET {
            Offset::None => l.splat(0.0),
            Offset::OfScale(factor) => l.multiply(scale, l.splat(factor)),
            Offset::NextToScale => l.splat(next),
        };
        let [low, upper] = B::quants(l, block);
        let (groups, _) = y.as_chunks_mut::<LANES>();
        l.store(l.multiply_add(l.float(low), scale, offset), &mut groups[0]);
        l.store(l.multiply_add(l.float(upper), scale, offset), &mut groups[1]);
    }
}

#[inline(always)]
pub(super) fn dequantize_256<L: Lanes, B: Block256>(l: L, blocks: &[u8], output: &mut [f32]) {
    for (block, y) in blocks.chunks_exact(B::BYTES).zip(output.as_chunks_mut::<256>().0) {
        let [scales, offsets] = stored(l, B::scales(l, block));
        for (at, y) in y.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let group = at * B::GROUPS / 16;
            let (scale, offset) = (l.splat(scales[group]), l.splat(offsets[group]));
            l.store(l.multiply_add(l.float(B::quants(l, block, at)), scale, offset), y);
        }
    }
}

/// Scales and offsets as numbers.
#[inline(always)]
pub(super) fn stored<L: Lanes>(l: L, [scales, offsets]: [L::Floats; 2]) -> [[f32; LANES]; 2] {
    let mut stored = [[0.0; LANES]; 2];
    l.store(scales, &mut stored[0]);
    l.store(offsets, &mut stored[1]);
    stored
}

/// The N bytes at an offset.
#[inline(always)]
pub(super) fn bytes<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    // Offsets are constants within blocks of known size: there always are N bytes.
    match block[at..].first_chunk() {
        Some(bytes) => bytes,
        None => &[0; N],
    }
}

/// The f16 at an offset.
#[inline(always)]
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    half(u16::from_le_bytes(*bytes(block, at)))
}

#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes(block, at))
}

/// 32 elements of four bits: low ones first.
#[inline(always)]
fn nibbles<L: Lanes>(l: L, packed: &[u8; 16]) -> [L::Integers; 2] {
    let both = l.unsigned(packed);
    [l.and(both, 15), l.shift_right::<4>(both)]
}

/// The same with a fifth bit for each.
#[inline(always)]
fn five_bits<L: Lanes>(l: L, packed: &[u8; 16], high: u32) -> [L::Integers; 2] {
    let [low, upper] = nibbles(l, packed);
    [l.or(low, l.where_set(high as u16, 16)), l.or(upper, l.where_set((high >> 16) as u16, 16))]
}

pub(super) struct Q4_0;

impl Block32 for Q4_0 {
    const BYTES: usize = 18;
    const OFFSET: Offset = Offset::OfScale(-8.0);

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        nibbles(l, bytes(block, 2))
    }
}

pub(super) struct Q4_1;

impl Block32 for Q4_1 {
    const BYTES: usize = 20;
    const OFFSET: Offset = Offset::NextToScale;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        nibbles(l, bytes(block, 4))
    }
}

pub(super) struct Q5_0;

impl Block32 for Q5_0 {
    const BYTES: usize = 22;
    const OFFSET: Offset = Offset::OfScale(-16.0);

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        five_bits(l, bytes(block, 6), word_at(block, 2))
    }
}

pub(super) struct Q5_1;

impl Block32 for Q5_1 {
    const BYTES: usize = 24;
    const OFFSET: Offset = Offset::NextToScale;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        five_bits(l, bytes(block, 8), word_at(block, 4))
    }
}

pub(super) struct Q8_0;

impl Block32 for Q8_0 {
    const BYTES: usize = 34;
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        [l.signed(bytes(block, 2)), l.signed(bytes(block, 18))]
    }
}

/// Sums of activations go with the quants, which nothing here reads: made for activations rather than for weights.
pub(super) struct Q8_1;

impl Block32 for Q8_1 {
    const BYTES: usize = 36;
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        [l.signed(bytes(block, 4)), l.signed(bytes(block, 20))]
    }
}

/// The 32 bytes at an offset, eight at a time.
#[inline(always)]
fn eights(bytes_of: &[u8], at: usize) -> [u64; 4] {
    std::array::from_fn(|i| u64::from_le_bytes(*bytes(bytes_of, at + 8 * i)))
}

/// Two bits of each byte.
#[inline(always)]
fn two_bits<L: Lanes>(l: L, packed: &[u8; 16], pair: usize) -> L::Integers {
    let q = l.unsigned(packed);
    let shifted = match pair {
        0 => q,
        1 => l.shift_right::<2>(q),
        2 => l.shift_right::<4>(q),
        _ => l.shift_right::<6>(q),
    };
    l.and(shifted, 3)
}

/// The same of 32 bytes, as words.
#[inline(always)]
fn two_bit_words<L: Lanes>(l: L, packed: &[u8; 32], pair: usize) -> L::Words {
    let q = l.unsigned_words(packed);
    let shifted = match pair {
        0 => q,
        1 => l.shift_words_right::<2>(q),
        2 => l.shift_words_right::<4>(q),
        _ => l.shift_words_right::<6>(q),
    };
    l.and_words(shifted, 3)
}
