//! Weights that are −1, 0 or 1 times a scale.

use super::{Block256, Bytes256, bytes, half_at, two_bit_words, two_bits};
use crate::lanes::Lanes;

/// Five elements in a byte, as digits of base 3: the byte is their number as a fraction of 3⁵, in units of 1/256.
pub(in super::super) struct TQ1_0;

impl Bytes256 for TQ1_0 {
    const BYTES: usize = 54;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> [u8; 32] {
        // The first digits of 32 bytes, then their second ones and so on; likewise of 16 bytes; then four of four bytes.
        let mut quants = [0; 32];
        for (i, quant) in quants.iter_mut().enumerate() {
            let (byte, place) = match 32 * at + i {
                element @ 0..160 => (element % 32, element / 32),
                element @ 160..240 => (32 + element % 16, element / 16 - 10),
                element => (48 + element % 4, element / 4 - 60),
            };
            let moved = block[byte].wrapping_mul([1, 3, 9, 27, 81][place]);
            *quant = (u16::from(moved) * 3 >> 8) as u8;
        }
        quants
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let scale = half_at(block, 52);
        [l.splat(scale), l.splat(-scale)]
    }
}

/// Two bits for each element.
pub(in super::super) struct TQ2_0;

impl Block256 for TQ2_0 {
    const BYTES: usize = 66;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        two_bits(l, bytes(block, at / 8 * 32 + at % 2 * 16), at % 8 / 2)
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        two_bit_words(l, bytes(block, at / 4 * 32), at % 4)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let scale = half_at(block, 64);
        [l.splat(scale), l.splat(-scale)]
    }
}
