//! A matrix in a GPU's memory.
//!
//! Few rows are multiplied by the weights as they are in the file. Many rows are multiplied by cuBLAS: bf16 rows by bf16
//! weights; f32 rows by f32 weights, or by bf16 weights as the sum of three bf16 products, which is exact. Weights of other
//! types are dequantised first, one part of a matrix after the other.

use crate::tensor::{DeviceTensor, Tensor};
use crate::{Error, Result};
use layerscope_kernels::cuda::{Buffer, Device, Element, Gemm, Numbers};
use layerscope_kernels::matmul::cuda::{self, FEW_ROWS, RowProduct};
use layerscope_kernels::matmul::{WeightFormat, Weights};
use layerscope_kernels::{Activation, elementwise};

/// Bytes of a matrix that are dequantised at once: bounds the memory and keeps products large.
const UNPACKED_BYTES: usize = 256 << 20;

/// W `[rows, columns]`.
pub(super) struct DeviceMatrix {
    data: Buffer,
    format: WeightFormat,
    rows: usize,
    columns: usize,
}

impl DeviceMatrix {
    pub(super) fn upload(device: &Device, weights: &Weights<'_>) -> Result<Self> {
        let data = device.reserve(weights.data.len())?;
        data.write(0, &weights.in_rows())?;
        let Weights { format, rows, columns, .. } = *weights;
        Ok(Self { data, format, rows, columns })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.bytes()
    }

    pub(super) fn device(&self) -> &Device {
        self.data.device()
    }

    fn weights(&self) -> cuda::DeviceWeights<'_> {
        let Self { format, rows, columns, .. } = *self;
        cuda::DeviceWeights { data: &self.data, offset: 0, format, rows, columns }
    }

    /// Rows by index (u32 `[count]` on the device), in f32.
    pub(super) fn gather(&self, ids: &Buffer, count: usize) -> Result<DeviceTensor> {
        let rows = DeviceTensor::undefined(self.device(), Element::F32, &[count, self.columns])?;
        cuda::dequantize_rows(&self.weights(), ids, count, rows.numbers())?;
        Ok(rows)
    }

    /// All of W in f32.
    pub(super) fn dequantized(&self) -> Result<DeviceTensor> {
        let all = DeviceTensor::undefined(self.device(), Element::F32, &[self.rows, self.columns])?;
        cuda::dequantize(&self.weights(), 0, self.rows, all.numbers())?;
        Ok(all)
    }

    /// The products of several matrices with the same rows `x [rows, columns]`, in the type of x; few rows in f32.
    pub(super) fn multiply(calls: &[DeviceLinearCall<'_>], x: &DeviceTensor) -> Result<Vec<Tensor>> {
        let rows = x.dims()[0];
        let few = rows <= FEW_ROWS;
        let element = if few { Element::F32 } else { x.element() };
        let outputs = calls
            .iter()
            .map(|call| DeviceTensor::undefined(x.device(), element, &[rows, call.weight.rows]))
            .collect::<Result<Vec<_>>>()?;
        if few {
            let products = calls.iter().zip(&outputs).map(|(call, output)| RowProduct {
                weights: call.weight.weights(),
                bias: call.bias.map(DeviceTensor::numbers),
                add: call.residual.map(DeviceTensor::numbers),
                output: output.numbers(),
            });
            let x = x.in_type(Element::F32)?;
            cuda::multiply_rows(x.numbers(), rows, &products.collect::<Vec<_>>())?;
            return Ok(outputs.into_iter().map(Tensor::from).collect());
        }
        let x = InputRows::new(x)?;
        let finished = calls.iter().zip(outputs).map(|(call, output)| {
            call.weight.multiply_many(&x, &output)?;
            if let Some(bias) = call.bias {
                elementwise::cuda::add_bias(output.numbers(), bias.numbers())?;
            }
            let Some(residual) = call.residual else { return Ok(output.into()) };
            let total = DeviceTensor::undefined(output.device(), Element::F32, output.dims())?;
            elementwise::cuda::add(residual.numbers(), output.numbers(), total.numbers())?;
            Ok(total.into())
        });
        finished.collect()
    }

    /// f(x·Gᵀ) · (x·Uᵀ) in one kernel, for few rows and matrices of one type.
    pub(super) fn multiply_gated(
        activation: Activation,
        [gate, up]: [&Self; 2],
        x: &DeviceTensor,
    ) -> Result<Option<Tensor>> {
        let rows = x.dims()[0];
        if rows > FEW_ROWS || gate.format != up.format {
            return Ok(None);
        }
        let x = x.in_type(Element::F32)?;
        let output = DeviceTensor::undefined(x.device(), Element::F32, &[rows, gate.rows])?;
        let (gate, up) = (gate.weights(), up.weights());
        cuda::multiply_rows_gated(activation, x.numbers(), rows, &gate, &up, output.numbers())?;
        Ok(Some(output.into()))
    }

    fn multiply_many(&self, x: &InputRows<'_>, output: &DeviceTensor) -> Result<()> {
        match (x.tensor.element(), self.format) {
            (Element::Bf16, WeightFormat::BF16) => {
                x.multiply(x.tensor.numbers(), self.all(), output, 0, false)
            }
            (Element::F32, WeightFormat::F32) => x.multiply(x.tensor.numbers(), self.all(), output, 0, false),
            (Element::F32, WeightFormat::BF16) => {
                let parts = x.parts()?;
                // The smallest part first, to lose little precision.
                for (index, part) in parts.iter().rev().enumerate() {
                    x.multiply(part.numbers(), self.all(), output, 0, index > 0)?;
                }
                Ok(())
            }
            (element, _) => self.multiply_unpacked(x, element, output),
        }
    }

    /// W, where it is f32 or bf16.
    fn all(&self) -> Numbers<'_> {
        let element = if self.format == WeightFormat::F32 { Element::F32 } else { Element::Bf16 };
        Numbers::new(&self.data, element, 0, self.rows * self.columns)
    }

    fn multiply_unpacked(&self, x: &InputRows<'_>, element: Element, output: &DeviceTensor) -> Result<()> {
        // Whole tiles, so that each part of the output begins at a multiple of 16 bytes.
        let fitting = UNPACKED_BYTES / (self.columns * element.bytes());
        let at_once = (fitting / 64 * 64).max(64).min(self.rows);
        // A product with a part of W gives columns of the output. All of W at once, unless it is too large.
        if at_once == self.rows {
            let unpacked = DeviceTensor::undefined(self.device(), element, &[self.rows, self.columns])?;
            cuda::dequantize(&self.weights(), 0, self.rows, unpacked.numbers())?;
            return x.multiply(x.tensor.numbers(), unpacked.numbers(), output, 0, false);
        }
        let unpacked = DeviceTensor::undefined(self.device(), element, &[at_once, self.columns])?;
        for first in (0..self.rows).step_by(at_once) {
            let count = at_once.min(self.rows - first);
            let stretch = unpacked.reshape(&[at_once * self.columns])?;
            let stretch = stretch.narrow(0, count * self.columns)?;
            cuda::dequantize(&self.weights(), first, count, stretch.numbers())?;
            x.multiply(x.tensor.numbers(), stretch.numbers(), output, first, false)?;
        }
        Ok(())
    }
}

