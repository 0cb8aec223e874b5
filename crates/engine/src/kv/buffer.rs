//! Keys or values on the host.

use crate::{Device, WeightsPrecision};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use layerscope_kernels::Elements;
use layerscope_kernels::cuda::Element;

/// In which type keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPrecision {
    /// Four bytes an element.
    F32,
    /// Two bytes an element.
    F16,
    /// Two bytes an element, with the range of f32; on GPUs.
    Bf16,
}

impl KvPrecision {
    /// The type that goes with weights of a precision: f32 with f32, else f16, or bf16 on a GPU.
    pub fn with(precision: WeightsPrecision, device: &Device) -> Self {
        match (precision, device) {
            (WeightsPrecision::F32, _) => Self::F32,
            (WeightsPrecision::Native, Device::Cpu) => Self::F16,
            (WeightsPrecision::Native, Device::Cuda(_)) => Self::Bf16,
        }
    }

    /// Bytes of an element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 => size_of::<f16>(),
            Self::Bf16 => size_of::<bf16>(),
        }
    }

    /// As kernels on a GPU know it.
    pub fn device_element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 | Self::Bf16 => Element::Bf16,
        }
    }
}

/// Keys or values on the host.
pub enum KvBuffer {
    /// f32.
    F32(Vec<f32>),
    /// The bits of f16.
    F16(Vec<u16>),
}

impl KvBuffer {
    pub(super) fn zeros(precision: KvPrecision, len: usize) -> Self {
        match precision {
            KvPrecision::F32 => Self::F32(vec![0.0; len]),
            // The host has no bf16 store: only GPUs ask for one.
            KvPrecision::F16 | KvPrecision::Bf16 => Self::F16(vec![0; len]),
        }
    }

    /// Rounded to a type.
    pub fn rounded(precision: KvPrecision, numbers: &[f32]) -> Self {
        let mut rounded = Self::zeros(precision, numbers.len());
        rounded.write(0, numbers);
        rounded
    }

    pub(super) fn write(&mut self, at: usize, numbers: &[f32]) {
        match self {
            Self::F32(to) => to[at..at + numbers.len()].copy_from_slice(numbers),
            Self::F16(to) => {
                // What is too large for f16 becomes its largest number rather than infinite; NaN stays NaN.
                let most = f16::MAX.to_f32();
                let to: &mut [f16] = to[at..at + numbers.len()].reinterpret_cast_mut();
                let mut clamped = [0.0; 64];
                for (to, numbers) in to.chunks_mut(64).zip(numbers.chunks(64)) {
                    let clamped = &mut clamped[..numbers.len()];
                    for (clamped, x) in clamped.iter_mut().zip(numbers) {
                        *clamped = x.clamp(-most, most);
                    }
                    to.convert_from_f32_slice(clamped);
                }
            }
        }
    }

    /// As kernels read them.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(numbers) => Elements::F32(numbers),
            Self::F16(numbers) => Elements::F16(numbers),
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.capacity() * size_of::<f32>(),
            Self::F16(numbers) => numbers.capacity() * size_of::<u16>(),
        }
    }
}
