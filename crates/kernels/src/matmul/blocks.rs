//! The block types of GGUF, each described once: where its quants are, and which scale and offset they have.
//!
//! w = q·scale + offset throughout. Functions here are compiled into their callers, with the vector instructions of these;
//! closures would not be, so there are none.

use crate::lanes::{LANES, Lanes, half};

/// A block of 32 elements with one scale.
pub(super) trait Block32 {
    /// Bytes of a block.
    const BYTES: usize;
    /// Where the scale is, an f16.
    const SCALE: usize;
    /// Where the offset comes from.
    const OFFSET: Offset;

    /// The 32 quants; `block` has [`Self::BYTES`].
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2];
}

/// The offset of a block of 32.
pub(super) enum Offset {
    None,
    /// This many times the scale.
    OfScale(f32),
    /// An f16 behind the scale.
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

    /// Scale and offset of each group; what is beyond [`Self::GROUPS`] is 0.
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2];
}

#[inline(always)]
pub(super) fn dequantize_32<L: Lanes, B: Block32>(l: L, blocks: &[u8], output: &mut [f32]) {
    for (block, y) in blocks.chunks_exact(B::BYTES).zip(output.as_chunks_mut::<32>().0) {
        let scale = l.splat(half_at(block, B::SCALE));
        let offset = match B::OFFSET {
            Offset::None => l.splat(0.0),
            Offset::OfScale(factor) => l.multiply(scale, l.splat(factor)),
            Offset::NextToScale => l.splat(half_at(block, B::SCALE + 2)),
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
    const SCALE: usize = 0;
    const OFFSET: Offset = Offset::OfScale(-8.0);

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        nibbles(l, bytes(block, 2))
    }
}

pub(super) struct Q4_1;

impl Block32 for Q4_1 {
    const BYTES: usize = 20;
    const SCALE: usize = 0;
    const OFFSET: Offset = Offset::NextToScale;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        nibbles(l, bytes(block, 4))
    }
}

pub(super) struct Q5_0;

impl Block32 for Q5_0 {
    const BYTES: usize = 22;
    const SCALE: usize = 0;
    const OFFSET: Offset = Offset::OfScale(-16.0);

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        five_bits(l, bytes(block, 6), word_at(block, 2))
    }
}

pub(super) struct Q5_1;

impl Block32 for Q5_1 {
    const BYTES: usize = 24;
    const SCALE: usize = 0;
    const OFFSET: Offset = Offset::NextToScale;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        five_bits(l, bytes(block, 8), word_at(block, 4))
    }
}

pub(super) struct Q8_0;

impl Block32 for Q8_0 {
    const BYTES: usize = 34;
    const SCALE: usize = 0;
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        [l.signed(bytes(block, 2)), l.signed(bytes(block, 18))]
    }
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

/// Low or high four bits of 32 bytes, as words.
#[inline(always)]
fn nibble_words<L: Lanes>(l: L, packed: &[u8; 32], high: bool) -> L::Words {
    let both = l.unsigned_words(packed);
    if high { l.shift_words_right::<4>(both) } else { l.and_words(both, 15) }
}

pub(super) struct Q2K;

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
        let (d, minimum) = (half_at(block, 80), half_at(block, 82));
        [l.multiply(l.float(scales), l.splat(d)), l.multiply(l.float(minima), l.splat(-minimum))]
    }
}

pub(super) struct Q3K;

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
        let d = l.splat(half_at(block, 108));
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
    let (d, minimum) = (half_at(block, 0), half_at(block, 2));
    let (low, middle, high) = (word_at(block, 4), word_at(block, 8), word_at(block, 12));
    // Four bytes at a time: groups 0 … 3 whole, groups 4 … 7 from four low bits and two high ones.
    let scales = [low & 0x3f3f_3f3f, high & 0x0f0f_0f0f | (low >> 6 & 0x0303_0303) << 4];
    let minima = [middle & 0x3f3f_3f3f, high >> 4 & 0x0f0f_0f0f | (middle >> 6 & 0x0303_0303) << 4];
    [
        l.multiply(l.float(l.unsigned(&packed([scales[0], scales[1], 0, 0]))), l.splat(d)),
        l.multiply(l.float(l.unsigned(&packed([minima[0], minima[1], 0, 0]))), l.splat(-minimum)),
    ]
}

pub(super) struct Q4K;

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

pub(super) struct Q5K;

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

pub(super) struct Q6K;

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
        let scales = l.multiply(l.float(l.signed(bytes(block, 192))), l.splat(half_at(block, 208)));
        [scales, l.multiply(scales, l.splat(-32.0))]
    }
}
