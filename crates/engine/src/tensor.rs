//! Numbers with a shape, on the CPU or on a GPU.
//!
//! On the CPU they are f32. On a GPU they are f32 or, where several rows are multiplied in [`ComputeType::Bf16`], bf16; the
//! residual stream is always f32.

mod host;
mod on_device;
mod operations;

pub use on_device::DeviceTensor;

use crate::decoder::rotary::Angle;
use crate::{ComputeType, Device, Error, Result};
use candle_core::Tensor as HostTensor;
use layerscope_kernels::{Activation, cuda};
use ndarray::{ArrayD, ArrayViewD};
use operations::Operations;
use std::fmt;

/// Numbers with a shape, row-major, where the model runs. Clones share the numbers.
#[derive(Clone)]
pub struct Tensor(Place);

#[derive(Clone)]
enum Place {
    Host(HostTensor),
    Gpu(DeviceTensor),
}

/// Where a tensor is: nothing else looks.
impl Tensor {
    fn here(&self) -> &dyn Operations {
        match &self.0 {
            Place::Host(tensor) => tensor,
            Place::Gpu(tensor) => tensor,
        }
    }

    fn here_mut(&mut self) -> &mut dyn Operations {
        match &mut self.0 {
            Place::Host(tensor) => tensor,
            Place::Gpu(tensor) => tensor,
        }
    }

    /// The tensor on a GPU, if it is there.
    pub fn on_device(&self) -> Option<&DeviceTensor> {
        match &self.0 {
            Place::Host(_) => None,
            Place::Gpu(tensor) => Some(tensor),
        }
    }

    fn on_host(&self) -> Result<&HostTensor> {
        match &self.0 {
            Place::Host(tensor) => Ok(tensor),
            Place::Gpu(_) => Err(mixed()),
        }
    }

    fn on_gpu(&self) -> Result<&DeviceTensor> {
        self.on_device().ok_or_else(mixed)
    }
}

/// What an operation on tensors, weights or angles in different places returns.
pub(crate) fn mixed() -> Error {
    Error::misuse("two tensors are on different devices")
}

impl Tensor {
    /// Numbers on the CPU, of `dims`.
    ///
    /// # Errors
    /// Where there are not as many.
    pub fn from_vec(numbers: Vec<f32>, dims: &[usize]) -> Result<Self> {
        Ok(HostTensor::from_vec(numbers, dims, &candle_core::Device::Cpu)?.into())
    }

    /// From an array, on the CPU.
    ///
    /// # Errors
    /// Never, unless candle fails.
    pub fn from_array(array: ArrayD<f32>) -> Result<Self> {
        let dims = array.shape().to_vec();
        Self::from_vec(array.into_iter().collect(), &dims)
    }

    /// As an array on the CPU.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn to_array(&self) -> Result<ArrayD<f32>> {
        self.with_array(|array| array.to_owned())
    }

    /// Runs `f` on all numbers in f32; on the CPU without a copy.
    pub(crate) fn with_array<R>(&self, f: impl FnOnce(ArrayViewD<'_, f32>) -> R) -> Result<R> {
        let view = |numbers: &[f32]| match ArrayViewD::from_shape(self.dims(), numbers) {
            Ok(view) => Ok(f(view)),
            Err(error) => Err(Error::misuse(format!("a tensor is not an array ({error})"))),
        };
        with_f32(self, view)?
    }

    /// As candle's f32 tensor on the CPU.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn to_host(&self) -> Result<HostTensor> {
        self.here().to_host()
    }

    fn to_gpu(&self, device: &cuda::Device) -> Result<DeviceTensor> {
        self.here().to_gpu(device)
    }

    /// All numbers in f32.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        with_f32(self, <[f32]>::to_vec)
    }

    /// On another device, or the same.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Device`].
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        match device {
            Device::Cpu => Ok(self.to_host()?.into()),
            Device::Cuda(device) => Ok(self.to_gpu(device)?.into()),
        }
    }

    /// In the place and the type of another.
    pub(crate) fn like(&self, other: &Self) -> Result<Self> {
        other.here().bring(self)
    }

    /// f32 zeros of `dims` in the place of this tensor.
    pub(crate) fn zeros(&self, dims: &[usize]) -> Result<Self> {
        self.here().zeros(dims)
    }

    /// Length of each dimension.
    pub fn dims(&self) -> &[usize] {
        self.here().dims()
    }

    /// Length of the first dimension.
    pub fn rows(&self) -> usize {
        self.dims().first().copied().unwrap_or(1)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The same numbers in another shape.
    ///
    /// # Errors
    /// Where the shape has another number of elements.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        self.here().reshape(dims)
    }

    /// `len` rows from `first` on.
    ///
    /// # Errors
    /// Where there are not as many.
    pub fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        self.here().narrow(first, len)
    }

    /// Rows by index.
    ///
    /// # Errors
    /// Where there is no such row.
    pub fn select(&self, rows: &[u32]) -> Result<Self> {
        self.here().select(rows)
    }

    /// The rows of all, one after the other.
    ///
    /// # Errors
    /// Where there is none, or they differ in width, type or device.
    pub fn cat(tensors: &[&Self]) -> Result<Self> {
        let first = tensors.first().ok_or_else(|| Error::misuse("no rows are joined"))?;
        first.here().cat(tensors)
    }

    /// The index of the largest number, the first of equals, without `excluded` ones; `None` where a number is NaN or none is
    /// left.
    pub(crate) fn argmax(&self, excluded: &[u32]) -> Result<Option<u32>> {
        self.here().argmax(excluded)
    }
}

