//! What tests of kernels are given: random numbers, on the device in either type.

use super::{Buffer, Device, Element, Numbers};
use half::bf16;

pub(crate) const ELEMENTS: [Element; 2] = [Element::F32, Element::Bf16];

/// Numbers between −`size` and `size`, the same for the same seed.
pub(crate) fn random(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..8).for_each(|_| {
        next();
    });
    (0..len).map(|_| next() * size).collect()
}

/// The numbers that a type has for them.
pub(crate) fn rounded(element: Element, numbers: &[f32]) -> Vec<f32> {
    match element {
        Element::F32 => numbers.to_vec(),
        Element::Bf16 => numbers.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
    }
}

/// Numbers on a device, in memory of their own that is exactly as long as they and the `first` before them, which are NaN.
pub(crate) struct Held {
    pub(crate) buffer: Buffer,
    element: Element,
    first: usize,
    len: usize,
}

#[expect(clippy::unwrap_used, reason = "only tests use this")]
impl Held {
    /// Rounded to the type.
    pub(crate) fn new(device: &Device, element: Element, first: usize, numbers: &[f32]) -> Self {
        let held = Self::empty(device, element, first, numbers.len());
        let offset = first * element.bytes();
        match element {
            Element::F32 => held.buffer.write(offset, numbers).unwrap(),
            Element::Bf16 => {
                let bits: Vec<u16> = numbers.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
                held.buffer.write(offset, &bits).unwrap();
            }
        }
        held
    }

    /// All NaN.
    pub(crate) fn empty(device: &Device, element: Element, first: usize, len: usize) -> Self {
        let buffer = device.reserve((first + len) * element.bytes()).unwrap();
        buffer.write(0, &vec![0xffu8; buffer.bytes()]).unwrap();
        Self { buffer, element, first, len }
    }

    pub(crate) fn numbers(&self) -> Numbers<'_> {
        Numbers::new(&self.buffer, self.element, self.first, self.len)
    }

    pub(crate) fn to_vec(&self) -> Vec<f32> {
        self.numbers().to_vec().unwrap()
    }

    /// Whether the numbers are the expected ones, up to `tolerance` of 1 + their size and to the rounding of the type.
    pub(crate) fn is_close(&self, expected: &[f64], tolerance: f64) -> bool {
        let rounding = if self.element == Element::Bf16 { 1.0 / 256.0 } else { 0.0 };
        let close = |(&y, &expected): (&f32, &f64)| {
            (f64::from(y) - expected).abs() <= tolerance * (1.0 + expected.abs()) + rounding * expected.abs()
        };
        expected.len() == self.len && self.to_vec().iter().zip(expected).all(close)
    }
}

/// In f64.
pub(crate) fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|&x| f64::from(x)).collect()
}
