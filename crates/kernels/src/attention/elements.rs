//! Keys and values as they are stored: in f32, in f16, or in eight bits, converted tile by tile.

use crate::lanes::{LANES, Lanes, half};
use ::half::f16;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// Consecutive elements of a head in eight bits with a scale in common, as ggml's Q8_0 has them: element i is `scale · quants[i]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Q8Block {
    /// The bits of an f16.
    scale: u16,
    quants: [i8; Self::ELEMENTS],
}

// SAFETY: whole numbers in the order of C without padding; any bits are such.
unsafe impl Zeroable for Q8Block {}
// SAFETY: as above.
unsafe impl Pod for Q8Block {}

impl Q8Block {
    /// Elements of a block.
    pub const ELEMENTS: usize = 32;

    /// Rounds numbers. NaN makes all of a block NaN; what is too large for the scale becomes the largest number that it allows.
    pub fn rounded(numbers: &[f32; Self::ELEMENTS]) -> Self {
        let most = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let is_nan = numbers.iter().any(|x| x.is_nan());
        let scale = f16::from_f32(if is_nan { f32::NAN } else { (most / 127.0).min(f16::MAX.to_f32()) });
        let unit = scale.to_f32();
        let units = if unit > 0.0 { 1.0 / unit } else { 0.0 };
        let quants = numbers.map(|x| (x * units).round().clamp(-127.0, 127.0) as i8);
        Self { scale: scale.to_bits(), quants }
    }

    /// In f32.
    pub fn to_f32(self) -> [f32; Self::ELEMENTS] {
        let scale = half(self.scale);
        self.quants.map(|quant| scale * f32::from(quant))
    }

    /// The first or the last half.
    #[inline(always)]
    pub(super) fn vector<L: Lanes>(&self, l: L, index: usize) -> L::Floats {
        let quants = bytemuck::cast_ref::<[i8; Self::ELEMENTS], [[u8; LANES]; 2]>(&self.quants);
        let scale = l.two_halves(&u32::from(self.scale).to_le_bytes()).0;
        l.multiply(l.float(l.signed(&quants[index])), scale)
    }
}

/// Numbers of one type.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// f32.
    F32(&'a [f32]),
    /// The bits of f16.
    F16(&'a [u16]),
    /// Blocks; heads are of whole blocks.
    Q8(&'a [Q8Block]),
}

impl<'a> From<&'a [f32]> for Elements<'a> {
    fn from(elements: &'a [f32]) -> Self {
        Self::F32(elements)
    }
}

impl<'a> Elements<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(elements) => elements.len(),
            Self::F16(elements) => elements.len(),
            Self::Q8(blocks) => blocks.len() * Q8Block::ELEMENTS,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All from an index on, in eight bits that of a block's first element.
    ///
    /// # Panics
    /// If the index is beyond the end.
    pub fn from_index(self, start: usize) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[start..]),
            Self::F16(elements) => Self::F16(&elements[start..]),
            Self::Q8(blocks) => Self::Q8(&blocks[start / Q8Block::ELEMENTS..]),
        }
    }

    /// Some of them.
    pub(super) fn within(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[range]),
            Self::F16(elements) => Self::F16(&elements[range]),
            Self::Q8(blocks) => Self::Q8(&blocks[in_blocks(range)]),
        }
    }

    /// Some of them in f32.
    ///
    /// # Panics
    /// If the range is beyond the end.
    pub fn to_f32(self, range: Range<usize>) -> Vec<f32> {
        match self {
            Self::F32(elements) => elements[range].to_vec(),
            Self::F16(elements) => elements[range].iter().map(|&bits| half(bits)).collect(),
            Self::Q8(blocks) => blocks[in_blocks(range)].iter().flat_map(|block| block.to_f32()).collect(),
        }
    }

    /// Some of them in f32: where they are, or converted into `buffer`.
    #[inline(always)]
    pub(super) fn widened<'b, L: Lanes>(
        self,
        l: L,
        range: Range<usize>,
        buffer: &'b mut Vec<f32>,
    ) -> &'b [f32]
    where
        'a: 'b,
    {
        let bits = match self {
            Self::F32(elements) => return &elements[range],
            Self::F16(elements) => &elements[range],
            Self::Q8(blocks) => {
                buffer.resize(range.len(), 0.0);
                let vectors = buffer.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0;
                for (to, block) in vectors.iter_mut().zip(&blocks[in_blocks(range)]) {
                    l.store(block.vector(l, 0), &mut to[0]);
                    l.store(block.vector(l, 1), &mut to[1]);
                }
                return buffer;
            }
        };
        buffer.resize(bits.len(), 0.0);
        let (groups, rest) = bits.as_chunks::<LANES>();
        let (wide, wide_rest) = buffer.as_chunks_mut::<LANES>();
        for (wide, bits) in wide.iter_mut().zip(groups) {
            l.store(l.widen_f16(bytemuck::cast_ref::<[u16; LANES], [u8; 2 * LANES]>(bits)), wide);
        }
        for (wide, &bits) in wide_rest.iter_mut().zip(rest) {
            *wide = half(bits);
        }
        buffer
    }
}

/// The blocks that hold some elements.
fn in_blocks(range: Range<usize>) -> Range<usize> {
    range.start / Q8Block::ELEMENTS..range.end / Q8Block::ELEMENTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_round_to_half_a_unit(numbers in prop::array::uniform32(-1e4f32..1e4), by in -12..3i32) {
            let numbers = numbers.map(|x| x * 10f32.powi(by));
            let most = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let rounded = Q8Block::rounded(&numbers).to_f32();
            // Half a unit, and what the scale in f16 is off by: half of its last bit, of subnormal ones 2⁻²⁵.
            let unit = most / 127.0;
            let allowed = 0.5 * unit + 127.0 * (unit / 2048.0).max(3e-8) + 1e-12;
            for (x, rounded) in numbers.iter().zip(rounded) {
                prop_assert!((x - rounded).abs() <= allowed, "{x} {rounded} {unit}");
            }
        }
    }

    #[test]
    fn special_numbers_stay_or_become_the_largest() {
        let mut numbers = [1.0; 32];
        numbers[3] = f32::NAN;
        assert!(Q8Block::rounded(&numbers).to_f32().iter().all(|x| x.is_nan()));
        numbers[3] = f32::NEG_INFINITY;
        let rounded = Q8Block::rounded(&numbers).to_f32();
        assert_eq!([rounded[3], rounded[4]], [-127.0 * 65_504.0, 0.0]);
        assert_eq!(Q8Block::rounded(&[0.0; 32]).to_f32(), [0.0; 32]);
    }
}
