//! K-quants: groups of 16 or 32 with scales of their own, which have a scale in common.

use super::{Block256, Bytes256, bytes, eights, nibbles, two_bit_words, two_bits, word_at};
use crate::lanes::Lanes;

/// Low or high four bits of 32 bytes, as words.
#[inline(always)]
fn nibble_words<L: Lanes>(l: L, packed: &[u8; 32], high: bool) -> L::Words {
    let both = l.unsigned_words(packed);
    if high { l.shift_words_right::<4>(both) } else { l.and_words(both, 15) }
}

pub(in super::super) struct Q2K;

impl Block256 for Q2K {
    const BYTES: usize = 84;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        // Eight groups of 16 share 32 bytes: two groups for each pair of bits.
        two_bits(l, bytes(block, 16 + at / 8 * 32 + at % 2 * 16), at % 8 / 2)
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        two_bit_words(l, bytes(block, 16 + at / 4 * 32), at % 4)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let [scales, minima] = nibbles(l, bytes(block, 0));
        let (d, [_, minimum]) = l.two_halves(bytes(block, 80));
        [l.multiply(l.float(scales), d), l.multiply(l.float(minima), l.splat(-minimum))]
    }
}

pub(in super::super) struct Q3K;

impl Block256 for Q3K {
    const BYTES: usize = 110;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        let low = two_bits(l, bytes(block, 32 + at / 8 * 32 + at % 2 * 16), at % 8 / 2);
        // One bit of each of 32 bytes: a third bit for each element.
        let high = l.unsigned(bytes(block, at % 2 * 16));
        let third = match at / 8 * 4 + at % 8 / 2 {
            0 => l.shift_left::<2>(high),
            1 => l.shift_left::<1>(high),
            2 => high,
            3 => l.shift_right::<1>(high),
            4 => l.shift_right::<2>(high),
            5 => l.shift_right::<3>(high),
            6 => l.shift_right::<4>(high),
            _ => l.shift_right::<5>(high),
        };
        l.or(low, l.and(third, 4))
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        let low = two_bit_words(l, bytes(block, 32 + at / 4 * 32), at % 4);
        let high = l.unsigned_words(bytes(block, 0));
        let third = match at {
            0 => l.shift_words_left::<2>(high),
            1 => l.shift_words_left::<1>(high),
            2 => high,
            3 => l.shift_words_right::<1>(high),
            4 => l.shift_words_right::<2>(high),
            5 => l.shift_words_right::<3>(high),
            6 => l.shift_words_right::<4>(high),
            _ => l.shift_words_right::<5>(high),
        };
        l.or_words(low, l.and_words(third, 4))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        // Sixteen scales of six bits: four low ones in eight bytes, two high ones in four.
        let (first, second, high) = (word_at(block, 96), word_at(block, 100), word_at(block, 104));
        let upper = |shift: u32| (high >> shift & 0x0303_0303) << 4;
        let words = [
            first & 0x0f0f_0f0f | upper(0),
            second & 0x0f0f_0f0f | upper(2),
            first >> 4 & 0x0f0f_0f0f | upper(4),
            second >> 4 & 0x0f0f_0f0f | upper(6),
        ];
        let (_, [_, d]) = l.two_halves(bytes(block, 106));
        let d = l.splat(d);
        let scales = l.multiply(l.add(l.float(l.unsigned(&packed(words))), l.splat(-32.0)), d);
        [scales, l.multiply(scales, l.splat(-4.0))]
    }
}

/// Sixteen bytes of four words.
#[inline(always)]
fn packed(words: [u32; 4]) -> [u8; 16] {
    let mut all = 0u128;
    for (at, word) in words.into_iter().enumerate() {
        all |= u128::from(word) << (32 * at);
    }
    all.to_le_bytes()
}

/// Scales and offsets of the eight groups of a Q4_K or Q5_K block: six bits each, packed into twelve bytes.
#[inline(always)]
fn eight_scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
    let (d, [_, minimum]) = l.two_halves(bytes(block, 0));
    let (low, middle, high) = (word_at(block, 4), word_at(block, 8), word_at(block, 12));
    // Four bytes at a time: groups 0 … 3 whole, groups 4 … 7 from four low bits and two high ones.
    let scales = [low & 0x3f3f_3f3f, high & 0x0f0f_0f0f | (low >> 6 & 0x0303_0303) << 4];
    let minima = [middle & 0x3f3f_3f3f, high >> 4 & 0x0f0f_0f0f | (middle >> 6 & 0x0303_0303) << 4];
    [
        l.multiply(l.float(l.unsigned(&packed([scales[0], scales[1], 0, 0]))), d),
        l.multiply(l.float(l.unsigned(&packed([minima[0], minima[1], 0, 0]))), l.splat(-minimum)),
    ]
}

