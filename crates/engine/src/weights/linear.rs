//! Weight matrices: floats, or block-quantised as in the file.

use super::WeightsPrecision;
use super::bytes::{FileBytes, Where};
use super::huge_pages::advise_for;
use super::on_device::{DeviceLinearCall, DeviceMatrix};
use super::place::RowOrder;
use crate::adapter::LowRank;
use crate::tensor::{Tensor, mixed, with_f32};
use crate::{Device, Error, Result};
use layerscope_kernels::cuda::Buffer;
use layerscope_kernels::matmul::{ComputeType, Layout, ProductRows, WeightFormat, Weights, products};
use layerscope_kernels::{Activation, elementwise};
use std::ops::Range;
use std::sync::Arc;

/// `y = x·Wᵀ` with W `[out, in]`.
#[derive(Clone)]
pub struct Linear(Arc<Matrix>);

enum Matrix {
    Host(HostMatrix),
    Device(DeviceMatrix),
}

struct HostMatrix {
    bytes: Bytes,
    format: WeightFormat,
    rows: usize,
    columns: usize,
}

/// Where a matrix's elements are on the host.
enum Bytes {
    /// In the file, or in memory that has its content.
    InFile(Arc<FileBytes>, Range<usize>, Where),
    /// In memory, as in the file but with rows in another order.
    Owned(Vec<u8>, Layout),
    /// In memory, as f32.
    F32(Vec<f32>),
}

