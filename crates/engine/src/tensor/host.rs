//! Tensors on the CPU: f32, in candle's tensors.

use super::operations::Operations;
use super::{DeviceTensor, HostTensor, Tensor, heads_of};
use crate::decoder::rotary::Angle;
use crate::{ComputeType, Error, Result};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Storage};
use layerscope_kernels::distribution::argmax;
use layerscope_kernels::{Activation, cuda, elementwise};

impl Operations for HostTensor {
    fn dims(&self) -> &[usize] {
        self.dims()
    }

    fn to_host(&self) -> Result<HostTensor> {
        Ok(self.clone())
    }

    fn to_gpu(&self, device: &cuda::Device) -> Result<DeviceTensor> {
        with_numbers(self, |numbers| DeviceTensor::upload(device, numbers, self.dims()))?
    }

    fn bring(&self, other: &Tensor) -> Result<Tensor> {
        Ok(other.to_host()?.into())
    }

    fn read(&self, f: &mut dyn FnMut(&[f32])) -> Result<()> {
        with_numbers(self, f)
    }

    fn zeros(&self, dims: &[usize]) -> Result<Tensor> {
        Tensor::from_vec(vec![0.0; dims.iter().product()], dims)
    }

    fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(self.reshape(dims)?.into())
    }

    fn narrow(&self, first: usize, len: usize) -> Result<Tensor> {
        Ok(self.narrow(0, first, len)?.into())
    }

    fn select(&self, rows: &[u32]) -> Result<Tensor> {
        Ok(self.index_select(&HostTensor::new(rows, &Device::Cpu)?, 0)?.into())
    }

    fn cat(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let tensors = tensors.iter().map(|tensor| tensor.on_host()).collect::<Result<Vec<_>>>()?;
        Ok(HostTensor::cat(&tensors, 0)?.into())
    }

    fn add(&self, other: &Tensor) -> Result<Tensor> {
        changed_by(self, other.on_host()?, elementwise::add)
    }

    fn scale(&self, factor: f32) -> Result<Tensor> {
        filled(self, |x, output| elementwise::scale(x, factor, output))
    }

    fn add_weighted_rows(&mut self, x: &Tensor, ids: &[u32], weights: &[f32]) -> Result<()> {
        let x = x.on_host()?.contiguous()?;
        with_numbers(&x, |x| Ok(self.inplace_op1(&WeightedRows { x, ids, weights })?))?
    }

    fn soft_cap(&mut self, cap: f32) -> Result<()> {
        *self = changed(self, |numbers| elementwise::soft_cap(numbers, cap))?;
        Ok(())
    }

    fn activate(&self, activation: Activation) -> Result<Tensor> {
        filled(self, |x, output| elementwise::activate(activation, x, output))
    }

    fn gate(&self, activation: Activation, up: &Tensor) -> Result<Tensor> {
        changed_by(self, up.on_host()?, |gate, up| elementwise::gate(activation, gate, up))
    }

    fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        epsilon: f32,
        _: Option<ComputeType>,
    ) -> Result<Tensor> {
        with_numbers(weight.on_host()?, |weight| match bias {
            Some(bias) => with_numbers(bias.on_host()?, |bias| {
                filled(self, |x, output| elementwise::layer_norm(x, [weight, bias], epsilon, output))
            })?,
            None => filled(self, |x, output| elementwise::rms_norm(x, weight, epsilon, output)),
        })?
    }

    /// The product itself rounds.
    fn for_products(&self, _: ComputeType) -> Result<Tensor> {
        Ok(self.clone().into())
    }

    fn rotate(&self, angle: &Angle, half: usize) -> Result<Tensor> {
        let (heads, [cos, sin]) = (heads_of(self.dims())?, angle.on_host()?);
        filled(self, |x, output| elementwise::rotate(x, heads, [cos, sin], half, output))
    }

    fn rotate_with(&self, keys: &Tensor, angle: &Angle, half: usize) -> Result<[Tensor; 2]> {
        Ok([self.rotate(angle, half)?, keys.on_host()?.rotate(angle, half)?])
    }

    fn argmax(&self, excluded: &[u32]) -> Result<Option<u32>> {
        with_numbers(self, |numbers| {
            let most = argmax(numbers)?;
            if !excluded.contains(&(most as u32)) {
                return Some(most as u32);
            }
            let mut best: Option<(u32, f32)> = None;
            for (id, &number) in (0u32..).zip(numbers) {
                if best.is_none_or(|(_, top)| number > top) && !excluded.contains(&id) {
                    best = Some((id, number));
                }
            }
            best.map(|(id, _)| id)
        })
    }
}

/// Runs `f` on the numbers of a tensor, row-major.
fn with_numbers<R>(tensor: &HostTensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::misuse("a tensor is not on the CPU"));
    };
    let start = layout.start_offset();
    Ok(f(&storage.as_slice::<f32>()?[start..start + layout.shape().elem_count()]))
}

/// A tensor of the shape of `x` that `f` fills from its numbers.
fn filled(x: &HostTensor, f: impl FnOnce(&[f32], &mut [f32])) -> Result<Tensor> {
    let mut output = vec![0.0; x.elem_count()];
    with_numbers(x, |x| f(x, &mut output))?;
    Tensor::from_vec(output, x.dims())
}

/// A copy that `f` changes by another tensor of its shape.
fn changed_by(x: &HostTensor, by: &HostTensor, f: impl FnOnce(&mut [f32], &[f32])) -> Result<Tensor> {
    if x.shape() != by.shape() {
        return Err(Error::misuse("two activations differ in shape"));
    }
    Ok(with_numbers(by, |by| changed(x, |numbers| f(numbers, by)))??.into())
}

/// A copy that `f` changes.
fn changed(x: &HostTensor, f: impl FnOnce(&mut [f32])) -> Result<HostTensor> {
    let mut numbers = with_numbers(x, <[f32]>::to_vec)?;
    f(&mut numbers);
    Ok(HostTensor::from_vec(numbers, x.shape(), &Device::Cpu)?)
}

/// Row i of `x`, times `weights[i]`, is added to row `ids[i]`.
struct WeightedRows<'a> {
    x: &'a [f32],
    ids: &'a [u32],
    weights: &'a [f32],
}

impl InplaceOp1 for WeightedRows<'_> {
    fn name(&self) -> &'static str {
        "add-weighted-rows"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(sum), Some((start, end))) = (sum, layout.contiguous_offsets()) else {
            candle_core::bail!("sums of rows are contiguous f32");
        };
        let sum = &mut sum[start..end];
        let width = self.x.len() / self.ids.len().max(1);
        for ((&row, &weight), x) in self.ids.iter().zip(self.weights).zip(self.x.chunks_exact(width.max(1))) {
            let Some(output) = sum.get_mut(row as usize * width..(row as usize + 1) * width) else {
                candle_core::bail!("row {row} is beyond the sum");
            };
            output.iter_mut().zip(x).for_each(|(y, x)| *y += weight * x);
        }
        Ok(())
    }
}
