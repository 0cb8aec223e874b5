//! Weights in device memory, in the formats of files: dequantised, or multiplied by few rows directly.

mod row;

pub use row::{FEW_ROWS, RowProduct, multiply_rows, multiply_rows_gated};

use super::WeightFormat;
use crate::cuda::{Buffer, Device, DeviceError, Element, Numbers};

/// A weight matrix in device memory, `[rows, columns]`, row-major in blocks along the columns.
#[derive(Clone, Copy)]
pub struct DeviceWeights<'a> {
    /// Where its bytes are.
    pub data: &'a Buffer,
    /// Bytes before the matrix; it begins at a multiple of [`alignment`] of its format.
    pub offset: usize,
    /// What the bytes are.
    pub format: WeightFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs; whole blocks.
    pub columns: usize,
}

/// What the address of a matrix must be a multiple of: the largest power of two up to 16 that the length of a block is, so
/// that every block begins at a multiple of it.
pub const fn alignment(format: WeightFormat) -> usize {
    let bytes = format.block().1;
    let power = 1 << bytes.trailing_zeros();
    if power < 16 { power } else { 16 }
}

impl DeviceWeights<'_> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.format.bytes(self.columns)
    }

    fn address(&self) -> u64 {
        self.data.address() + self.offset as u64
    }

    fn check(&self) {
        assert!(self.columns > 0 && self.columns.is_multiple_of(self.format.block().0), "whole blocks");
        assert!(
            self.offset + self.rows * self.row_bytes() <= self.data.bytes(),
            "weights within their buffer"
        );
        assert!(self.address().is_multiple_of(alignment(self.format) as u64), "alignment of the weights");
        assert!(self.rows.max(self.columns) < 1 << 31, "a matrix of less than 2³¹ rows and columns");
    }
}

/// The kernel of a format: `$prefix`, then its name.
macro_rules! kernel {
    ($prefix:literal, $format:expr) => {
        match $format {
            WeightFormat::F32 => concat!($prefix, "f32"),
            WeightFormat::F16 => concat!($prefix, "f16"),
            WeightFormat::BF16 => concat!($prefix, "bf16"),
            WeightFormat::Q4_0 => concat!($prefix, "q4_0"),
            WeightFormat::Q4_1 => concat!($prefix, "q4_1"),
            WeightFormat::Q5_0 => concat!($prefix, "q5_0"),
            WeightFormat::Q5_1 => concat!($prefix, "q5_1"),
            WeightFormat::Q8_0 => concat!($prefix, "q8_0"),
            WeightFormat::Q8_1 => concat!($prefix, "q8_1"),
            WeightFormat::IQ4NL => concat!($prefix, "iq4_nl"),
            WeightFormat::MXFP4 => concat!($prefix, "mxfp4"),
            WeightFormat::Q2K => concat!($prefix, "q2_k"),
            WeightFormat::Q3K => concat!($prefix, "q3_k"),
            WeightFormat::Q4K => concat!($prefix, "q4_k"),
            WeightFormat::Q5K => concat!($prefix, "q5_k"),
            WeightFormat::Q6K => concat!($prefix, "q6_k"),
            WeightFormat::Q8K => concat!($prefix, "q8_k"),
            WeightFormat::IQ4XS => concat!($prefix, "iq4_xs"),
            WeightFormat::IQ3XXS => concat!($prefix, "iq3_xxs"),
            WeightFormat::IQ3S => concat!($prefix, "iq3_s"),
            WeightFormat::IQ2XXS => concat!($prefix, "iq2_xxs"),
            WeightFormat::IQ2XS => concat!($prefix, "iq2_xs"),
            WeightFormat::IQ2S => concat!($prefix, "iq2_s"),
            WeightFormat::IQ1S => concat!($prefix, "iq1_s"),
            WeightFormat::IQ1M => concat!($prefix, "iq1_m"),
            WeightFormat::TQ1_0 => concat!($prefix, "tq1_0"),
            WeightFormat::TQ2_0 => concat!($prefix, "tq2_0"),
        }
    };
}
use kernel;

