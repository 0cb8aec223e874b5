//! Blocks whose quants fit a byte, 256 elements at a time, for integer products with activations of eight bits.

use super::k::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::nonlinear::{IQ4NL, IQ4XS, MXFP4, TWICE_E2M1, VALUES};
use super::{Block32, Block256, Offset, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, bytes, word_at};
use crate::lanes::{ByteLanes, LANES};
use std::marker::PhantomData;

/// 256 elements with 8 or 16 scales and offsets.
pub(in super::super) trait ByteBlock {
    /// Bytes of 256 elements.
    const BYTES: usize;
    /// Groups with a scale of their own: 8 or 16.
    const GROUPS: usize;
    /// Whether quants are signed; what is unsigned is below 128.
    const SIGNED: bool;
    /// Whether there are offsets.
    const OFFSETS: bool;

    /// Elements 64·at … 64·at + 63.
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes;

    /// Scale and offset of each group; what is beyond [`Self::GROUPS`] is not used.
    fn scales<L: ByteLanes>(l: L, block: &[u8]) -> [L::Floats; 2];
}

/// Eight blocks of 32 elements.
pub(in super::super) struct Eight<B>(PhantomData<B>);

/// A block of 32 elements, two of which are unpacked at once.
pub(in super::super) trait Pair: Block32 {
    const SIGNED: bool;

    /// The quants of both.
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes;

    /// As of [`ByteBlock`], of eight blocks.
    #[inline(always)]
    fn eight_scales<L: ByteLanes>(l: L, blocks: &[u8]) -> [L::Floats; 2] {
        // Two f16 of each block; where there is no offset, the second is not used.
        let mut halves = [0; 4 * 8];
        for (at, to) in halves.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = *bytes(blocks, at * Self::BYTES);
        }
        let [scales, next] = l.alternating(l.widen_f16(&halves));
        match Self::OFFSET {
            Offset::OfScale(factor) => [scales, l.multiply(scales, l.splat(factor))],
            Offset::None | Offset::NextToScale => [scales, next],
        }
    }
}

impl<B: Pair> ByteBlock for Eight<B> {
    const BYTES: usize = 8 * B::BYTES;
    const GROUPS: usize = 8;
    const SIGNED: bool = B::SIGNED;
    const OFFSETS: bool = !matches!(B::OFFSET, Offset::None);

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, blocks: &[u8], at: usize) -> L::Bytes {
        let a = &blocks[2 * at * B::BYTES..];
        B::pair(l, &a[..B::BYTES], &a[B::BYTES..][..B::BYTES])
    }

    #[inline(always)]
    fn scales<L: ByteLanes>(l: L, blocks: &[u8]) -> [L::Floats; 2] {
        B::eight_scales(l, blocks)
    }
}

impl Pair for Q4_0 {
    const SIGNED: bool = false;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        l.nibbles_of_16(bytes(a, 2), bytes(b, 2))
    }
}

impl Pair for Q4_1 {
    const SIGNED: bool = false;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        l.nibbles_of_16(bytes(a, 4), bytes(b, 4))
    }
}

/// Two times 32 bits.
#[inline(always)]
fn two_words(a: u32, b: u32) -> u64 {
    u64::from(a) | u64::from(b) << 32
}

impl Pair for Q5_0 {
    const SIGNED: bool = false;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        let low = l.nibbles_of_16(bytes(a, 6), bytes(b, 6));
        l.or_64(low, l.bytes_where_set(two_words(word_at(a, 2), word_at(b, 2)), 16))
    }
}

impl Pair for Q5_1 {
    const SIGNED: bool = false;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        let low = l.nibbles_of_16(bytes(a, 8), bytes(b, 8));
        l.or_64(low, l.bytes_where_set(two_words(word_at(a, 4), word_at(b, 4)), 16))
    }
}

impl Pair for Q8_0 {
    const SIGNED: bool = true;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        l.two_of_32(bytes(a, 2), bytes(b, 2))
    }
}

