//! How the elements of a weight matrix are stored: floats and the block types of GGUF.
//!
//! Layouts are those of ggml (`ggml-common.h`), each described once, in `blocks`.

use super::blocks::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, dequantize_32, dequantize_256};
use crate::lanes::{LANES, Lanes, Plain};
use half::{bf16, f16};

/// An element or block type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements of a block, and its bytes.
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of `columns` elements, which must be whole blocks.
    pub const fn bytes(self, columns: usize) -> usize {
        let (elements, bytes) = self.block();
        columns / elements * bytes
    }

    /// Whether elements are packed into blocks with common scales.
    pub const fn is_quantized(self) -> bool {
        self.block().0 > 1
    }

    /// Turns whole blocks into f32.
    ///
    /// # Panics
    /// If `output` is not as long as `blocks` say.
    pub fn dequantize(self, blocks: &[u8], output: &mut [f32]) {
        self.dequantize_with(Plain, blocks, output);
    }

    #[inline(always)]
    pub(super) fn dequantize_with<L: Lanes>(self, lanes: L, blocks: &[u8], output: &mut [f32]) {
        assert_eq!(output.len() * self.block().1, blocks.len() * self.block().0, "blocks and elements");
        match self {
            Self::F32 | Self::F16 | Self::BF16 => self.widen(lanes, blocks, output),
            Self::Q4_0 => dequantize_32::<L, Q4_0>(lanes, blocks, output),
            Self::Q4_1 => dequantize_32::<L, Q4_1>(lanes, blocks, output),
            Self::Q5_0 => dequantize_32::<L, Q5_0>(lanes, blocks, output),
            Self::Q5_1 => dequantize_32::<L, Q5_1>(lanes, blocks, output),
            Self::Q8_0 => dequantize_32::<L, Q8_0>(lanes, blocks, output),
            Self::Q2K => dequantize_256::<L, Q2K>(lanes, blocks, output),
            Self::Q3K => dequantize_256::<L, Q3K>(lanes, blocks, output),
            Self::Q4K => dequantize_256::<L, Q4K>(lanes, blocks, output),
            Self::Q5K => dequantize_256::<L, Q5K>(lanes, blocks, output),
            Self::Q6K => dequantize_256::<L, Q6K>(lanes, blocks, output),
        }
    }

    /// Floats to f32.
    #[inline(always)]
    fn widen<L: Lanes>(self, l: L, bytes: &[u8], output: &mut [f32]) {
        let (groups, rest) = output.as_chunks_mut::<LANES>();
        let rest_bytes = &bytes[self.bytes(groups.len() * LANES)..];
        match self {
            Self::F32 => {
                for (y, bytes) in groups.iter_mut().zip(bytes.as_chunks().0) {
                    l.store(l.load_bytes(bytes), y);
                }
            }
            Self::F16 => {
                for (y, bytes) in groups.iter_mut().zip(bytes.as_chunks().0) {
                    l.store(l.widen_f16(bytes), y);
                }
            }
            _ => {
                for (y, bytes) in groups.iter_mut().zip(bytes.as_chunks().0) {
                    l.store(l.widen_bf16(bytes), y);
                }
            }
        }
        for (y, bytes) in rest.iter_mut().zip(rest_bytes.chunks(self.block().1)) {
            *y = self.float(bytes);
        }
    }

    /// The float of these bytes; 0 for formats that are no floats.
    pub(super) fn float(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            _ => 0.0,
        }
    }
}
