//! Tensors on a GPU: f32 or bf16.

use super::operations::Operations;
use super::{HostTensor, Tensor, heads_of};
use crate::decoder::rotary::Angle;
use crate::{ComputeType, Error, Result};
use layerscope_kernels::cuda::{Buffer, Device, Element, Numbers, store};
use layerscope_kernels::{Activation, distribution, elementwise, matmul};
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
    /// [`Error::OutOfMemory`].
    pub fn undefined(device: &Device, element: Element, dims: &[usize]) -> Result<Self> {
        let buffer = device.allocate(dims.iter().product::<usize>() * element.bytes())?;
        Ok(Self { buffer: Arc::new(buffer), element, first: 0, dims: dims.to_vec() })
    }

    /// Zeros of these dimensions.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn zeros(device: &Device, element: Element, dims: &[usize]) -> Result<Self> {
        let tensor = Self::undefined(device, element, dims)?;
        tensor.buffer.clear()?;
        Ok(tensor)
    }

    /// Numbers from the host, in f32.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Misuse`] where there are not as many numbers as `dims` says.
    pub fn upload(device: &Device, numbers: &[f32], dims: &[usize]) -> Result<Self> {
        if numbers.len() != dims.iter().product::<usize>() {
            return Err(Error::misuse(format!("{} numbers are not a tensor of {dims:?}", numbers.len())));
        }
        let tensor = Self::undefined(device, Element::F32, dims)?;
        tensor.buffer.write(0, numbers)?;
        Ok(tensor)
    }

    /// As kernels take them.
    pub fn numbers(&self) -> Numbers<'_> {
        Numbers::new(&self.buffer, self.element, self.first, self.elements())
    }

    /// In f32 on the host.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(self.numbers().to_vec()?)
    }

    /// Length of each dimension.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Type of the numbers.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The device that they are on.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// In a type; itself where it is in it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn in_type(&self, element: Element) -> Result<Self> {
        if self.element == element {
            return Ok(self.clone());
        }
        let converted = self.empty(element)?;
        elementwise::cuda::convert(self.numbers(), converted.numbers())?;
        Ok(converted)
    }

    pub(crate) fn reshape(&self, dims: &[usize]) -> Result<Self> {
        if dims.iter().product::<usize>() != self.elements() {
            return Err(Error::misuse(format!("a tensor of {:?} is not one of {dims:?}", self.dims)));
        }
        Ok(Self { dims: dims.to_vec(), ..self.clone() })
    }

    pub(crate) fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        if first.checked_add(len).is_none_or(|end| end > self.rows()) {
            return Err(Error::misuse(format!("{len} rows from {first} on are beyond {}", self.rows())));
        }
        let mut dims = self.dims.clone();
        dims.splice(..1.min(dims.len()), [len]);
        Ok(Self { first: self.first + first * self.width(), dims, ..self.clone() })
    }

    /// A copy of the numbers.
    pub(crate) fn copied(&self) -> Result<Self> {
        let copy = self.empty(self.element)?;
        let bytes = self.numbers().len() * self.element.bytes();
        copy.buffer.copy_from(0, &self.buffer, self.first * self.element.bytes(), bytes)?;
        Ok(copy)
    }

    /// Memory for as many numbers, in another type perhaps.
    fn empty(&self, element: Element) -> Result<Self> {
        Self::undefined(self.device(), element, &self.dims)
    }

    fn rows(&self) -> usize {
        self.dims.first().copied().unwrap_or(1)
    }

    fn width(&self) -> usize {
        self.dims.iter().skip(1).product()
    }

    /// Numbers that no other tensor shares, so that they can be changed.
    fn unshare(&mut self) -> Result<()> {
        if Arc::strong_count(&self.buffer) > 1 {
            *self = self.copied()?;
        }
        Ok(())
    }

    /// The type of these rows in products: few rows are f32, since memory sets their pace.
    fn product_element(&self, compute: ComputeType) -> Element {
        match compute {
            ComputeType::Bf16 | ComputeType::Int8 if self.rows() > matmul::cuda::FEW_ROWS => Element::Bf16,
            _ => Element::F32,
        }
    }
}

impl Operations for DeviceTensor {
    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn to_host(&self) -> Result<HostTensor> {
        Ok(HostTensor::from_vec(self.to_vec()?, self.dims(), &candle_core::Device::Cpu)?)
    }

    fn to_gpu(&self, _: &Device) -> Result<DeviceTensor> {
        Ok(self.clone())
    }

    fn bring(&self, other: &Tensor) -> Result<Tensor> {
        Ok(other.to_gpu(self.device())?.in_type(self.element)?.into())
    }

    fn read(&self, f: &mut dyn FnMut(&[f32])) -> Result<()> {
        f(&self.to_vec()?);
        Ok(())
    }

    fn zeros(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(Self::zeros(self.device(), Element::F32, dims)?.into())
    }

    fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        Ok(self.reshape(dims)?.into())
    }

    fn narrow(&self, first: usize, len: usize) -> Result<Tensor> {
        Ok(self.narrow(first, len)?.into())
    }

    fn select(&self, rows: &[u32]) -> Result<Tensor> {
        if rows.iter().any(|&row| row as usize >= self.rows()) {
            return Err(Error::misuse("a row is beyond a tensor"));
        }
        let mut dims = self.dims.clone();
        dims.splice(..1.min(dims.len()), [rows.len()]);
        let selected = Self::undefined(self.device(), self.element, &dims)?;
        let ids = self.device().upload(rows)?;
        store::gather_rows(self.numbers(), self.width(), &ids, rows.len(), selected.numbers())?;
        Ok(selected.into())
    }

    fn cat(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let tensors = tensors.iter().map(|tensor| tensor.on_gpu()).collect::<Result<Vec<_>>>()?;
        let fits = |tensor: &Self| {
            tensor.dims.len() == self.dims.len()
                && tensor.width() == self.width()
                && tensor.element == self.element
        };
        if self.dims.is_empty() || !tensors.iter().all(|tensor| fits(tensor)) {
            return Err(Error::misuse("rows that are joined differ"));
        }
        let mut dims = self.dims.clone();
        dims[0] = tensors.iter().map(|tensor| tensor.rows()).sum();
        let joined = Self::undefined(self.device(), self.element, &dims)?;
        let mut at = 0;
        for tensor in tensors {
            let bytes = tensor.numbers().len() * tensor.element.bytes();
            joined.buffer.copy_from(at, &tensor.buffer, tensor.first * tensor.element.bytes(), bytes)?;
            at += bytes;
        }
        Ok(joined.into())
    }

    fn add(&self, other: &Tensor) -> Result<Tensor> {
        let output = self.empty(Element::F32)?;
        elementwise::cuda::add(self.numbers(), other.on_gpu()?.numbers(), output.numbers())?;
        Ok(output.into())
    }

    fn scale(&self, factor: f32) -> Result<Tensor> {
        let output = self.empty(self.element)?;
        elementwise::cuda::scale(self.numbers(), factor, output.numbers())?;
        Ok(output.into())
    }

    fn add_weighted_rows(&mut self, x: &Tensor, ids: &[u32], weights: &[f32]) -> Result<()> {
        self.unshare()?;
        let (ids, weights) = (self.device().upload(ids)?, self.device().upload(weights)?);
        let weights = Numbers::all(&weights, Element::F32);
        Ok(store::add_weighted_rows(x.on_gpu()?.numbers(), self.width(), &ids, weights, self.numbers())?)
    }

    fn soft_cap(&mut self, cap: f32) -> Result<()> {
        *self = self.in_type(Element::F32)?;
        self.unshare()?;
        Ok(elementwise::cuda::soft_cap(self.numbers(), cap)?)
    }

    fn activate(&self, activation: Activation) -> Result<Tensor> {
        let output = self.empty(self.element)?;
        elementwise::cuda::activate(activation, self.numbers(), output.numbers())?;
        Ok(output.into())
    }

    fn gate(&self, activation: Activation, up: &Tensor) -> Result<Tensor> {
        let output = self.empty(self.element)?;
        elementwise::cuda::gate(activation, self.numbers(), up.on_gpu()?.numbers(), output.numbers())?;
        Ok(output.into())
    }

    fn norm(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        epsilon: f32,
        compute: Option<ComputeType>,
    ) -> Result<Tensor> {
        let output = self.empty(compute.map_or(self.element, |compute| self.product_element(compute)))?;
        let (x, weight, to) = (self.numbers(), weight.on_gpu()?.numbers(), output.numbers());
        match bias {
            Some(bias) => {
                elementwise::cuda::layer_norm(x, weight, bias.on_gpu()?.numbers(), epsilon, to)?;
            }
            None => elementwise::cuda::rms_norm(x, weight, epsilon, to)?,
        }
        Ok(output.into())
    }

    fn for_products(&self, compute: ComputeType) -> Result<Tensor> {
        Ok(self.in_type(self.product_element(compute))?.into())
    }

    fn rotate(&self, angle: &Angle, half: usize) -> Result<Tensor> {
        let ([heads, head_dim], rotation) = (heads_of(&self.dims)?, angle.on_gpu()?.rotation(half));
        let output = self.empty(self.element)?;
        elementwise::cuda::rotate(self.numbers(), heads, head_dim, &rotation, output.numbers())?;
        Ok(output.into())
    }

    /// One kernel for both.
    fn rotate_with(&self, keys: &Tensor, angle: &Angle, half: usize) -> Result<[Tensor; 2]> {
        let (keys, rotation) = (keys.on_gpu()?, angle.on_gpu()?.rotation(half));
        let ([heads, head_dim], [kv_heads, _]) = (heads_of(&self.dims)?, heads_of(&keys.dims)?);
        let outputs = [self.empty(self.element)?, keys.empty(keys.element)?];
        elementwise::cuda::rotate_both(
            [self.numbers(), keys.numbers()],
            [heads, kv_heads],
            head_dim,
            &rotation,
            outputs.each_ref().map(Self::numbers),
        )?;
        Ok(outputs.map(Tensor::from))
    }

    fn argmax(&self, excluded: &[u32]) -> Result<Option<u32>> {
        let device = self.device();
        let excluded_ids = if excluded.is_empty() { None } else { Some(device.upload(excluded)?) };
        let output = device.allocate(2 * size_of::<u32>())?;
        let excluded = excluded_ids.as_ref().map(|ids| (ids, excluded.len()));
        distribution::cuda::argmax(self.numbers(), excluded, &output)?;
        match output.to_vec::<u32>()?[..] {
            [id, finite] if finite != 0 && id != u32::MAX => Ok(Some(id)),
            _ => Ok(None),
        }
    }
}
