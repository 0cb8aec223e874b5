//! Which prompt positions each decode step reads most: the sparse record that a run keeps, so that its text can be read without the
//! model.

mod cells;

pub use cells::{CellRange, recorded_cells};
use layerscope_kernels::ReadLimits;
pub use layerscope_kernels::{Read, RowReads};

/// Positions kept of each head, at most.
pub const OF_HEAD: usize = 8;
/// Least attention of a head that is kept.
pub const LEAST_OF_HEAD: f32 = 0.01;
/// Positions kept of the mean over heads, at most.
pub const OF_MEAN: usize = 32;
/// Least mean attention that is kept.
pub const LEAST_OF_MEAN: f32 = 1e-4;

/// What is kept of each decode step of a prompt of p tokens: of positions 1 … p−2, those of the prompt mass.
pub fn limits(prompt_len: usize) -> ReadLimits {
    ReadLimits {
        positions: 1..prompt_len.saturating_sub(1).max(1),
        of_head: OF_HEAD,
        least_of_head: LEAST_OF_HEAD,
        of_mean: OF_MEAN,
        least_of_mean: LEAST_OF_MEAN,
    }
}
