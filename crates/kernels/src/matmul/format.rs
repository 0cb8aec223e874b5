//! How the elements of a weight matrix are stored: floats and the block types of GGUF.
//!
//! Layouts are those of ggml (`ggml-common.h`), each described once, in `blocks`.

use super::blocks::{Block32, Block256};
use super::dot::{Floats, Kind, Of32, Of256};
use crate::lanes::{LANES, Lanes, Plain};
use half::{bf16, f16};

/// An element or block type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WeightFormat {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    IQ4NL,
    MXFP4,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Q8K,
    IQ4XS,
    IQ3XXS,
    IQ3S,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ1S,
    IQ1M,
    TQ1_0,
    TQ2_0,
}

/// What is to be done with floats, and with block types of 32 and of 256 elements; there `$Block` is the type that describes
/// the block.
macro_rules! by_block {
    ($format:expr, floats => $floats:expr, $Block:ident of 32 => $of_32:expr, of 256 => $of_256:expr) => {
        match $format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => $floats,
            WeightFormat::Q4_0 => {
                type $Block = crate::matmul::blocks::Q4_0;
                $of_32
            }
            WeightFormat::Q4_1 => {
                type $Block = crate::matmul::blocks::Q4_1;
                $of_32
            }
            WeightFormat::Q5_0 => {
                type $Block = crate::matmul::blocks::Q5_0;
                $of_32
            }
            WeightFormat::Q5_1 => {
                type $Block = crate::matmul::blocks::Q5_1;
                $of_32
            }
            WeightFormat::Q8_0 => {
                type $Block = crate::matmul::blocks::Q8_0;
                $of_32
            }
            WeightFormat::Q8_1 => {
                type $Block = crate::matmul::blocks::Q8_1;
                $of_32
            }
            WeightFormat::IQ4NL => {
                type $Block = crate::matmul::blocks::IQ4NL;
                $of_32
            }
            WeightFormat::MXFP4 => {
                type $Block = crate::matmul::blocks::MXFP4;
                $of_32
            }
            WeightFormat::Q2K => {
                type $Block = crate::matmul::blocks::Q2K;
                $of_256
            }
            WeightFormat::Q3K => {
                type $Block = crate::matmul::blocks::Q3K;
                $of_256
            }
            WeightFormat::Q4K => {
                type $Block = crate::matmul::blocks::Q4K;
                $of_256
            }
            WeightFormat::Q5K => {
                type $Block = crate::matmul::blocks::Q5K;
                $of_256
            }
            WeightFormat::Q6K => {
                type $Block = crate::matmul::blocks::Q6K;
                $of_256
            }
            WeightFormat::Q8K => {
                type $Block = crate::matmul::blocks::Q8K;
                $of_256
            }
            WeightFormat::IQ4XS => {
                type $Block = crate::matmul::blocks::IQ4XS;
                $of_256
            }
            WeightFormat::IQ3XXS => {
                type $Block = crate::matmul::blocks::IQ3XXS;
                $of_256
            }
            WeightFormat::IQ3S => {
                type $Block = crate::matmul::blocks::IQ3S;
                $of_256
            }
            WeightFormat::IQ2XXS => {
                type $Block = crate::matmul::blocks::IQ2XXS;
                $of_256
            }
            WeightFormat::IQ2XS => {
                type $Block = crate::matmul::blocks::IQ2XS;
                $of_256
            }
            WeightFormat::IQ2S => {
                type $Block = crate::matmul::blocks::IQ2S;
                $of_256
            }
            WeightFormat::IQ1S => {
                type $Block = crate::matmul::blocks::IQ1S;
                $of_256
            }
            WeightFormat::IQ1M => {
                type $Block = crate::matmul::blocks::IQ1M;
                $of_256
            }
            WeightFormat::TQ1_0 => {
                type $Block = crate::matmul::blocks::TQ1_0;
                $of_256
            }
            WeightFormat::TQ2_0 => {
                type $Block = crate::matmul::blocks::TQ2_0;
                $of_256
            }
        }
    };
}
pub(super) use by_block;

/// What is to be done with block types whose quants fit bytes, `$Block` being the type that describes 256 elements, and with others.
macro_rules! by_byte_block {
    ($format:expr, $Block:ident => $of_bytes:expr, others => $others:expr) => {{
        use crate::matmul::blocks;
        match $format {
            WeightFormat::Q4_0 => {
                type $Block = blocks::Q4_0;
                $of_bytes
            }
            WeightFormat::Q4_1 => {
                type $Block = blocks::Q4_1;
                $of_bytes
            }
            WeightFormat::Q5_0 => {
                type $Block = blocks::Q5_0;
                $of_bytes
            }
            WeightFormat::Q5_1 => {
                type $Block = blocks::Q5_1;
                $of_bytes
            }
            WeightFormat::Q8_0 => {
                type $Block = blocks::Q8_0;
                $of_bytes
            }
            WeightFormat::IQ4NL => {
                type $Block = blocks::IQ4NL;
                $of_bytes
            }
            WeightFormat::MXFP4 => {
                type $Block = blocks::MXFP4;
                $of_bytes
            }
            WeightFormat::Q2K => {
                type $Block = blocks::Q2K;
                $of_bytes
            }
            WeightFormat::Q3K => {
                type $Block = blocks::Q3K;
                $of_bytes
            }
            WeightFormat::Q4K => {
                type $Block = blocks::Q4K;
                $of_bytes
            }
            WeightFormat::Q5K => {
                type $Block = blocks::Q5K;
                $of_bytes
            }
            WeightFormat::Q6K => {
                type $Block = blocks::Q6K;
                $of_bytes
            }
            WeightFormat::IQ4XS => {
                type $Block = blocks::IQ4XS;
                $of_bytes
            }
            _ => $others,
        }
    }};
}
pub(super) use by_byte_block;

impl WeightFormat {
    /// All formats.
    pub const ALL: [Self; 27] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q8_1,
        Self::IQ4NL,
        Self::MXFP4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
        Self::IQ4XS,
        Self::IQ3XXS,
        Self::IQ3S,
        Self::IQ2XXS,
        Self::IQ2XS,
        Self::IQ2S,
        Self::IQ1S,
        Self::IQ1M,
        Self::TQ1_0,
        Self::TQ2_0,
    ];

    /// Elements of a block, and its bytes.
    #[inline(always)]
    pub const fn block(self) -> (usize, usize) {
        by_block!(
            self,
            floats => (1, if matches!(self, Self::F32) { 4 } else { 2 }),
            B of 32 => (32, <B as Block32>::BYTES),
            of 256 => (256, <B as Block256>::BYTES)
        )
    }

    /// Bytes of `columns` elements, which must be whole blocks.
    #[inline(always)]
    pub const fn bytes(self, columns: usize) -> usize {
        let (elements, bytes) = self.block();
        columns / elements * bytes
    }

    /// Whether quants fit bytes, so that rows are multiplied in whole numbers where activations may be rounded.
    pub(super) const fn has_bytes(self) -> bool {
        by_byte_block!(self, B => <B as blocks::ByteBlock>::COLUMNS > 0, others => false)
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
        assert_eq!(output.len() * self.block().1, blocks.len() * self.block().0, "blocks and elements");
        by_block!(
            self,
            floats => Floats::dequantize(Plain, self, blocks, output),
            B of 32 => Of32::<B>::dequantize(Plain, self, blocks, output),
            of 256 => Of256::<B>::dequantize(Plain, self, blocks, output)
        );
    }

    /// Floats to f32.
    #[inline(always)]
    pub(super) fn widen<L: Lanes>(self, l: L, bytes: &[u8], output: &mut [f32]) {
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