impl Linear {
    /// Weights `[rows, columns]` where they are in a file, or in an order in which memory has them.
    pub(super) fn in_file(
        file: Arc<FileBytes>,
        range: Range<usize>,
        order: RowOrder,
        format: WeightFormat,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Self {
        if keep || format == WeightFormat::F32 {
            let place = file.place(&range, order);
            return Self::of(HostMatrix { bytes: Bytes::InFile(file, range, place), format, rows, columns });
        }
        Self::from_blocks(&(*file).as_ref()[range], format, (rows, columns), keep)
    }

    /// From the bytes of `[rows, columns]` weights in a block type. They stay as they are where `keep`, else they
    /// become f32.
    pub(super) fn from_blocks(
        blocks: &[u8],
        format: WeightFormat,
        shape: (usize, usize),
        keep: bool,
    ) -> Self {
        Self::from_blocks_in(Layout::Rows, blocks, format, shape, keep)
    }

    /// [`Self::from_blocks`]; what stays is brought into a layout, where products are faster from it.
    pub(super) fn from_blocks_in(
        layout: Layout,
        blocks: &[u8],
        format: WeightFormat,
        (rows, columns): (usize, usize),
        keep: bool,
    ) -> Self {
        let (bytes, format) = match keep {
            true => {
                let mut owned = Vec::with_capacity(blocks.len());
                advise_for(&mut owned);
                let layout = if format.prefers_interleaved() { layout } else { Layout::Rows };
                match layout {
                    Layout::Rows => owned.extend_from_slice(blocks),
                    Layout::Interleaved => {
                        owned.resize(blocks.len(), 0);
                        format.interleave(columns, blocks, &mut owned);
                    }
                }
                (Bytes::Owned(owned, layout), format)
            }
            false => (Bytes::F32(dequantized(blocks, format, rows * columns)), WeightFormat::F32),
        };
        Self::of(HostMatrix { bytes, format, rows, columns })
    }

    /// From f32 `[rows, columns]`.
    pub(crate) fn from_numbers(numbers: Vec<f32>, (rows, columns): (usize, usize)) -> Self {
        Self::of(HostMatrix { bytes: Bytes::F32(numbers), format: WeightFormat::F32, rows, columns })
    }

    fn of(matrix: HostMatrix) -> Self {
        Self(Arc::new(Matrix::Host(matrix)))
    }

    /// On a device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        match (&*self.0, device) {
            (Matrix::Host(matrix), Device::Cuda(device)) => {
                Ok(Self(Arc::new(Matrix::Device(DeviceMatrix::upload(device, &matrix.weights())?))))
            }
            _ => Ok(self.clone()),
        }
    }

    fn rows_and_columns(&self) -> (usize, usize) {
        match &*self.0 {
            Matrix::Host(matrix) => (matrix.rows, matrix.columns),
            Matrix::Device(matrix) => (matrix.rows(), matrix.columns()),
        }
    }

    /// `x [rows, in]` to `[rows, out]`.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub fn forward(&self, x: &Tensor, compute: ComputeType) -> Result<Tensor> {
        let [y] = Self::multiply([LinearCall::of(self)], x, compute.into())?;
        Ok(y)
    }

    /// Several linear layers on the same rows `x [rows, in]`, in one parallel operation.
    ///
    /// Sums are in f32; activations may be rounded, as [`ComputeType`] says.
    ///
    /// # Errors
    /// On shapes that do not match.
    pub(crate) fn multiply<const N: usize>(
        calls: [LinearCall<'_>; N],
        x: &Tensor,
        mode: LinearMode<'_>,
    ) -> Result<[Tensor; N]> {
        let matrices = calls.each_ref().map(|call| call.weight);
        Self::check_columns(&matrices, x)?;
        let tensors = match x.on_device() {
            Some(x) => {
                let calls = calls.iter().map(LinearCall::on_device).collect::<Result<Vec<_>>>()?;
                DeviceMatrix::multiply(&calls, x)?
            }
            None => {
                let on_host = matrices.iter().map(|matrix| matrix.host()).collect::<Result<Vec<_>>>()?;
                let products = HostMatrix::multiply(&on_host, x, mode)?;
                let finished =
                    products.into_iter().zip(&calls).map(|(product, call)| call.finish(product, x.rows()));
                finished.collect::<Result<Vec<_>>>()?
            }
        };
        tensors.try_into().map_err(|_| Error::misuse("a product is missing"))
    }

    fn check_columns(matrices: &[&Self], x: &Tensor) -> Result<()> {
        let &[_, columns] = x.dims() else {
            return Err(Error::misuse("what is multiplied has no rows"));
        };
        match matrices.iter().find(|matrix| matrix.rows_and_columns().1 != columns) {
            None => Ok(()),
            Some(other) => Err(Error::misuse(format!(
                "rows of {columns} elements are multiplied by a matrix of {} columns",
                other.rows_and_columns().1
            ))),
        }
    }

    /// f(x·Gᵀ) · (x·Uᵀ) without the products as tensors of their own, where that can be.
    pub(crate) fn multiply_gated(
        activation: Activation,
        [gate, up]: [&Self; 2],
        x: &Tensor,
        mode: LinearMode<'_>,
    ) -> Result<Option<Tensor>> {
        Self::check_columns(&[gate, up], x)?;
        match (x.on_device(), &*gate.0, &*up.0) {
            (Some(x), Matrix::Device(gate), Matrix::Device(up)) => {
                DeviceMatrix::multiply_gated(activation, [gate, up], x)
            }
            (None, Matrix::Host(gate), Matrix::Host(up)) => {
                let mut products = HostMatrix::multiply(&[gate, up], x, mode)?.into_iter();
                let (Some(mut gated), Some(of_up)) = (products.next(), products.next()) else {
                    return Err(Error::misuse("a product is missing"));
                };
                elementwise::gate(activation, &mut gated, &of_up);
                Tensor::from_vec(gated, &[x.rows(), gate.rows]).map(Some)
            }
            _ => Err(mixed()),
        }
    }

    fn host(&self) -> Result<&HostMatrix> {
        match &*self.0 {
            Matrix::Host(matrix) => Ok(matrix),
            Matrix::Device(_) => Err(mixed()),
        }
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        match &*self.0 {
            Matrix::Host(matrix) => matrix.weights().data.len(),
            Matrix::Device(matrix) => matrix.bytes(),
        }
    }

    /// Rows of W by index, in f32: `[ids, in]`.
    fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let (rows, columns) = self.rows_and_columns();
        if let Some(&token) = ids.iter().find(|&&id| id as usize >= rows) {
            return Err(Error::UnknownToken { token, vocab: rows });
        }
        match &*self.0 {
            Matrix::Host(matrix) => {
                let mut rows = vec![0.0; ids.len() * columns];
                for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(columns)) {
                    matrix.weights().dequantize_row(id as usize, row);
                }
                Tensor::from_vec(rows, &[ids.len(), columns])
            }
            Matrix::Device(matrix) => Ok(matrix.gather(&matrix.device().upload(ids)?, ids.len())?.into()),
        }
    }

    /// Wᵀ, for products in `compute`: in bf16 or f32, in memory.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn transposed(&self, compute: ComputeType) -> Result<Self> {
        let (rows, columns) = self.rows_and_columns();
        let numbers = self.to_tensor()?.to_vec()?;
        let transposed = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
        match compute {
            ComputeType::F32 => {
                Ok(Self::from_numbers(transposed.map(|index| numbers[index]).collect(), (columns, rows)))
            }
            ComputeType::Bf16 | ComputeType::Int8 => {
                Ok(Self::rounded(transposed.map(|index| numbers[index]), (columns, rows)))
            }
        }
    }

    /// W + s·B·A, in memory: in f32, or in bf16 where weights are as their file has them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn plus(&self, matrix: &LowRank, precision: WeightsPrecision) -> Result<Self> {
        let (rows, columns) = self.rows_and_columns();
        let mut numbers = self.to_tensor()?.to_vec()?;
        for (row, numbers) in numbers.chunks_exact_mut(columns).enumerate() {
            numbers.iter_mut().zip(matrix.row(row)).for_each(|(w, addition)| *w += addition);
        }
        Ok(match precision {
            WeightsPrecision::F32 => Self::from_numbers(numbers, (rows, columns)),
            WeightsPrecision::Native => Self::rounded(numbers.into_iter(), (rows, columns)),
        })
    }

    /// In bf16, in memory.
    fn rounded(numbers: impl Iterator<Item = f32>, shape: (usize, usize)) -> Self {
        let bytes: Vec<u8> = numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect();
        Self::from_blocks(&bytes, WeightFormat::BF16, shape, true)
    }

    /// All of W in f32, `[out, in]`, on the host.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn to_tensor(&self) -> Result<Tensor> {
        match &*self.0 {
            Matrix::Host(HostMatrix { rows, columns, .. }) => {
                let mut widened = vec![0.0; rows * columns];
                self.host()?.weights().dequantize_rows(0..*rows, &mut widened);
                Tensor::from_vec(widened, &[*rows, *columns])
            }
            Matrix::Device(matrix) => Tensor::from(matrix.dequantized()?).to_device(&Device::Cpu),
        }
    }
}

