//! float8 weights (e4m3) and the scales that checkpoints keep beside them.

use super::file::{FileTensor, TensorBytes};
use super::linear::dequantized;
use super::safetensors::SafetensorsFiles;
use crate::{Error, Result};
use half::bf16;
use layerscope_kernels::matmul::WeightFormat;
use safetensors::Dtype;

/// Weights of one scale, in blocks of so many rows and columns.
struct Scales {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    across: usize,
}

impl SafetensorsFiles {
    /// float8 weights times their scales: as f32 where `wide`, else as bf16, in which e4m3 numbers are exact.
    ///
    /// Scales are one for the tensor or one for each row (`NAME.weight_scale`), or one for each square block
    /// (`NAME.weight_scale_inv`).
    pub(super) fn float8(
        &self,
        name: &str,
        bytes: &[u8],
        shape: Vec<usize>,
        wide: bool,
    ) -> Result<FileTensor> {
        let problem = |what: &str| Error::malformed(self.folder(), format_args!("tensor `{name}` {what}"));
        let (rows, columns) = match *shape.as_slice() {
            [columns] => (1, columns),
            [rows, columns] => (rows, columns),
            _ => return Err(problem("is float8 of more than two dimensions, which is not supported")),
        };
        if rows.checked_mul(columns) != Some(bytes.len()) || bytes.is_empty() {
            return Err(problem("is cut short; fetch the file again"));
        }
        let scales = self.scales(name, rows, columns)?;
        let values = bytes.iter().enumerate().map(|(at, &byte)| {
            let (row, column) = (at / columns, at % columns);
            e4m3(byte) * scales.values[row / scales.rows * scales.across + column / scales.columns]
        });
        let (bytes, format) = match wide {
            true => (values.flat_map(f32::to_le_bytes).collect(), WeightFormat::F32),
            false => (values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(), WeightFormat::BF16),
        };
        Ok(FileTensor { bytes: TensorBytes::Owned(bytes), format, shape })
    }

    fn scales(&self, name: &str, rows: usize, columns: usize) -> Result<Scales> {
        let stored = ["_scale", "_scale_inv"].map(|end| format!("{name}{end}"));
        let Some((name, stored)) =
            stored.into_iter().find_map(|name| Some((name.clone(), self.stored(&name)?)))
        else {
            return Ok(Scales { values: vec![1.0], rows, columns, across: 1 });
        };
        let problem = |what: &str| Error::malformed(self.folder(), format_args!("tensor `{name}` {what}"));
        let format = match stored.dtype {
            Dtype::F32 => WeightFormat::F32,
            Dtype::BF16 => WeightFormat::BF16,
            Dtype::F16 => WeightFormat::F16,
            _ => return Err(problem("is not of type F32, F16 or BF16")),
        };
        let (down, across) = match stored.shape.as_slice() {
            [] | [1] | [1, 1] => (1, 1),
            &[down] | &[down, 1] if down == rows => (down, 1),
            // Blocks are square, and the last of a row or column may be cut.
            &[down, across] if down > 0 && across > 0 => (down, across),
            _ => return Err(problem("has a shape that no known way of scaling has")),
        };
        let (block_rows, block_columns) = match (down, across) {
            (1, 1) => (rows, columns),
            (down, 1) if down == rows => (1, columns),
            _ => (BLOCK, BLOCK),
        };
        let bytes = (*stored.file).as_ref().get(stored.range.clone());
        let whole = bytes.filter(|bytes| bytes.len() == format.bytes(down * across));
        match whole {
            Some(bytes) if rows.div_ceil(block_rows) == down && columns.div_ceil(block_columns) == across => {
                let values = dequantized(bytes, format, down * across);
                Ok(Scales { values, rows: block_rows, columns: block_columns, across })
            }
            _ => Err(problem(
                "does not fit its weights (known: one scale, one a row, one a block of 128 × 128)",
            )),
        }
    }
}

/// Rows and columns of a block that has a scale of its own.
const BLOCK: usize = 128;

/// A float8 number of four bits of exponent and three of mantissa (Micikevicius et al. 2022): no infinities, and NaN where
/// all bits below the sign are set.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xF), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_format() {
        for (byte, value) in
            [(0x00, 0.0), (0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0x7E, 448.0)]
        {
            assert_eq!((e4m3(byte), e4m3(byte | 0x80)), (value, -value));
        }
        assert!(e4m3(0x7F).is_nan());
        // All of them are bf16 numbers.
        assert!((0..0x7F).all(|byte| bf16::from_f32(e4m3(byte)).to_f32() == e4m3(byte)));
    }
}
