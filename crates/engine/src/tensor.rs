//! Numbers with a shape, on the CPU or on a GPU, and what the decoder does with them.
//!
//! On the CPU they are f32, in candle's tensors. On a GPU they are f32 or, where several rows meet weights and no exact
//! figures are wanted, bf16; the residual stream is f32 always.

mod host;
mod on_device;

use host::with_host_f32;
pub use on_device::DeviceTensor;

use crate::decoder::rotary::Angle;
use crate::{ComputeType, Device, Error, Result};
use candle_core::Tensor as HostTensor;
use layerscope_kernels::cuda::{Element, Numbers, store};
use layerscope_kernels::{Activation, distribution, elementwise, matmul};
use ndarray::{ArrayD, ArrayViewD};
use std::fmt;

/// Numbers with a shape, row-major, where the model runs. Clones share the numbers.
#[derive(Clone)]
pub struct Tensor(Data);

#[derive(Clone)]
enum Data {
    Host(HostTensor),
    Device(DeviceTensor),
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor{:?}", self.dims())
    }
}

impl From<HostTensor> for Tensor {
    fn from(tensor: HostTensor) -> Self {
        Self(Data::Host(tensor))
    }
}

impl From<DeviceTensor> for Tensor {
    fn from(tensor: DeviceTensor) -> Self {
        Self(Data::Device(tensor))
    }
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
    /// Whatever fails beneath.
    pub fn from_array(array: ArrayD<f32>) -> Result<Self> {
        let dims = array.shape().to_vec();
        Self::from_vec(array.into_iter().collect(), &dims)
    }

    /// As an array on the CPU.
    ///
    /// # Errors
    /// Whatever fails beneath.
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
    /// Whatever fails beneath.
    pub fn to_host(&self) -> Result<HostTensor> {
        match &self.0 {
            Data::Host(tensor) => Ok(tensor.clone()),
            Data::Device(tensor) => {
                Ok(HostTensor::from_vec(tensor.to_vec()?, tensor.dims(), &candle_core::Device::Cpu)?)
            }
        }
    }

    /// All numbers in f32.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        with_f32(self, <[f32]>::to_vec)
    }

    /// On another device, or the same.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        match (&self.0, device) {
            (Data::Host(_), Device::Cpu) | (Data::Device(_), Device::Cuda(_)) => Ok(self.clone()),
            (Data::Host(tensor), Device::Cuda(device)) => {
                let dims = tensor.dims();
                with_host_f32(tensor, |numbers| DeviceTensor::upload(device, numbers, dims))?.map(Self::from)
            }
            (Data::Device(_), Device::Cpu) => Ok(self.to_host()?.into()),
        }
    }

    /// Where another is, and in its type.
    pub(crate) fn like(&self, other: &Self) -> Result<Self> {
        match &other.0 {
            Data::Host(_) => self.to_device(&Device::Cpu),
            Data::Device(other) => {
                let there = self.to_device(&Device::Cuda(other.device().clone()))?;
                match &there.0 {
                    Data::Device(tensor) => Ok(tensor.in_type(other.element())?.into()),
                    Data::Host(_) => Err(mixed()),
                }
            }
        }
    }

    /// The tensor on a GPU, if it is there.
    pub fn on_device(&self) -> Option<&DeviceTensor> {
        match &self.0 {
            Data::Host(_) => None,
            Data::Device(tensor) => Some(tensor),
        }
    }

    /// Length of each dimension.
    pub fn dims(&self) -> &[usize] {
        match &self.0 {
            Data::Host(tensor) => tensor.dims(),
            Data::Device(tensor) => tensor.dims(),
        }
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
        match &self.0 {
            Data::Host(tensor) => Ok(tensor.reshape(dims)?.into()),
            Data::Device(tensor) => Ok(tensor.reshape(dims)?.into()),
        }
    }

    /// `len` rows from `first` on.
    ///
    /// # Errors
    /// Where there are not as many.
    pub fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        match &self.0 {
            Data::Host(tensor) => Ok(tensor.narrow(0, first, len)?.into()),
            Data::Device(tensor) => Ok(tensor.narrow(first, len)?.into()),
        }
    }

    /// Rows by index.
    ///
    /// # Errors
    /// Where there is no such row.
    pub fn select(&self, rows: &[u32]) -> Result<Self> {
        match &self.0 {
            Data::Host(tensor) => {
                let rows = HostTensor::new(rows, tensor.device())?;
                Ok(tensor.index_select(&rows, 0)?.into())
            }
            Data::Device(tensor) => Ok(tensor.select(rows)?.into()),
        }
    }

    /// The rows of all, one after the other.
    ///
    /// # Errors
    /// Where they differ in width or device.
    pub fn cat(tensors: &[&Self]) -> Result<Self> {
        let host: Option<Vec<&HostTensor>> = tensors
            .iter()
            .map(|tensor| match &tensor.0 {
                Data::Host(tensor) => Some(tensor),
                Data::Device(_) => None,
            })
            .collect();
        if let Some(host) = host {
            return Ok(HostTensor::cat(&host, 0)?.into());
        }
        let device: Option<Vec<&DeviceTensor>> = tensors.iter().map(|tensor| tensor.on_device()).collect();
        Ok(DeviceTensor::cat(&device.ok_or_else(mixed)?)?.into())
    }
}