impl Pair for IQ4NL {
    const SIGNED: bool = true;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        l.entries_of(&VALUES, l.nibbles_of_16(bytes(a, 2), bytes(b, 2)))
    }
}

impl Pair for MXFP4 {
    const SIGNED: bool = true;

    #[inline(always)]
    fn pair<L: ByteLanes>(l: L, a: &[u8], b: &[u8]) -> L::Bytes {
        l.entries_of(&TWICE_E2M1, l.nibbles_of_16(bytes(a, 1), bytes(b, 1)))
    }

    #[inline(always)]
    fn eight_scales<L: ByteLanes>(l: L, blocks: &[u8]) -> [L::Floats; 2] {
        let mut scales = [0.0; LANES];
        for at in 0..8 {
            scales[at] = super::nonlinear::half_power_of_two(blocks[at * Self::BYTES]);
        }
        [l.load(&scales), l.splat(0.0)]
    }
}

macro_rules! as_of_block_256 {
    () => {
        const BYTES: usize = <Self as Block256>::BYTES;
        const GROUPS: usize = <Self as Block256>::GROUPS;

        #[inline(always)]
        fn scales<L: ByteLanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
            <Self as Block256>::scales(l, block)
        }
    };
}

/// Two bits of 32 bytes for each half of the 64 elements: their places in the bytes.
#[inline(always)]
fn places_of_two_bits(at: usize) -> [u32; 2] {
    let first = 4 * (at % 2) as u32;
    [first, first + 2]
}

/// One bit of 32 bytes for each half of the 64 elements.
#[inline(always)]
fn places_of_bits(at: usize) -> [u32; 2] {
    let first = 2 * at as u32;
    [first, first + 1]
}

impl ByteBlock for Q2K {
    as_of_block_256!();
    const SIGNED: bool = false;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        l.bits_of_32(bytes(block, 16 + at / 2 * 32), places_of_two_bits(at), 3)
    }
}

impl ByteBlock for Q3K {
    as_of_block_256!();
    const SIGNED: bool = false;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        let low = l.bits_of_32(bytes(block, 32 + at / 2 * 32), places_of_two_bits(at), 3);
        let third = l.bits_of_32(bytes(block, 0), places_of_bits(at), 1);
        l.or_64(low, l.shift_64_left::<2>(third))
    }
}

impl ByteBlock for Q4K {
    as_of_block_256!();
    const SIGNED: bool = false;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        l.bits_of_32(bytes(block, 16 + at * 32), [0, 4], 15)
    }
}

impl ByteBlock for Q5K {
    as_of_block_256!();
    const SIGNED: bool = false;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        let low = l.bits_of_32(bytes(block, 48 + at * 32), [0, 4], 15);
        let fifth = l.bits_of_32(bytes(block, 16), places_of_bits(at), 1);
        l.or_64(low, l.shift_64_left::<4>(fifth))
    }
}

impl ByteBlock for Q6K {
    as_of_block_256!();
    const SIGNED: bool = false;
    const OFFSETS: bool = true;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        let packed = l.load_64(bytes(block, 64 * (at / 2)));
        let low = match at % 2 {
            0 => l.and_64(packed, 15),
            _ => l.high_nibbles(packed),
        };
        let high = l.bits_of_32(bytes(block, 128 + 32 * (at / 2)), places_of_two_bits(at), 3);
        l.or_64(low, l.shift_64_left::<4>(high))
    }
}

impl ByteBlock for IQ4XS {
    as_of_block_256!();
    const SIGNED: bool = true;
    const OFFSETS: bool = false;

    #[inline(always)]
    fn quants<L: ByteLanes>(l: L, block: &[u8], at: usize) -> L::Bytes {
        let packed = l.nibbles_of_16(bytes(block, 8 + at * 32), bytes(block, 24 + at * 32));
        l.entries_of(&VALUES, packed)
    }
}