/// Arithmetic of the decoder.
impl Tensor {
    /// self + other, in f32.
    pub(crate) fn add(&self, other: &Self) -> Result<Self> {
        self.here().add(other)
    }

    /// self · factor.
    pub(crate) fn scaled(self, factor: f64) -> Result<Self> {
        if factor == 1.0 { Ok(self) } else { self.here().scale(factor as f32) }
    }

    /// Adds row i of `x`, times `weights[i]`, to row `ids[i]`; ids are distinct, and this tensor comes from [`Self::zeros`].
    pub(crate) fn add_weighted_rows(&mut self, x: &Self, ids: &[u32], weights: &[f32]) -> Result<()> {
        self.here_mut().add_weighted_rows(x, ids, weights)
    }

    /// cap·tanh(self/cap), if there is a cap.
    pub(crate) fn soft_capped(mut self, cap: Option<f64>) -> Result<Self> {
        if let Some(cap) = cap {
            self.here_mut().soft_cap(cap as f32)?;
        }
        Ok(self)
    }

    /// f(self).
    pub(crate) fn activated(&self, activation: Activation) -> Result<Self> {
        self.here().activate(activation)
    }

    /// f(self) · up.
    pub(crate) fn gated(&self, activation: Activation, up: &Self) -> Result<Self> {
        self.here().gate(activation, up)
    }

    /// RMSNorm of rows `[rows, d]` with `weight [d]`, or LayerNorm where there is a `bias [d]`; in the type in which rows are
    /// multiplied in `compute`, or in the type of this tensor.
    pub(crate) fn norm(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        epsilon: f32,
        compute: Option<ComputeType>,
    ) -> Result<Self> {
        self.here().norm(weight, bias, epsilon, compute)
    }

    /// In the type in which rows are multiplied.
    pub(crate) fn for_products(&self, compute: ComputeType) -> Result<Self> {
        self.here().for_products(compute)
    }

    /// Rotary embedding of `[rows, heads, head_dim]`, of the first 2·`half` elements of each head.
    pub(crate) fn rotated(&self, angle: &Angle, half: usize) -> Result<Self> {
        self.here().rotate(angle, half)
    }

    /// [`Self::rotated`] of queries and of keys.
    pub(crate) fn both_rotated([q, k]: [&Self; 2], angle: &Angle, half: usize) -> Result<[Self; 2]> {
        q.here().rotate_with(k, angle, half)
    }
}

/// Runs `f` on the elements of a tensor in f32, row-major; on the CPU without a copy.
///
/// # Errors
/// [`Error::Device`].
pub fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let (mut f, mut result) = (Some(f), None);
    tensor.here().read(&mut |numbers| result = f.take().map(|f| f(numbers)))?;
    result.ok_or_else(|| Error::misuse("a tensor was not read"))
}

/// Heads and elements of each of `[rows, heads, head_dim]`.
fn heads_of(dims: &[usize]) -> Result<[usize; 2]> {
    match *dims {
        [_, heads, head_dim] => Ok([heads, head_dim]),
        _ => Err(Error::misuse("what is rotated has no heads")),
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor{:?}", self.dims())
    }
}

impl From<HostTensor> for Tensor {
    fn from(tensor: HostTensor) -> Self {
        Self(Place::Host(tensor))
    }
}

impl From<DeviceTensor> for Tensor {
    fn from(tensor: DeviceTensor) -> Self {
        Self(Place::Gpu(tensor))
    }
}
