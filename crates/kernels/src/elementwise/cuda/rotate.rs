//! Rotary embedding.

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;

use super::{Result, THREADS};
use crate::cuda::{Buffer, Element, Numbers, Packs, kernel_of};

/// How far each row is turned: by positions\[row\] · frequencies\[i\] radians, a product rounded to f32.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// Position of each row, i32 `[rows]`.
    pub positions: &'a Buffer,
    /// Radians per position of each pair of elements, f32 `[half]`.
    pub frequencies: Numbers<'a>,
    /// What cos and sin are multiplied by.
    pub magnitude: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RotateParameters {
    x: [u64; 2],
    output: [u64; 2],
    positions: u64,
    frequencies: u64,
    heads: [u32; 2],
    head_dim: u32,
    half: u32,
    magnitude: f32,
    packed: u32,
}

/// Rotary embedding (Su et al. 2021) in rotate-half order: of each head of `x [rows, heads, head_dim]` the pairs
/// (i, i + half) among the first 2·half elements are turned; the others stay. Output in the same type; it may be x.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn rotate(
    x: Numbers<'_>,
    heads: usize,
    head_dim: usize,
    rotation: &Rotation<'_>,
    output: Numbers<'_>,
) -> Result {
    rotate_all(&[(x, heads, output)], head_dim, rotation)
}

/// [`rotate`] of two tensors of the same rows and type in one launch: queries and keys, each with its number of heads.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn rotate_both(
    [x, other]: [Numbers<'_>; 2],
    [heads, other_heads]: [usize; 2],
    head_dim: usize,
    rotation: &Rotation<'_>,
    [output, other_output]: [Numbers<'_>; 2],
) -> Result {
    rotate_all(&[(x, heads, output), (other, other_heads, other_output)], head_dim, rotation)
}

/// One tensor or two.
fn rotate_all(
    tensors: &[(Numbers<'_>, usize, Numbers<'_>)],
    head_dim: usize,
    rotation: &Rotation<'_>,
) -> Result {
    let (x, heads, _) = tensors[0];
    let (element, rows) = (x.element(), x.len() / (heads * head_dim));
    for (x, heads, output) in tensors {
        assert!(x.len() == rows * heads * head_dim && output.len() == x.len(), "whole rows, as many of each");
        assert!(x.element() == element && output.element() == element, "one type");
    }
    let half = rotation.frequencies.len();
    assert!(half > 0 && 2 * half <= head_dim, "a frequency for each pair");
    assert_eq!(rotation.frequencies.element(), Element::F32, "frequencies in f32");
    assert!(rotation.positions.bytes() >= rows * size_of::<i32>(), "a position for each row");

    let last = tensors[tensors.len() - 1];
    let packs = Packs::of(&[x, tensors[0].2, last.0, last.2]);
    let parameters = RotateParameters {
        x: [x.address(), last.0.address()],
        output: [tensors[0].2.address(), last.2.address()],
        positions: rotation.positions.address(),
        frequencies: rotation.frequencies.address(),
        heads: [heads as u32, last.1 as u32],
        head_dim: head_dim as u32,
        half: half as u32,
        magnitude: rotation.magnitude,
        packed: (packs.fit(half) && packs.fit(head_dim)).into(),
    };
    let shared_bytes = 2 * half.next_multiple_of(4) * size_of::<f32>();
    let kernel = kernel_of!("rotate", element);
    // SAFETY: the lengths are checked above.
    unsafe { x.device().launch(kernel, [rows, tensors.len(), 1], THREADS, shared_bytes, &parameters) }
}
