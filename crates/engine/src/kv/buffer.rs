//! Keys or values on the host.

use crate::{Device, Error, ModelConfig, Result, WeightsPrecision};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use layerscope_kernels::cuda::Element;
use layerscope_kernels::{Elements, Q8Block};

/// In which type keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvPrecision {
    /// Four bytes an element.
    F32,
    /// Two bytes an element.
    F16,
    /// Two bytes an element, with the range of f32; on GPUs.
    Bf16,
    /// Blocks of 32 elements in 34 bytes, as ggml's Q8_0 has them; on the host, where heads are of whole blocks.
    Q8,
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

    /// As `--kv` names it.
    ///
    /// # Errors
    /// [`Error::Input`] on another name.
    pub fn parse(name: &str) -> Result<Self> {
        let known = [Self::F32, Self::F16, Self::Bf16, Self::Q8];
        known.into_iter().find(|kv| kv.name() == name).ok_or_else(|| {
            Error::input(format!("keys and values are kept in f32, f16, bf16 or q8_0, not in {name}"))
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    /// That a model with weights of a precision can keep keys and values in it where it runs.
    ///
    /// # Errors
    /// [`Error::Input`] where it cannot.
    pub fn check(self, config: &ModelConfig, precision: WeightsPrecision, device: &Device) -> Result<()> {
        let of_weights = Self::with(precision, device);
        let why = match (self, device) {
            (kv, _) if kv == of_weights => return Ok(()),
            (_, Device::Cuda(_)) => format!("a GPU keeps keys and values in {}", of_weights.name()),
            (Self::Bf16, Device::Cpu) => "a CPU does not keep keys and values in bf16".to_owned(),
            (Self::Q8, Device::Cpu) if !config.head_dim.is_multiple_of(Q8Block::ELEMENTS) => {
                format!(
                    "q8_0 needs heads of a multiple of 32 elements, and this model's have {}",
                    config.head_dim
                )
            }
            (Self::F32 | Self::F16 | Self::Q8, Device::Cpu) => return Ok(()),
        };
        Err(Error::input(format!("{why}; leave out --kv {}", self.name())))
    }

    /// Bytes of so many elements, of whole blocks.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements * size_of::<f32>(),
            Self::F16 => elements * size_of::<f16>(),
            Self::Bf16 => elements * size_of::<bf16>(),
            Self::Q8 => elements / Q8Block::ELEMENTS * size_of::<Q8Block>(),
        }
    }

    /// As kernels on a GPU know it.
    pub fn device_element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 | Self::Bf16 | Self::Q8 => Element::Bf16,
        }
    }
}

/// Keys or values on the host.
pub enum KvBuffer {
    /// f32.
    F32(Vec<f32>),
    /// The bits of f16.
    F16(Vec<u16>),
    /// Blocks.
    Q8(Vec<Q8Block>),
}

impl KvBuffer {
    pub(super) fn zeros(precision: KvPrecision, len: usize) -> Self {
        match precision {
            KvPrecision::F32 => Self::F32(vec![0.0; len]),
            // The host has no bf16 store: only GPUs ask for one.
            KvPrecision::F16 | KvPrecision::Bf16 => Self::F16(vec![0; len]),
            KvPrecision::Q8 => Self::Q8(vec![Q8Block::default(); len / Q8Block::ELEMENTS]),
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
            Self::Q8(to) => {
                let blocks = &mut to[at / Q8Block::ELEMENTS..];
                for (to, numbers) in blocks.iter_mut().zip(numbers.as_chunks().0) {
                    *to = Q8Block::rounded(numbers);
                }
            }
        }
    }

    /// As kernels read them.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(numbers) => Elements::F32(numbers),
            Self::F16(numbers) => Elements::F16(numbers),
            Self::Q8(blocks) => Elements::Q8(blocks),
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.capacity() * size_of::<f32>(),
            Self::F16(numbers) => numbers.capacity() * size_of::<u16>(),
            Self::Q8(blocks) => blocks.capacity() * size_of::<Q8Block>(),
        }
    }
}