/// Runs `f` on the elements of a tensor in f32, row-major.
///
/// # Errors
/// Whatever fails beneath.
pub fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    match &tensor.0 {
        Data::Host(tensor) => with_host_f32(tensor, f),
        Data::Device(tensor) => Ok(f(&tensor.to_vec()?)),
    }
}

fn mixed() -> Error {
    Error::failure("two tensors are on different devices; please report this")
}

/// On a GPU, the type of the rows that go into products in `compute`: few rows are f32, since memory sets their pace.
fn element(compute: ComputeType, rows: usize) -> Element {
    match compute {
        ComputeType::Bf16 if rows > matmul::cuda::FEW_ROWS => Element::Bf16,
        _ => Element::F32,
    }
}

/// a + b, in f32.
pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (&a.0, &b.0) {
        (Data::Host(a), Data::Host(b)) => Ok(host::filled_from_two(a, b, elementwise::add)?.into()),
        (Data::Device(a), Data::Device(b)) => {
            let output = a.empty(Element::F32)?;
            elementwise::cuda::add(a.numbers(), b.numbers(), output.numbers())?;
            Ok(output.into())
        }
        _ => Err(mixed()),
    }
}

/// x · factor; x itself where the factor is 1.
pub(crate) fn scale(x: Tensor, factor: f64) -> Result<Tensor> {
    if factor == 1.0 {
        return Ok(x);
    }
    match &x.0 {
        Data::Host(x) => {
            Ok(host::filled(x, |x, output| elementwise::scale(x, factor as f32, output))?.into())
        }
        Data::Device(x) => {
            let output = x.empty(x.element())?;
            elementwise::cuda::scale(x.numbers(), factor as f32, output.numbers())?;
            Ok(output.into())
        }
    }
}

/// x `[rows, d]` with `bias [d]` added to each row; x itself where there is none.
pub(crate) fn add_bias(x: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(x) };
    match (x.0, &bias.0) {
        (Data::Host(x), Data::Host(bias)) => with_host_f32(bias, |bias| {
            let added = host::filled(&x, |x, output| {
                output.copy_from_slice(x);
                elementwise::add_bias(output, bias);
            });
            Ok(added?.into())
        })?,
        (Data::Device(x), Data::Device(bias)) => {
            let x = x.unshared()?;
            elementwise::cuda::add_bias(x.numbers(), bias.numbers())?;
            Ok(x.into())
        }
        _ => Err(mixed()),
    }
}

/// c·tanh(x/c); x itself where there is no cap.
pub(crate) fn soft_cap(x: Tensor, cap: Option<f64>) -> Result<Tensor> {
    let Some(cap) = cap else { return Ok(x) };
    match x.0 {
        Data::Host(x) => {
            let capped = host::filled(&x, |x, output| {
                output.copy_from_slice(x);
                elementwise::soft_cap(output, cap as f32);
            });
            Ok(capped?.into())
        }
        Data::Device(x) => {
            let x = if x.element() == Element::F32 { x } else { x.in_type(Element::F32)? };
            let x = x.unshared()?;
            elementwise::cuda::soft_cap(x.numbers(), cap as f32)?;
            Ok(x.into())
        }
    }
}

