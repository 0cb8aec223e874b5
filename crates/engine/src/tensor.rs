//! Borrowing a tensor's numbers.

use crate::{Error, Result};
use candle_core::{Storage, Tensor};

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
