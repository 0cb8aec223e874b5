//! Tensors on the CPU: their numbers, and what the kernels do with them.

use crate::{Error, Result};
use candle_core::{Device, Storage, Tensor};
use layerscope_kernels::elementwise;

/// Runs `f` on the elements of an f32 tensor of candle's on the CPU, row-major.
///
/// # Errors
/// On a tensor of another type or device.
pub(super) fn with_host_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::failure("a tensor is not on the CPU; please report this"));
    };
    let start = layout.start_offset();
    Ok(f(&storage.as_slice::<f32>()?[start..start + layout.shape().elem_count()]))
}

/// A tensor of the shape of `x` that `f` fills from its numbers.
pub(super) fn filled(x: &Tensor, f: impl FnOnce(&[f32], &mut [f32])) -> Result<Tensor> {
    let mut output = vec![0.0; x.elem_count()];
    with_host_f32(x, |x| f(x, &mut output))?;
    Ok(Tensor::from_vec(output, x.shape(), &Device::Cpu)?)
}

/// The same of two tensors of one shape.
pub(super) fn filled_from_two(
    a: &Tensor,
    b: &Tensor,
    f: impl FnOnce(&[f32], &[f32], &mut [f32]),
) -> Result<Tensor> {
    if a.shape() != b.shape() {
        return Err(Error::failure("two activations differ in shape; please report this"));
    }
    let mut output = vec![0.0; a.elem_count()];
    with_host_f32(a, |a| with_host_f32(b, |b| f(a, b, &mut output)))??;
    Ok(Tensor::from_vec(output, a.shape(), &Device::Cpu)?)
}

/// RMSNorm of rows as long as the scale, or LayerNorm where there is a bias.
pub(super) fn norm(x: &Tensor, scale: &Tensor, bias: Option<&Tensor>, epsilon: f32) -> Result<Tensor> {
    with_host_f32(scale, |scale| match bias {
        Some(bias) => with_host_f32(bias, |bias| {
            filled(x, |x, output| elementwise::layer_norm(x, [scale, bias], epsilon, output))
        })?,
        None => filled(x, |x, output| elementwise::rms_norm(x, scale, epsilon, output)),
    })?
}