/// f(gate) · up.
pub(crate) fn gate(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    match (&gate.0, &up.0) {
        (Data::Host(gate), Data::Host(up)) => Ok(host::filled_from_two(gate, up, |gate, up, output| {
            elementwise::gate(activation, gate, up, output);
        })?
        .into()),
        (Data::Device(gate), Data::Device(up)) => {
            let output = gate.empty(gate.element())?;
            elementwise::cuda::gate(activation, gate.numbers(), up.numbers(), output.numbers())?;
            Ok(output.into())
        }
        _ => Err(mixed()),
    }
}

/// f(x).
pub(crate) fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match &x.0 {
        Data::Host(x) => {
            Ok(host::filled(x, |x, output| elementwise::activate(activation, x, output))?.into())
        }
        Data::Device(x) => {
            let output = x.empty(x.element())?;
            elementwise::cuda::activate(activation, x.numbers(), output.numbers())?;
            Ok(output.into())
        }
    }
}

/// x in the type in which it is multiplied; on the CPU x itself.
pub(crate) fn for_products(x: &Tensor, compute: ComputeType) -> Result<Tensor> {
    match &x.0 {
        Data::Host(_) => Ok(x.clone()),
        Data::Device(tensor) => Ok(tensor.in_type(element(compute, x.rows()))?.into()),
    }
}

/// RMSNorm of rows `[rows, d]` with a scale `[d]`, or LayerNorm where there is a bias `[d]`. The result is in the type of
/// x, or in the one in which it is multiplied.
pub(crate) fn norm(
    x: &Tensor,
    scale: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
    compute: Option<ComputeType>,
) -> Result<Tensor> {
    match (&x.0, &scale.0) {
        (Data::Host(x), Data::Host(scale)) => {
            let bias = bias.map(Tensor::to_host).transpose()?;
            Ok(host::norm(x, scale, bias.as_ref(), epsilon)?.into())
        }
        (Data::Device(tensor), Data::Device(scale)) => {
            let output_element = compute.map_or(tensor.element(), |compute| element(compute, x.rows()));
            let output = tensor.empty(output_element)?;
            let (x, scale, to) = (tensor.numbers(), scale.numbers(), output.numbers());
            match bias.and_then(Tensor::on_device) {
                Some(bias) => elementwise::cuda::layer_norm(x, scale, bias.numbers(), epsilon, to)?,
                None => elementwise::cuda::rms_norm(x, scale, epsilon, to)?,
            }
            Ok(output.into())
        }
        _ => Err(mixed()),
    }
}

/// Rotary embedding of `x [rows, heads, head_dim]`, of the first 2·`half` elements of each head.
pub(crate) fn rotate(x: &Tensor, angle: &Angle, half: usize) -> Result<Tensor> {
    let [heads, head_dim] = heads_of(x)?;
    match (&x.0, angle) {
        (Data::Host(x), Angle::Host([cos, sin])) => Ok(host::filled(x, |x, output| {
            elementwise::rotate(x, [heads, head_dim], [cos, sin], half, output);
        })?
        .into()),
        (Data::Device(x), Angle::Device(device_angle)) => {
            let output = x.empty(x.element())?;
            let rotation = device_angle.rotation(half);
            elementwise::cuda::rotate(x.numbers(), heads, head_dim, &rotation, output.numbers())?;
            Ok(output.into())
        }
        _ => Err(mixed()),
    }
}

