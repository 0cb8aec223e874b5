//! Norms of rows.

use super::Result;
use crate::cuda::{Element, Numbers, Packs, kernel_of};

/// Numbers of a row that a thread keeps in registers.
const KEPT: usize = 16;
const WARP: usize = 32;
/// Threads of a block where each of its warps has a row of its own.
const THREADS: usize = 256;
const MOST_THREADS: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy)]
struct NormParameters {
    x: u64,
    scale: u64,
    bias: u64,
    output: u64,
    rows: u64,
    width: u32,
    epsilon: f32,
    packed: u32,
    warp_for_each: u32,
}

/// RMSNorm of rows `x [rows, d]`: x / √(mean(x²) + ε) · scale, with `scale [d]` in f32.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or the scale is not in f32.
pub fn rms_norm(x: Numbers<'_>, scale: Numbers<'_>, epsilon: f32, output: Numbers<'_>) -> Result {
    let kernel = kernel_of!("rms_norm", x.element(), output.element());
    // SAFETY: the kernel for these types.
    unsafe { normalize(kernel, [x, output], scale, None, epsilon) }
}

/// LayerNorm of rows `x [rows, d]`: (x − mean) / √(variance + ε) · scale + bias, with `scale [d]` and `bias [d]` in f32.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or scale or bias are not in f32.
pub fn layer_norm(
    x: Numbers<'_>,
    scale: Numbers<'_>,
    bias: Numbers<'_>,
    epsilon: f32,
    output: Numbers<'_>,
) -> Result {
    let kernel = kernel_of!("layer_norm", x.element(), output.element());
    // SAFETY: the kernel for these types.
    unsafe { normalize(kernel, [x, output], scale, Some(bias), epsilon) }
}

/// # Safety
/// The kernel of that name takes elements of these types, and reads the bias only where it is given.
unsafe fn normalize(
    kernel: &'static str,
    [x, output]: [Numbers<'_>; 2],
    scale: Numbers<'_>,
    bias: Option<Numbers<'_>>,
    epsilon: f32,
) -> Result {
    let width = scale.len();
    let bias_fits = bias.is_none_or(|bias| bias.element() == Element::F32 && bias.len() == width);
    assert!(scale.element() == Element::F32 && bias_fits, "scale and bias in f32, of one width");
    assert!(x.len() == output.len() && x.len().is_multiple_of(width), "whole rows, input and output");
    let rows = x.len() / width;

    let all = [x, output, scale, bias.unwrap_or(scale)];
    let packs = Packs::of_size(Packs::of(&[x, output]).size, &all);
    let warp_for_each = width <= WARP * KEPT;
    // By the width alone, so that a row comes out the same to the bit whatever is beside it.
    let (threads, rows_of_block) = match warp_for_each {
        true => (THREADS, THREADS / WARP),
        false => (width.div_ceil(KEPT).next_multiple_of(WARP).min(MOST_THREADS), 1),
    };
    let packed = packs.fit(width) && width <= MOST_THREADS * KEPT;
    let parameters = NormParameters {
        x: x.address(),
        scale: scale.address(),
        bias: bias.map_or(0, |bias| bias.address()),
        output: output.address(),
        rows: rows as u64,
        width: width as u32,
        epsilon,
        packed: packed.into(),
        warp_for_each: warp_for_each.into(),
    };
    let shared_bytes = WARP * size_of::<f32>();
    // SAFETY: the lengths are checked above, the rest is by the contract.
    unsafe {
        x.device().launch(kernel, [rows.div_ceil(rows_of_block), 1, 1], threads, shared_bytes, &parameters)
    }
}
