//! Tensors on a GPU.

use crate::{Error, Result};
use layerscope_kernels::cuda::{Buffer, Device, Element, Numbers, store};
use layerscope_kernels::elementwise;
use std::sync::Arc;

/// Numbers with a shape in a GPU's memory, f32 or bf16. Clones share the numbers.
#[derive(Clone)]
pub struct DeviceTensor {
    buffer: Arc<Buffer>,
    element: Element,
    /// Index of the first number in the buffer.
    first: usize,
    dims: Vec<usize>,
}

impl DeviceTensor {
    /// Memory for `dims`, contents undefined.
    ///
    /// # Errors
    /// Where there is none left.
    pub fn undefined(device: &Device, element: Element, dims: &[usize]) -> Result<Self> {
        let buffer = device.allocate(dims.iter().product::<usize>() * element.bytes())?;
        Ok(Self { buffer: Arc::new(buffer), element, first: 0, dims: dims.to_vec() })
    }

    /// Numbers from the host, in f32.
    ///
    /// # Errors
    /// Where there is no memory left.
    pub fn upload(device: &Device, numbers: &[f32], dims: &[usize]) -> Result<Self> {
        let tensor = Self::undefined(device, Element::F32, dims)?;
        tensor.buffer.write(0, numbers)?;
        Ok(tensor)
    }

    /// As kernels take them.
    pub fn numbers(&self) -> Numbers<'_> {
        Numbers::new(&self.buffer, self.element, self.first, self.dims.iter().product())
    }

    /// In f32 on the host.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(self.numbers().to_vec()?)
    }

    /// Length of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Type of the numbers.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The device that they are on.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// Memory for as many numbers, in another type perhaps.
    pub(super) fn empty(&self, element: Element) -> Result<Self> {
        Self::undefined(self.device(), element, &self.dims)
    }

    fn width(&self) -> usize {
        self.dims[1..].iter().product()
    }

    pub(crate) fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if dims.iter().product::<usize>() != self.dims.iter().product::<usize>() {
            return Err(Error::failure(format!(
                "a tensor of {:?} is not one of {dims:?}; please report this",
                self.dims
            )));
        }
        Ok(Self { dims: dims.to_vec(), ..self.clone() })
    }

    pub(crate) fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        if first + len > self.dims[0] {
            return Err(Error::failure(format!(
                "rows {first} to {} are beyond {}; please report this",
                first + len,
                self.dims[0]
            )));
        }
        let mut narrowed = Self { first: self.first + first * self.width(), ..self.clone() };
        narrowed.dims[0] = len;
        Ok(narrowed)
    }

    pub(super) fn select(&self, rows: &[u32]) -> Result<Self> {
        if rows.iter().any(|&row| row as usize >= self.dims[0]) {
            return Err(Error::failure("a row is beyond a tensor; please report this"));
        }
        let mut dims = self.dims.clone();
        dims[0] = rows.len();
        let selected = Self::undefined(self.device(), self.element, &dims)?;
        let ids = self.device().upload(rows)?;
        store::gather_rows(self.numbers(), self.width(), &ids, rows.len(), selected.numbers())?;
        Ok(selected)
    }

    pub(super) fn cat(tensors: &[&Self]) -> Result<Self> {
        let first =
            tensors.first().ok_or_else(|| Error::failure("no rows are joined; please report this"))?;
        let agree = |tensor: &&&Self| tensor.dims[1..] == first.dims[1..] && tensor.element == first.element;
        if !tensors.iter().all(|tensor| agree(&tensor)) {
            return Err(Error::failure("rows that are joined differ; please report this"));
        }
        let mut dims = first.dims.clone();
        dims[0] = tensors.iter().map(|tensor| tensor.dims[0]).sum();
        let joined = Self::undefined(first.device(), first.element, &dims)?;
        let mut at = 0;
        for tensor in tensors {
            let bytes = tensor.numbers().len() * tensor.element.bytes();
            joined.buffer.copy_from(at, &tensor.buffer, tensor.first * tensor.element.bytes(), bytes)?;
            at += bytes;
        }
        Ok(joined)
    }

    /// In a type; itself where it is in it.
    ///
    /// # Errors
    /// Where there is no memory left.
    pub fn in_type(&self, element: Element) -> Result<Self> {
        if self.element == element {
            return Ok(self.clone());
        }
        let converted = self.empty(element)?;
        elementwise::cuda::convert(self.numbers(), converted.numbers())?;
        Ok(converted)
    }

    /// With numbers that nobody else has, so that they can be changed.
    pub(super) fn unshared(self) -> Result<Self> {
        if Arc::strong_count(&self.buffer) == 1 { Ok(self) } else { self.copied() }
    }

    /// A copy of the numbers.
    pub(crate) fn copied(&self) -> Result<Self> {
        let copy = self.empty(self.element)?;
        let bytes = self.numbers().len() * self.element.bytes();
        copy.buffer.copy_from(0, &self.buffer, self.first * self.element.bytes(), bytes)?;
        Ok(copy)
    }
}
