//! Launch sizes of memory-bound kernels: elements move in packs of up to 16 bytes (`packs.cuh`); kernels are named by the types
//! of their elements.

use super::{Device, Element, Numbers};

/// Most blocks of a grid, enough for several waves on any GPU; a block may do several items.
const MOST_BLOCKS_OF_MULTIPROCESSOR: usize = 32;
/// Blocks that a grid can have in its second dimension.
const MOST_ROWS_OF_BLOCKS: usize = 65_535;

/// Name of a kernel for its elements' types, each at the end of its name.
macro_rules! kernel_of {
    ($name:literal, $a:expr) => {
        match $a {
            $crate::cuda::Element::F32 => concat!($name, "_f32"),
            $crate::cuda::Element::Bf16 => concat!($name, "_bf16"),
        }
    };
    ($name:literal, $a:expr, $b:expr) => {
        match ($a, $b) {
            ($crate::cuda::Element::F32, $crate::cuda::Element::F32) => concat!($name, "_f32_f32"),
            ($crate::cuda::Element::F32, $crate::cuda::Element::Bf16) => concat!($name, "_f32_bf16"),
            ($crate::cuda::Element::Bf16, $crate::cuda::Element::F32) => concat!($name, "_bf16_f32"),
            ($crate::cuda::Element::Bf16, $crate::cuda::Element::Bf16) => concat!($name, "_bf16_bf16"),
        }
    };
}
pub(crate) use kernel_of;

/// Elements that move at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packs {
    /// How many make a pack.
    pub(crate) size: usize,
    /// Whether all numbers begin where a pack can.
    pub(crate) aligned: bool,
}

impl Packs {
    /// As many as 16 bytes hold of the widest type among these.
    pub(crate) fn of(numbers: &[Numbers<'_>]) -> Self {
        let widest = numbers.iter().map(|numbers| numbers.element().bytes()).max();
        Self::of_size(16 / widest.unwrap_or(Element::F32.bytes()), numbers)
    }

    /// Packs of that many elements, which take several moves where they are longer than 16 bytes.
    pub(crate) fn of_size(size: usize, numbers: &[Numbers<'_>]) -> Self {
        let aligned = numbers.iter().all(|numbers| {
            let bytes = (size * numbers.element().bytes()).min(16);
            numbers.address().is_multiple_of(bytes as u64)
        });
        Self { size, aligned }
    }

    /// Whether rows, or other pieces, of that many elements are whole packs, each aligned.
    pub(crate) fn fit(self, width: usize) -> bool {
        self.aligned && width.is_multiple_of(self.size)
    }

    /// Whole packs among so many elements in a row; none where they are not aligned.
    pub(crate) fn among(self, elements: usize) -> usize {
        if self.aligned { elements / self.size } else { 0 }
    }

    /// Blocks for so many elements, where each thread takes `each` packs or single elements and goes on with what is left.
    pub(crate) fn blocks(self, device: &Device, elements: usize, threads: usize, each: usize) -> usize {
        let items = if self.aligned { elements.div_ceil(self.size) } else { elements };
        let most = device.information().multiprocessors as usize * MOST_BLOCKS_OF_MULTIPROCESSOR;
        items.div_ceil(threads * each).min(most)
    }
}

/// A grid whose blocks split the items of a row, and rows; a block may do several.
pub(crate) fn blocks_of_rows(items: usize, threads: usize, rows: usize) -> [usize; 3] {
    [items.div_ceil(threads), rows.min(MOST_ROWS_OF_BLOCKS), 1]
}
