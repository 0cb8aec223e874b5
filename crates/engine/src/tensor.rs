//! Tensors on the CPU: their numbers, and what the kernels do with them.

use crate::{Error, Result};
use candle_core::{Device, Storage, Tensor};
use layerscope_kernels::elementwise;

/// Runs `f` on the elements of an f32 tensor on the CPU, row-major.
///
/// # Errors
/// On a tensor of another type or device.
pub fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::failure("a tensor is not on the CPU; please report this"));
    };
    let start = layout.start_offset();
    Ok(f(&storage.as_slice::<f32>()?[start..start + layout.shape().elem_count()]))
}

/// A tensor of the shape of `x` that `f` fills from its numbers.
fn filled(x: &Tensor, f: impl FnOnce(&[f32], &mut [f32])) -> Result<Tensor> {
    let mut output = vec![0.0; x.elem_count()];
    with_f32(x, |x| f(x, &mut output))?;
    Ok(Tensor::from_vec(output, x.shape(), &Device::Cpu)?)
}

/// The same of two tensors of one shape.
fn filled_from_two(a: &Tensor, b: &Tensor, f: impl FnOnce(&[f32], &[f32], &mut [f32])) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return Err(Error::failure("two activations differ in shape; please report this"));
    }
    let mut output = vec![0.0; a.elem_count()];
    with_f32(a, |a| with_f32(b, |b| f(a, b, &mut output)))??;
    Ok(Tensor::from_vec(output, a.shape(), &Device::Cpu)?)
}

/// a + b.
pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    filled_from_two(a, b, elementwise::add)
}

/// silu(gate) · up.
pub(crate) fn silu_gate(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    filled_from_two(gate, up, elementwise::silu_gate)
}

/// RMSNorm of rows `[rows, d]` with a scale `[d]`.
pub(crate) fn rms_norm(x: &Tensor, scale: &Tensor, epsilon: f32) -> Result<Tensor> {
    with_f32(scale, |scale| filled(x, |x, output| elementwise::rms_norm(x, scale, epsilon, output)))?
}

/// Rotary embedding of `x [rows, heads, head_dim]`; cos and sin are `[rows, head_dim / 2]`.
pub(crate) fn rotate(x: &Tensor, angles: [&[f32]; 2]) -> Result<Tensor> {
    let (_, heads, head_dim) = x.dims3()?;
    filled(x, |x, output| elementwise::rotate(x, heads, angles, head_dim / 2, output))
}