/// How the kernels divide rows of a format (`chunk.cuh`).
#[derive(Clone, Copy)]
struct Chunk {
    /// Columns of a chunk.
    columns: usize,
    /// Bytes of it.
    bytes: usize,
    /// Bytes that it takes in shared memory.
    stride: usize,
}

impl Chunk {
    fn of(format: WeightFormat) -> Self {
        let (elements, bytes) = format.block();
        let columns = if elements == 1 { 64 * 16 / bytes } else { 1024 };
        let bytes = columns / elements * bytes;
        let pieces = if alignment(format) == 16 { bytes / 16 } else { (bytes + 30) / 16 };
        Self { columns, bytes, stride: 16 * pieces }
    }
}

/// Columns of x or of W in f32 in shared memory, with gaps against bank conflicts.
fn with_gaps(columns: usize) -> usize {
    columns + columns / 32 * 4
}

/// Mirrors `DequantizeParameters` of `dequantize.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DequantizeParameters {
    data: u64,
    ids: u64,
    output: u64,
    row_bytes: u64,
    first: u64,
    count: u32,
    columns: u32,
    to_bf16: u32,
}

/// Rows `first` … `first + count − 1` of W into `output`, f32 or bf16 `[count, columns]`, at a multiple of 16 bytes.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn dequantize(
    weights: &DeviceWeights<'_>,
    first: usize,
    count: usize,
    output: Numbers<'_>,
) -> Result<(), DeviceError> {
    assert!(first + count <= weights.rows, "rows {first} … of {}: {count}", weights.rows);
    unpack(weights, Wanted::From(first), count, output)
}

/// Rows of W whose numbers are in `ids`, u32 `[count]`, into `output`, f32 or bf16 `[count, columns]`, at a multiple of 16
/// bytes. There must be such rows.
///
/// # Errors
/// As [`dequantize`].
///
/// # Panics
/// As [`dequantize`].
pub fn dequantize_rows(
    weights: &DeviceWeights<'_>,
    ids: &Buffer,
    count: usize,
    output: Numbers<'_>,
) -> Result<(), DeviceError> {
    assert!(count * size_of::<u32>() <= ids.bytes(), "numbers of rows");
    unpack(weights, Wanted::Ids(ids), count, output)
}

enum Wanted<'a> {
    From(usize),
    Ids(&'a Buffer),
}

fn unpack(
    weights: &DeviceWeights<'_>,
    wanted: Wanted<'_>,
    count: usize,
    output: Numbers<'_>,
) -> Result<(), DeviceError> {
    /// Warps of a block.
    const WARPS: usize = 8;
    weights.check();
    assert!(count < 1 << 31, "{count} rows are too many");
    assert_eq!(output.len(), count * weights.columns, "output");
    assert!(output.address().is_multiple_of(16), "output at a multiple of 16 bytes");
    if output.is_empty() {
        return Ok(());
    }
    let (first, ids) = match wanted {
        Wanted::From(first) => (first as u64, 0),
        Wanted::Ids(ids) => (0, ids.address()),
    };
    let parameters = DequantizeParameters {
        data: weights.address(),
        ids,
        output: output.address(),
        row_bytes: weights.row_bytes() as u64,
        first,
        count: count as u32,
        columns: weights.columns as u32,
        to_bf16: u32::from(output.element() == Element::Bf16),
    };
    let (blocks, shared_bytes) = if weights.format.is_quantized() {
        let chunk = Chunk::of(weights.format);
        let chunks = count * weights.columns.div_ceil(chunk.columns);
        assert!(chunks < 1 << 31, "{chunks} chunks are too many");
        (chunks.div_ceil(WARPS), WARPS * (chunk.stride + size_of::<f32>() * with_gaps(chunk.columns)))
    } else {
        (count, 0)
    };
    let kernel = kernel!("dequantize_", weights.format);
    let device: &Device = output.device();
    // SAFETY: the matrix is within its buffer, and the output is as long as the rows that are wanted; those whose numbers
    // are in device memory exist by the contract.
    unsafe { device.launch(kernel, [blocks, 1, 1], 32 * WARPS, shared_bytes, &parameters) }
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
