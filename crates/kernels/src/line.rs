//! Memory in whole cache lines, where no load or store of a vector touches two of them.

use bytemuck::{Pod, Zeroable};

/// Numbers of a line.
pub(crate) const NUMBERS: usize = 16;

/// A cache line of f32, or of as many pairs of bf16 in their bits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [f32; NUMBERS]);

// SAFETY: numbers alone, as many as fill its alignment.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// The first numbers of a buffer, which grows where it has fewer; what they are is left over from before.
pub(crate) fn numbers(buffer: &mut Vec<Line>, count: usize) -> &mut [f32] {
    buffer.resize(buffer.len().max(count.div_ceil(NUMBERS)), Line::default());
    &mut bytemuck::cast_slice_mut(buffer)[..count]
}
