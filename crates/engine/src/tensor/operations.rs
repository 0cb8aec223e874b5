//! The operations that tensors have on the CPU (`host.rs`) and on a GPU (`on_device.rs`).

use super::{DeviceTensor, HostTensor, Tensor};
use crate::decoder::rotary::Angle;
use crate::{ComputeType, Result};
use layerscope_kernels::{Activation, cuda};

/// Operations on a tensor and others in the same place. Results are in that place, too.
pub(super) trait Operations {
    fn dims(&self) -> &[usize];

    fn to_host(&self) -> Result<HostTensor>;

    fn to_gpu(&self, device: &cuda::Device) -> Result<DeviceTensor>;

    /// `other` in this place, and in the type of this tensor.
    fn bring(&self, other: &Tensor) -> Result<Tensor>;

    /// Calls `f` once with all numbers in f32.
    fn read(&self, f: &mut dyn FnMut(&[f32])) -> Result<()>;

    /// f32 zeros.
    fn zeros(&self, dims: &[usize]) -> Result<Tensor>;

    fn reshape(&self, dims: &[usize]) -> Result<Tensor>;

    fn narrow(&self, first: usize, len: usize) -> Result<Tensor>;

    fn select(&self, rows: &[u32]) -> Result<Tensor>;

    /// `tensors`, this one among them, one after the other.
    fn cat(&self, tensors: &[&Tensor]) -> Result<Tensor>;

    /// self + other, in f32.
    fn add(&self, other: &Tensor) -> Result<Tensor>;

    fn scale(&self, factor: f32) -> Result<Tensor>;

    /// Adds row i of `x`, times `weights[i]`, to row `ids[i]`, in place; ids are distinct.
    fn add_weighted_rows(&mut self, x: &Tensor, ids: &[u32], weights: &[f32]) -> Result<()>;

    /// cap·tanh(self/cap), in f32, in place.
    fn soft_cap(&mut self, cap: f32) -> Result<()>;

    fn activate(&self, activation: Activation) -> Result<Tensor>;

    /// f(self) · up.
    fn gate(&self, activation: Activation, up: &Tensor) -> Result<Tensor>;

    /// As [`Tensor::norm`].
    fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        epsilon: f32,
        compute: Option<ComputeType>,
    ) -> Result<Tensor>;

    /// In the type in which rows are multiplied.
    fn for_products(&self, compute: ComputeType) -> Result<Tensor>;

    /// Rotary embedding of the first 2·`half` elements of each head.
    fn rotate(&self, angle: &Angle, half: usize) -> Result<Tensor>;

    /// [`Self::rotate`] of queries, and of keys.
    fn rotate_with(&self, keys: &Tensor, angle: &Angle, half: usize) -> Result<[Tensor; 2]>;

    /// As [`Tensor::argmax`].
    fn argmax(&self, excluded: &[u32]) -> Result<Option<u32>>;
}