/// How rows are multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearMode<'a> {
    /// The type in which several rows are multiplied.
    pub(crate) compute: ComputeType,
    /// Which of the rows are multiplied together; `None`: all of them. On a GPU it makes no difference.
    pub(crate) rows: Option<ProductRows>,
    /// The rows that adapters act on; `None`: all of them.
    pub(crate) adapted: Option<&'a [u32]>,
}

impl From<ComputeType> for LinearMode<'_> {
    fn from(compute: ComputeType) -> Self {
        Self { compute, rows: None, adapted: None }
    }
}

/// One linear layer: x·Wᵀ + bias + residual.
#[derive(Clone, Copy)]
pub(crate) struct LinearCall<'a> {
    pub(crate) weight: &'a Linear,
    /// `[out]`, added to each row.
    pub(crate) bias: Option<&'a Tensor>,
    /// `[rows, out]` in f32, added to the product; the result is f32 then.
    pub(crate) residual: Option<&'a Tensor>,
}

impl<'a> LinearCall<'a> {
    pub(crate) fn of(weight: &'a Linear) -> Self {
        Self { weight, bias: None, residual: None }
    }

    /// What is made of the product on the CPU, in its place.
    fn finish(&self, mut product: Vec<f32>, rows: usize) -> Result<Tensor> {
        if let Some(bias) = self.bias {
            with_f32(bias, |bias| elementwise::add_bias(&mut product, bias))?;
        }
        if let Some(residual) = self.residual {
            with_f32(residual, |residual| elementwise::add(&mut product, residual))?;
        }
        Tensor::from_vec(product, &[rows, self.weight.rows_and_columns().0])
    }

    fn on_device(&self) -> Result<DeviceLinearCall<'a>> {
        let Matrix::Device(weight) = &*self.weight.0 else { return Err(mixed()) };
        let there = |tensor: &'a Tensor| tensor.on_device().ok_or_else(mixed);
        Ok(DeviceLinearCall {
            weight,
            bias: self.bias.map(there).transpose()?,
            residual: self.residual.map(there).transpose()?,
        })
    }
}

impl HostMatrix {
    /// The products of several matrices with the same rows, `[rows, out]` each.
    fn multiply(matrices: &[&Self], x: &Tensor, mode: LinearMode<'_>) -> Result<Vec<Vec<f32>>> {
        let rows = mode.rows.unwrap_or(x.rows().into());
        let weights: Vec<_> = matrices.iter().map(|matrix| matrix.weights()).collect();
        with_f32(x, |x| products(x, rows, &weights, mode.compute))
    }

    fn weights(&self) -> Weights<'_> {
        let (data, layout) = match &self.bytes {
            Bytes::InFile(file, range, place) => file.rows(range, *place),
            Bytes::Owned(bytes, layout) => (&bytes[..], *layout),
            Bytes::F32(numbers) => (bytemuck::cast_slice(numbers), Layout::Rows),
        };
        Weights { data, format: self.format, rows: self.rows, columns: self.columns, layout }
    }
}

/// Blocks of `elements` weights in f32.
pub(super) fn dequantized(blocks: &[u8], format: WeightFormat, elements: usize) -> Vec<f32> {
    let mut widened = Vec::with_capacity(elements);
    advise_for(&mut widened);
    widened.resize(elements, 0.0);
    format.dequantize(blocks, &mut widened);
    widened
}

/// Token embedding: a [`Linear`] read by row.
#[derive(Clone)]
pub struct Embedding(pub(crate) Linear);