/// One linear layer, as [`super::LinearCall`].
pub(super) struct DeviceLinearCall<'a> {
    pub(super) weight: &'a DeviceMatrix,
    pub(super) bias: Option<&'a DeviceTensor>,
    pub(super) residual: Option<&'a DeviceTensor>,
}

/// Rows that several matrices multiply.
struct InputRows<'a> {
    /// `[rows, inputs]`.
    tensor: &'a DeviceTensor,
    rows: usize,
    inputs: usize,
    parts: std::cell::OnceCell<[DeviceTensor; 3]>,
}

impl<'a> InputRows<'a> {
    fn new(tensor: &'a DeviceTensor) -> Result<Self> {
        match tensor.dims() {
            &[rows, inputs] => Ok(Self { tensor, rows, inputs, parts: std::cell::OnceCell::new() }),
            dims => Err(Error::misuse(format!("a tensor of {dims:?} is not rows"))),
        }
    }

    /// Three bf16 tensors whose sum they are.
    fn parts(&self) -> Result<&[DeviceTensor; 3]> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let part = || DeviceTensor::undefined(self.tensor.device(), Element::Bf16, self.tensor.dims());
        let parts = [part()?, part()?, part()?];
        elementwise::cuda::split(self.tensor.numbers(), parts.each_ref().map(DeviceTensor::numbers))?;
        Ok(self.parts.get_or_init(|| parts))
    }

    /// Columns of the output from `first` on = x · Wᵀ for these rows of W.
    fn multiply(
        &self,
        x: Numbers<'_>,
        weights: Numbers<'_>,
        output: &DeviceTensor,
        first: usize,
        accumulate: bool,
    ) -> Result<()> {
        let Self { rows, inputs, .. } = *self;
        let (outputs, columns) = (weights.len() / inputs.max(1), output.elements() / rows.max(1));
        if x.len() != rows * inputs || first + outputs > columns {
            return Err(Error::misuse("sizes of a product do not agree"));
        }
        let product = Gemm {
            x: x.address(),
            weights: weights.address(),
            inputs_in: x.element(),
            output: output.numbers().address() + (first * output.element().bytes()) as u64,
            output_in: output.element(),
            output_stride: columns,
            rows,
            inputs,
            outputs,
            accumulate,
        };
        // SAFETY: x is [rows, inputs], W [outputs, inputs], and the output has `columns` from `first` on in each row.
        unsafe { output.device().multiply(&product)? };
        Ok(())
    }
}
