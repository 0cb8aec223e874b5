//! Operations on activations between products, on a GPU: those of [`super`], computed in f32 whatever the type of the numbers.
//!
//! Outputs may be inputs of the same type, and must not overlap them otherwise.

mod norm;
mod rotate;
#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;

pub use norm::{layer_norm, rms_norm};
pub use rotate::{Rotation, rotate, rotate_both};

use super::Activation;
use crate::cuda::{DeviceError, Element, Numbers, Packs, blocks_of_rows, kernel_of};

type Result = std::result::Result<(), DeviceError>;

const THREADS: usize = 256;
/// Packs that a thread of an element-wise kernel loads at once.
const AT_ONCE: usize = 2;
/// Rows that a thread of [`add_bias`] adds the same bias to, where there are so many.
const ROWS_OF_BIAS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementwiseParameters {
    a: u64,
    b: u64,
    output: u64,
    elements: u64,
    packs: u64,
    number: f32,
    activation: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SplitParameters {
    x: u64,
    parts: [u64; 3],
    elements: u64,
    packs: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AddBiasParameters {
    x: u64,
    bias: u64,
    rows: u64,
    width: u32,
    packed: u32,
}

/// Queues an element-wise kernel.
///
/// # Safety
/// The kernel of that name takes [`ElementwiseParameters`], and elements of the types of `a`, `b` and `output`.
unsafe fn combine(
    kernel: &'static str,
    [a, b, output]: [Numbers<'_>; 3],
    number: f32,
    activation: Option<Activation>,
) -> Result {
    let elements = output.len();
    assert!(a.len() == elements && b.len() == elements, "inputs and output");
    let (packs, device) = (Packs::of(&[a, b, output]), output.device());
    let parameters = ElementwiseParameters {
        a: a.address(),
        b: b.address(),
        output: output.address(),
        elements: elements as u64,
        packs: packs.among(elements) as u64,
        number,
        activation: match activation {
            None | Some(Activation::Silu) => 0,
            Some(Activation::Gelu) => 1,
            Some(Activation::GeluTanh) => 2,
        },
    };
    let blocks = packs.blocks(device, elements, THREADS, AT_ONCE);
    // SAFETY: by the contract, and by the lengths checked above.
    unsafe { device.launch(kernel, [blocks, 1, 1], THREADS, 0, &parameters) }
}

/// a + b, with a and the sum in f32.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn add(a: Numbers<'_>, b: Numbers<'_>, output: Numbers<'_>) -> Result {
    assert!(a.element() == Element::F32 && output.element() == Element::F32, "sums in f32");
    // SAFETY: the kernel for these types.
    unsafe { combine(kernel_of!("add", b.element()), [a, b, output], 0.0, None) }
}

/// x · factor, in the same type.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn scale(x: Numbers<'_>, factor: f32, output: Numbers<'_>) -> Result {
    assert_eq!(x.element(), output.element(), "one type");
    // SAFETY: the kernel for these types.
    unsafe { combine(kernel_of!("scale", x.element()), [x, x, output], factor, None) }
}

/// c·tanh(x/c) of each x, f32, in place.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If x is not in f32.
pub fn soft_cap(x: Numbers<'_>, cap: f32) -> Result {
    assert_eq!(x.element(), Element::F32, "numbers in f32");
    // SAFETY: the kernel for this type.
    unsafe { combine("soft_cap_f32", [x; 3], cap, None) }
}

/// The same numbers in another type (or the same), rounded to nearest, ties to even.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn convert(x: Numbers<'_>, output: Numbers<'_>) -> Result {
    // SAFETY: the kernel for these types.
    unsafe { combine(kernel_of!("convert", x.element(), output.element()), [x, x, output], 0.0, None) }
}

/// f(gate) · up, all of one type.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn gate(activation: Activation, gate: Numbers<'_>, up: Numbers<'_>, output: Numbers<'_>) -> Result {
    assert!(gate.element() == output.element() && up.element() == output.element(), "one type");
    // SAFETY: the kernel for these types.
    unsafe { combine(kernel_of!("gate", gate.element()), [gate, up, output], 0.0, Some(activation)) }
}

/// f(x), in the same type.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn activate(activation: Activation, x: Numbers<'_>, output: Numbers<'_>) -> Result {
    assert_eq!(x.element(), output.element(), "one type");
    // SAFETY: the kernel for these types.
    unsafe { combine(kernel_of!("activate", x.element()), [x, x, output], 0.0, Some(activation)) }
}

/// Three parts in bf16 whose sum is x, f32: exactly, but for parts too small for bf16 (below 2⁻¹³³). The first is the
/// largest: x rounded. Of an infinite x the other two are 0.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes or types do not agree.
pub fn split(x: Numbers<'_>, parts: [Numbers<'_>; 3]) -> Result {
    let [first, second, third] = parts;
    let fit = |part: &Numbers<'_>| part.element() == Element::Bf16 && part.len() == x.len();
    assert!(x.element() == Element::F32 && parts.iter().all(fit), "f32 into as many numbers in bf16");
    let packs = Packs::of_size(Packs::of(&parts).size, &[x, first, second, third]);
    let parameters = SplitParameters {
        x: x.address(),
        parts: [first, second, third].map(|part| part.address()),
        elements: x.len() as u64,
        packs: packs.among(x.len()) as u64,
    };
    let blocks = packs.blocks(x.device(), x.len(), THREADS, 1);
    // SAFETY: the lengths are checked above.
    unsafe { x.device().launch("split_f32", [blocks, 1, 1], THREADS, 0, &parameters) }
}

/// Adds `bias [d]`, f32, to each row of `x [rows, d]` in place.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or the bias is not in f32.
pub fn add_bias(x: Numbers<'_>, bias: Numbers<'_>) -> Result {
    let width = bias.len();
    assert!(bias.element() == Element::F32 && x.len().is_multiple_of(width), "whole rows, bias in f32");
    let (packs, rows) = (Packs::of(&[x, bias]), x.len() / width);
    let packed = packs.fit(width);
    let parameters = AddBiasParameters {
        x: x.address(),
        bias: bias.address(),
        rows: rows as u64,
        width: width as u32,
        packed: packed.into(),
    };
    let items = if packed { width / packs.size } else { width };
    let grid = blocks_of_rows(items, THREADS, rows.div_ceil(ROWS_OF_BIAS));
    // SAFETY: the lengths are checked above.
    unsafe { x.device().launch(kernel_of!("add_bias", x.element()), grid, THREADS, 0, &parameters) }
}