impl Embedding {
    /// Residual stream at the entrance of block 0, `[tokens, d]`.
    ///
    /// # Errors
    /// On a token id beyond the vocabulary.
    pub fn forward(&self, tokens: &[u32]) -> Result<Tensor> {
        self.0.rows(tokens)
    }

    /// The same of `count` ids (u32) that are on the GPU and within the vocabulary.
    pub(crate) fn forward_on_device(&self, ids: &Buffer, count: usize) -> Result<Tensor> {
        match &*self.0.0 {
            Matrix::Device(matrix) => Ok(matrix.gather(ids, count)?.into()),
            Matrix::Host(_) => Err(mixed()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::file::TensorFiles;
    use super::super::gguf::GgufFile;
    use super::*;
    use std::path::Path;

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec().unwrap()
    }

    /// The tensor of a type in `fixtures/block-types`, and what the gguf package unpacks it to.
    fn fixture(file: &GgufFile, name: &str, keep: bool) -> (Linear, Vec<f32>) {
        let (tensor, expected) =
            (file.tensor(name, false).unwrap(), file.tensor(&format!("{name}.f32"), true).unwrap());
        let &[rows, columns] = tensor.shape.as_slice() else { unreachable!("a matrix") };
        let linear = Linear::from_blocks(&tensor.bytes(), tensor.format, (rows, columns), keep);
        (linear, dequantized(&expected.bytes(), expected.format, rows * columns))
    }

    #[test]
    fn every_block_type_is_unpacked_as_the_gguf_package_does_and_products_agree() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-types/blocks.gguf");
        let file = GgufFile::open(&path).unwrap();
        let names: Vec<&str> = file.names().into_iter().filter(|name| !name.ends_with(".f32")).collect();
        let formats: Vec<WeightFormat> =
            names.iter().map(|name| file.tensor(name, false).unwrap().format).collect();
        assert!(WeightFormat::ALL.iter().all(|format| formats.contains(format)), "{names:?}");
        for name in names {
            let ((kept, expected), (widened, _)) = (fixture(&file, name, true), fixture(&file, name, false));
            let (rows, columns) = kept.rows_and_columns();
            for linear in [&kept, &widened] {
                for (at, (actual, expected)) in
                    numbers(&linear.to_tensor().unwrap()).iter().zip(&expected).enumerate()
                {
                    let ulp = expected.abs() * f32::EPSILON;
                    assert!((actual - expected).abs() <= ulp, "{name} {at}: {actual} {expected}");
                }
            }
            let value = |i: usize| (i * 7919 % 1009) as f32 / 504.5 - 1.0;
            let x: Vec<f32> = (0..3 * columns).map(value).collect();
            let x = Tensor::from_vec(x, &[3, columns]).unwrap();
            let w = Tensor::from_vec(expected.clone(), &[rows, columns]).unwrap().to_host().unwrap();
            let product = Tensor::from(x.to_host().unwrap().matmul(&w.t().unwrap()).unwrap());
            let scale = numbers(&product).iter().fold(0f32, |most, x| most.max(x.abs()));
            let close = |actual: &Tensor, expected: &Tensor, tolerance: f32| {
                for (a, b) in numbers(actual).iter().zip(numbers(expected)) {
                    assert!((a - b).abs() < tolerance * scale, "{name}: {a} {b}");
                }
            };
            close(&kept.forward(&x, ComputeType::F32).unwrap(), &product, 1e-5);
            close(&kept.forward(&x, ComputeType::Bf16).unwrap(), &product, 1e-2);
            close(&widened.forward(&x, ComputeType::Bf16).unwrap(), &product, 1e-5);
            let row = x.narrow(1, 1).unwrap();
            close(&kept.forward(&row, ComputeType::Bf16).unwrap(), &product.narrow(1, 1).unwrap(), 1e-4);
            close(&kept.forward(&row, ComputeType::Int8).unwrap(), &product.narrow(1, 1).unwrap(), 1e-2);
            let last = rows as u32 - 1;
            let read = numbers(&Embedding(kept).forward(&[last, 0, last]).unwrap());
            let all = numbers(&widened.to_tensor().unwrap());
            for (at, id) in [last, 0, last].into_iter().enumerate() {
                assert_eq!(
                    read[at * columns..][..columns],
                    all[id as usize * columns..][..columns],
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn tokens_and_shapes_that_do_not_fit_are_refused() {
        let blocks = [0; 4 * 6];
        let linear = Linear::from_blocks(&blocks, WeightFormat::F32, (2, 3), true);
        assert!(linear.rows(&[2]).unwrap_err().to_string().contains("token 2"));
        assert!(linear.forward(&Tensor::from_vec(vec![0.0; 4], &[1, 4]).unwrap(), ComputeType::F32).is_err());
    }
}
