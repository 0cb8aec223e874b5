//! Keys and values as they are stored: in f32, or in f16, which takes half the memory and is converted tile by tile.

use crate::lanes::{LANES, Lanes, half};
use std::ops::Range;

/// Numbers of one type.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// f32.
    F32(&'a [f32]),
    /// The bits of f16.
    F16(&'a [u16]),
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
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All from an index on.
    ///
    /// # Panics
    /// If the index is beyond the end.
    pub fn from_index(self, start: usize) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[start..]),
            Self::F16(elements) => Self::F16(&elements[start..]),
        }
    }

    /// Some of them.
    pub(super) fn within(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(elements) => Self::F32(&elements[range]),
            Self::F16(elements) => Self::F16(&elements[range]),
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