/// The same of queries and keys: at once where they are on a GPU.
pub(crate) fn rotate_both([q, k]: [&Tensor; 2], angle: &Angle, half: usize) -> Result<[Tensor; 2]> {
    let (Data::Device(on_device_q), Data::Device(on_device_k), Angle::Device(device_angle)) =
        (&q.0, &k.0, angle)
    else {
        return Ok([rotate(q, angle, half)?, rotate(k, angle, half)?]);
    };
    let ([heads, head_dim], [kv_heads, _]) = (heads_of(q)?, heads_of(k)?);
    let outputs = [on_device_q.empty(on_device_q.element())?, on_device_k.empty(on_device_k.element())?];
    elementwise::cuda::rotate_both(
        [on_device_q.numbers(), on_device_k.numbers()],
        [heads, kv_heads],
        head_dim,
        &device_angle.rotation(half),
        outputs.each_ref().map(DeviceTensor::numbers),
    )?;
    Ok(outputs.map(Tensor::from))
}

/// Heads and elements of each of `[rows, heads, head_dim]`.
fn heads_of(x: &Tensor) -> Result<[usize; 2]> {
    match x.dims() {
        &[_, heads, head_dim] => Ok([heads, head_dim]),
        _ => Err(Error::failure("what is rotated has no heads; please report this")),
    }
}

/// Rows that are summed up from weighted rows of others, in f32.
pub(crate) enum WeightedRows {
    Host { sum: Vec<f32>, width: usize },
    Device(DeviceTensor),
}

impl WeightedRows {
    /// Zeros: `rows` rows, where `like` is and as wide.
    pub(crate) fn new(like: &Tensor, rows: usize) -> Result<Self> {
        let width = like.elements() / like.rows().max(1);
        Ok(match &like.0 {
            Data::Host(_) => Self::Host { sum: vec![0.0; rows * width], width },
            Data::Device(like) => {
                Self::Device(DeviceTensor::upload(like.device(), &vec![0.0; rows * width], &[rows, width])?)
            }
        })
    }

    /// Adds each row of `x`, times its weight, to the row of that index; indices are distinct.
    pub(crate) fn add(&mut self, x: &Tensor, ids: &[u32], weights: &[f32]) -> Result<()> {
        match (self, &x.0) {
            (Self::Host { sum, width }, Data::Host(x)) => with_host_f32(x, |x| {
                for ((&row, &weight), found) in ids.iter().zip(weights).zip(x.chunks_exact(*width)) {
                    let output = &mut sum[row as usize * *width..][..*width];
                    output.iter_mut().zip(found).for_each(|(y, x)| *y += weight * x);
                }
            }),
            (Self::Device(sum), Data::Device(x)) => {
                let width = sum.dims()[1];
                let (ids, weights) = (x.device().upload(ids)?, x.device().upload(weights)?);
                let weights = Numbers::all(&weights, Element::F32);
                Ok(store::add_weighted_rows(x.numbers(), width, &ids, weights, sum.numbers())?)
            }
            _ => Err(mixed()),
        }
    }

    pub(crate) fn finish(self) -> Result<Tensor> {
        match self {
            Self::Host { sum, width } => {
                let rows = sum.len() / width.max(1);
                Tensor::from_vec(sum, &[rows, width])
            }
            Self::Device(sum) => Ok(sum.into()),
        }
    }
}

/// Index of the largest of numbers, the first of equals, but for `excluded` ones; `None` where one is NaN or none is left.
pub(crate) fn argmax(x: &Tensor, excluded: &[u32]) -> Result<Option<u32>> {
    match &x.0 {
        Data::Host(x) => with_host_f32(x, |numbers| {
            let mut best: Option<(u32, f32)> = None;
            for (id, &number) in (0u32..).zip(numbers) {
                if number.is_nan() {
                    return None;
                }
                if best.is_none_or(|(_, top)| number > top) && !excluded.contains(&id) {
                    best = Some((id, number));
                }
            }
            best.map(|(id, _)| id)
        }),
        Data::Device(x) => {
            let device = x.device();
            let passed_over = if excluded.is_empty() { None } else { Some(device.upload(excluded)?) };
            let found = device.allocate(2 * size_of::<u32>())?;
            let excluded = passed_over.as_ref().map(|ids| (ids, excluded.len()));
            distribution::cuda::argmax(x.numbers(), excluded, &found)?;
            match found.to_vec::<u32>()?[..] {
                [id, finite] if finite != 0 && id != u32::MAX => Ok(Some(id)),
                _ => Ok(None),
            }
        }
    }
}
