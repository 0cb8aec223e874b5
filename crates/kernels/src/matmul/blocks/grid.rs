//! Eight or four elements at a time are a point of a grid: its number is stored, and the signs of its coordinates apart.

use super::grid_tables as tables;
use super::{Bytes256, bytes, half_at, word_at};
use crate::lanes::{LANES, Lanes, half};

/// Four times eight signs of seven bits: minus signs are even in number.
#[inline(always)]
fn even_signs(sevens: u32) -> u32 {
    let mut signs = 0;
    for at in 0..4 {
        let seven = sevens >> (7 * at) & 0x7f;
        signs |= (seven | (seven.count_ones() & 1) << 7) << (8 * at);
    }
    signs
}

/// Four bits each: the low ones of a byte first.
#[inline(always)]
fn nibble(packed: &[u8], at: usize) -> u8 {
    packed[at / 2] >> (at % 2 * 4) & 15
}

/// Scales of 16 groups: (number + ½)·factor of the block's scale.
#[inline(always)]
fn half_odd_scales<L: Lanes>(l: L, block: &[u8], numbers: [u8; LANES], factor: f32) -> [L::Floats; 2] {
    let scale = l.splat(half_at(block, 0) * factor);
    [l.multiply(l.add(l.float(l.unsigned(&numbers)), l.splat(0.5)), scale), l.splat(0.0)]
}

/// What is left of the four high bits of eight words, `step` bytes apart.
#[inline(always)]
fn high_nibbles(block: &[u8], first: usize, step: usize) -> [u8; LANES] {
    let mut numbers = [0; LANES];
    for (group, number) in numbers[..8].iter_mut().enumerate() {
        *number = (word_at(block, first + step * group) >> 28) as u8;
    }
    numbers
}

pub(in super::super) struct IQ2XXS;

impl Bytes256 for IQ2XXS {
    const BYTES: usize = 66;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let points: &[u8; 4] = bytes(block, 2 + 8 * at);
        (points.map(|point| tables::IQ2_XXS[usize::from(point)]), even_signs(word_at(block, 6 + 8 * at)))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        half_odd_scales(l, block, high_nibbles(block, 6, 8), 0.25)
    }
}

pub(in super::super) struct IQ2XS;

impl Bytes256 for IQ2XS {
    const BYTES: usize = 74;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let both: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(*bytes(block, 2 + 8 * at + 2 * i)));
        let sevens = (0..4).fold(0, |sevens, i| sevens | u32::from(both[i] >> 9) << (7 * i));
        (both.map(|both| tables::IQ2_XS[usize::from(both & 511)]), even_signs(sevens))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let packed: &[u8; 8] = bytes(block, 66);
        half_odd_scales(l, block, std::array::from_fn(|group| nibble(packed, group)), 0.25)
    }
}

pub(in super::super) struct IQ2S;

impl Bytes256 for IQ2S {
    const BYTES: usize = 82;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let (points, high): (&[u8; 4], _) = (bytes(block, 2 + 4 * at), usize::from(block[66 + at]));
        let point = |i: usize| usize::from(points[i]) | (high >> (2 * i) & 3) << 8;
        (std::array::from_fn(|i| tables::IQ2_S[point(i)]), word_at(block, 34 + 4 * at))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let packed: &[u8; 8] = bytes(block, 74);
        half_odd_scales(l, block, std::array::from_fn(|group| nibble(packed, group)), 0.25)
    }
}

/// Two points of four coordinates.
#[inline(always)]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(in super::super) struct IQ3XXS;

impl Bytes256 for IQ3XXS {
    const BYTES: usize = 98;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let points: &[u8; 8] = bytes(block, 2 + 8 * at);
        let point = |i: usize| tables::IQ3_XXS[usize::from(points[i])];
        let quants = std::array::from_fn(|i| pair(point(2 * i), point(2 * i + 1)));
        (quants, even_signs(word_at(block, 66 + 4 * at)))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        half_odd_scales(l, block, high_nibbles(block, 66, 4), 0.5)
    }
}

pub(in super::super) struct IQ3S;

impl Bytes256 for IQ3S {
    const BYTES: usize = 110;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let (points, high): (&[u8; 8], _) = (bytes(block, 2 + 8 * at), usize::from(block[66 + at]));
        let point = |i: usize| tables::IQ3_S[usize::from(points[i]) | (high >> i & 1) << 8];
        let quants = std::array::from_fn(|i| pair(point(2 * i), point(2 * i + 1)));
        (quants, word_at(block, 74 + 4 * at))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let packed: &[u8; 4] = bytes(block, 106);
        let numbers = std::array::from_fn(|group| if group < 8 { nibble(packed, group) } else { 0 });
        half_odd_scales(l, block, numbers, 2.0)
    }
}

/// Scales of [`IQ1S`] and [`IQ1M`]: odd multiples of the block's. Coordinates are −1, 0 and 1, all moved by ±⅛: as quants,
/// eight times that and 9 more.
#[inline(always)]
fn odd_scales<L: Lanes>(l: L, scale: f32, numbers: [u8; LANES]) -> [L::Floats; 2] {
    let scales = l.multiply(l.add(l.float(l.unsigned(&numbers)), l.splat(0.5)), l.splat(scale * 0.25));
    [scales, l.multiply(scales, l.splat(-9.0))]
}

/// Eight quants of a point: 0, 8 and 16, or 2, 10 and 18 where it is moved up.
#[inline(always)]
fn moved(point: usize, down: bool) -> u64 {
    tables::IQ1[point] + if down { 0 } else { 0x0202_0202_0202_0202 }
}

pub(in super::super) struct IQ1S;

impl Bytes256 for IQ1S {
    const BYTES: usize = 50;
    const GROUPS: usize = 8;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let points: &[u8; 4] = bytes(block, 2 + 4 * at);
        let high = usize::from(u16::from_le_bytes(*bytes(block, 34 + 2 * at)));
        let point = |i: usize| usize::from(points[i]) | (high >> (3 * i) & 7) << 8;
        (std::array::from_fn(|i| moved(point(i), high & 0x8000 != 0)), 0)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        let mut numbers = [0; LANES];
        for (group, number) in numbers[..8].iter_mut().enumerate() {
            *number = block[35 + 2 * group] >> 4 & 7;
        }
        odd_scales(l, half_at(block, 0), numbers)
    }
}

pub(in super::super) struct IQ1M;

impl Bytes256 for IQ1M {
    const BYTES: usize = 56;
    const GROUPS: usize = 16;

    #[inline(always)]
    fn quants(block: &[u8], at: usize) -> ([u64; 4], u32) {
        let (points, high): (&[u8; 4], &[u8; 2]) = (bytes(block, 4 * at), bytes(block, 32 + 2 * at));
        let quants = std::array::from_fn(|i| {
            let high = usize::from(nibble(high, i));
            moved(usize::from(points[i]) | (high & 7) << 8, high & 8 != 0)
        });
        (quants, 0)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8]) -> [L::Floats; 2] {
        // Four times four scales of three bits, and four bits of the block's scale, an f16, above them.
        let fours: [u16; 4] = std::array::from_fn(|at| u16::from_le_bytes(*bytes(block, 48 + 2 * at)));
        let scale = fours[0] >> 12 | fours[1] >> 8 & 0xf0 | fours[2] >> 4 & 0xf00 | fours[3] & 0xf000;
        let numbers = std::array::from_fn(|group| (fours[group / 4] >> (3 * (group % 4)) & 7) as u8);
        odd_scales(l, half(scale), numbers)
    }
}
