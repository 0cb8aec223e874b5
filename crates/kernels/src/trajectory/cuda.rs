//! Angles between successive steps of a trajectory, on a GPU.

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;

use crate::cuda::{Buffer, DeviceError, Element, Numbers, Packs};

const THREADS: usize = 256;
/// Angles of one block.
const ANGLES: usize = 4;
/// Shared memory of such a block: of each warp the squares of ANGLES + 1 steps and ANGLES products.
const SHARED_BYTES: usize = (2 * ANGLES + 1) * (THREADS / 32) * size_of::<f64>();

#[repr(C)]
#[derive(Clone, Copy)]
struct AnglesParameters {
    before: u64,
    x: u64,
    angles: u64,
    before_rows: u64,
    count: u64,
    width: u32,
    packed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SumAnglesParameters {
    angles: u64,
    sums: u64,
    count: u64,
}

/// Angles in radians between successive steps of rows `x [rows, width]`, as [`super::angle_sum`] has them, where the rows
/// `before`, at most the last two of what came earlier, go ahead: their sum is added to the first number of `sums`, f64
/// `[2]`, and how many they are to the second.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or rows are not in f32.
pub fn curvature(
    before: Option<Numbers<'_>>,
    x: Numbers<'_>,
    width: usize,
    sums: &Buffer,
) -> Result<(), DeviceError> {
    assert!(x.element() == Element::F32 && x.len().is_multiple_of(width), "whole rows in f32");
    let before_rows = before.map_or(0, |before| {
        assert!(before.element() == Element::F32 && before.len().is_multiple_of(width), "whole rows in f32");
        before.len() / width
    });
    assert!(before_rows <= 2, "at most two rows that came before");
    assert!(sums.bytes() >= 2 * size_of::<f64>(), "a sum and a number");
    let count = (before_rows + x.len() / width).saturating_sub(2);
    if count == 0 {
        return Ok(());
    }
    let device = x.device();
    let angles = device.allocate(count * size_of::<f64>())?;
    let parameters = AnglesParameters {
        before: before.map_or(0, |before| before.address()),
        x: x.address(),
        angles: angles.address(),
        before_rows: before_rows as u64,
        count: count as u64,
        width: width as u32,
        packed: Packs::of(&[before.unwrap_or(x), x]).fit(width).into(),
    };
    let blocks = [count.div_ceil(ANGLES), 1, 1];
    // SAFETY: the lengths are checked above, and there is an angle for each number.
    unsafe { device.launch("angles", blocks, THREADS, SHARED_BYTES, &parameters)? };
    let sum = SumAnglesParameters { angles: angles.address(), sums: sums.address(), count: count as u64 };
    let shared_bytes = THREADS / 32 * size_of::<f64>();
    // SAFETY: as above.
    unsafe { device.launch("sum_angles", [1, 1, 1], THREADS, shared_bytes, &sum) }
}
