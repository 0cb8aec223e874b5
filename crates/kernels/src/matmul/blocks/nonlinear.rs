//! Four bits that index a table of values, which is denser near 0.

use super::{Block32, Block256, Offset, bytes};
use crate::lanes::Lanes;

/// `kvalues_iq4nl` of ggml.
pub(super) const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the numbers of a float of four bits (e2m1; Open Compute Project, Microscaling Formats 1.0).
pub(super) const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(in super::super) struct IQ4NL;

impl Block32 for IQ4NL {
    const BYTES: usize = 18;
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        l.entries(&VALUES, bytes(block, 2))
    }
}

pub(in super::super) struct MXFP4;

impl Block32 for MXFP4 {
    const BYTES: usize = 17;
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scale<L: Lanes>(l: L, block: &[u8]) -> (L::Floats, [f32; 2]) {
        let scale = half_power_of_two(block[0]);
        (l.splat(scale), [scale, 0.0])
    }

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8]) -> [L::Integers; 2] {
        l.entries(&TWICE_E2M1, bytes(block, 1))
    }
}

/// 2^(exponent − 128): half of what e8m0 means, since quants are doubled.
#[inline(always)]
pub(super) fn half_power_of_two(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    // The two lowest ones are subnormal.
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

pub(in super::super) struct IQ4XS;

impl Block256 for IQ4XS {
    const BYTES: usize = 136;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Integers {
        l.entries(&VALUES, bytes(block, 8 + at / 2 * 16))[at % 2]
    }

    #[inline(always)]
    fn words<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Words {
        l.entry_words(&VALUES, bytes(block, 8 + at * 16))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        // Eight scales of six bits: four low ones in four bytes, two high ones in two.
        let high = u64::from(u16::from_le_bytes(*bytes(block, 2)));
        let low = u64::from(u32::from_le_bytes(*bytes(block, 4)));
        // Spread out to a byte each, by halves.
        let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
        let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
        let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
        let high = (high | high << 12) & 0x000f_000f_000f_000f;
        let high = (high | high << 6) & 0x0303_0303_0303_0303;
        let scales = l.unsigned(&u128::from(low | high << 4).to_le_bytes());
        let (d, _) = l.two_halves(bytes(block, 0));
        [l.multiply(l.add(l.float(scales), l.splat(-32.0)), d), l.splat(0.0)]
    }
}
