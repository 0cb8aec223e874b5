//! Tensors on the CPU: their numbers, and what the kernels do with them.

use crate::{Error, Result};
use candle_core::{Device, Storage, Tensor};
use layerscope_kernels::{Activation, elementwise};

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

/// x · factor; x itself where the factor is 1.
pub(crate) fn scale(x: Tensor, factor: f64) -> Result<Tensor> {
    if factor == 1.0 {
        return Ok(x);
    }
    filled(&x, |x, output| elementwise::scale(x, factor as f32, output))
}

/// x `[rows, d]` with `bias [d]` added to each row; x itself where there is none.
pub(crate) fn add_bias(x: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(x) };
    with_f32(bias, |bias| {
        filled(&x, |x, output| {
            output.copy_from_slice(x);
            elementwise::add_bias(output, bias);
        })
    })?
}

/// c·tanh(x/c); x itself where there is no cap.
pub(crate) fn soft_cap(x: Tensor, cap: Option<f64>) -> Result<Tensor> {
    let Some(cap) = cap else { return Ok(x) };
    filled(&x, |x, output| {
        output.copy_from_slice(x);
        elementwise::soft_cap(output, cap as f32);
    })
}

/// f(gate) · up.
pub(crate) fn gate(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    filled_from_two(gate, up, |gate, up, output| elementwise::gate(activation, gate, up, output))
}

/// f(x).
pub(crate) fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    filled(x, |x, output| elementwise::activate(activation, x, output))
}

/// RMSNorm of rows `[rows, d]` with a scale `[d]`.
pub(crate) fn rms_norm(x: &Tensor, scale: &Tensor, epsilon: f32) -> Result<Tensor> {
    with_f32(scale, |scale| filled(x, |x, output| elementwise::rms_norm(x, scale, epsilon, output)))?
}

/// LayerNorm of rows `[rows, d]` with a scale and a bias `[d]`.
pub(crate) fn layer_norm(x: &Tensor, scale: &Tensor, bias: &Tensor, epsilon: f32) -> Result<Tensor> {
    with_f32(scale, |scale| {
        with_f32(bias, |bias| {
            filled(x, |x, output| elementwise::layer_norm(x, [scale, bias], epsilon, output))
        })
    })??
}

/// Rotary embedding of `x [rows, heads, head_dim]`; cos and sin are `[rows, half]` each.
pub(crate) fn rotate(x: &Tensor, angles: [&[f32]; 2], half: usize) -> Result<Tensor> {
    let (_, heads, head_dim) = x.dims3()?;
    filled(x, |x, output| elementwise::rotate(x, [heads, head_dim], angles, half, output))
}