pub(in super::super) struct Q4K;

impl Block256 for Q4K {
    const BYTES: usize = 144;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        // Low and high four bits of 32 bytes are 64 elements.
        nibbles(l, bytes(block, 16 + at / 4 * 32 + at % 2 * 16))[at % 4 / 2]
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        nibble_words(l, bytes(block, 16 + at / 2 * 32), at % 2 == 1)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        eight_scales(l, block)
    }
}

pub(in super::super) struct Q5K;

impl Block256 for Q5K {
    const BYTES: usize = 176;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        let low = nibbles(l, bytes(block, 48 + at / 4 * 32 + at % 2 * 16))[at % 4 / 2];
        let high = l.unsigned(bytes(block, 16 + at % 2 * 16));
        let fifth = match at / 2 {
            0 => l.shift_left::<4>(high),
            1 => l.shift_left::<3>(high),
            2 => l.shift_left::<2>(high),
            3 => l.shift_left::<1>(high),
            4 => high,
            5 => l.shift_right::<1>(high),
            6 => l.shift_right::<2>(high),
            _ => l.shift_right::<3>(high),
        };
        l.or(low, l.and(fifth, 16))
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        let low = nibble_words(l, bytes(block, 48 + at / 2 * 32), at % 2 == 1);
        let high = l.unsigned_words(bytes(block, 16));
        let fifth = match at {
            0 => l.shift_words_left::<4>(high),
            1 => l.shift_words_left::<3>(high),
            2 => l.shift_words_left::<2>(high),
            3 => l.shift_words_left::<1>(high),
            4 => high,
            5 => l.shift_words_right::<1>(high),
            6 => l.shift_words_right::<2>(high),
            _ => l.shift_words_right::<3>(high),
        };
        l.or_words(low, l.and_words(fifth, 16))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        eight_scales(l, block)
    }
}

pub(in super::super) struct Q6K;

impl Block256 for Q6K {
    const BYTES: usize = 210;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        // Four quarters of 32 elements in each half: low bits in 64 bytes, high ones in 32.
        let (half_block, quarter, part) = (at / 8, at % 8 / 2, at % 2);
        let low = nibbles(l, bytes(block, 64 * half_block + 32 * (quarter % 2) + 16 * part))[quarter / 2];
        let high = l.unsigned(bytes(block, 128 + 32 * half_block + 16 * part));
        // Bits 0–1, 2–3, 4–5 and 6–7, moved to bits 4–5.
        let high = match quarter {
            0 => l.shift_left::<4>(high),
            1 => l.shift_left::<2>(high),
            2 => high,
            _ => l.shift_right::<2>(high),
        };
        l.or(low, l.and(high, 48))
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        let (half_block, quarter) = (at / 4, at % 4);
        let low = nibble_words(l, bytes(block, 64 * half_block + 32 * (quarter % 2)), quarter >= 2);
        let high = l.unsigned_words(bytes(block, 128 + 32 * half_block));
        let high = match quarter {
            0 => l.shift_words_left::<4>(high),
            1 => l.shift_words_left::<2>(high),
            2 => high,
            _ => l.shift_words_right::<2>(high),
        };
        l.or_words(low, l.and_words(high, 48))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let (_, [_, d]) = l.two_halves(bytes(block, 206));
        let scales = l.multiply(l.float(l.signed(bytes(block, 192))), l.splat(d));
        [scales, l.multiply(scales, l.splat(-32.0))]
    }
}

/// Sums of quants follow, which nothing here reads: made for activations rather than for weights.
pub(in super::super) struct Q8K;

impl Bytes256 for Q8K {
    const BYTES: usize = 292;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        (eights(block, 4 + 32 * at), 0)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        [l.splat(f32::from_le_bytes(*bytes(block, 0))), l.splat(0.0)]
    }
}
