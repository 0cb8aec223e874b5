//! Weights that are −1, 0 or 1 times a scale.

use super::{Block256, Bytes256, bytes, eights, half_at, two_bit_words, two_bits};
use crate::lanes::Lanes;

/// Five elements in a byte, as digits of base 3: the byte is their number as a fraction of 3⁵, in units of 1/256.
pub(in super::super) struct TQ1_0;

impl Bytes256 for TQ1_0 {
    const BYTES: usize = 54;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        // The first digits of 32 bytes, then their second ones and so on; likewise of 16 bytes; then four of four bytes.
        let mut quants = [0; 32];
        let (first, second) = quants.split_at_mut(16);
        match at {
            0..5 => {
                digits(bytes::<16>(block, 0), at, first);
                digits(bytes::<16>(block, 16), at, second);
            }
            5 | 6 => {
                digits(bytes::<16>(block, 32), 2 * at - 10, first);
                digits(bytes::<16>(block, 32), 2 * at - 9, second);
            }
            _ => {
                digits(bytes::<16>(block, 32), 4, first);
                for (place, four) in second.chunks_exact_mut(4).enumerate() {
                    digits(bytes::<4>(block, 48), place, four);
                }
            }
        }
        (eights(&quants, 0), 0)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let scale = half_at(block, 52);
        [l.splat(scale), l.splat(-scale)]
    }
}

/// The digit at a place of each number, the highest being the first.
#[inline(always)]
fn digits<const N: usize>(packed: &[u8; N], place: usize, to: &mut [u8]) {
    let power = [1u8, 3, 9, 27, 81][place];
    for (to, byte) in to.iter_mut().zip(packed) {
        *to = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
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
