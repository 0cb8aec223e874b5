//! The types of tensors that GGUF numbers (`ggml_type` of `ggml.h`).

use layerscope_kernels::matmul::WeightFormat;

/// A type that the format defines.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorType {
    pub(super) name: &'static str,
    elements: Elements,
}

/// What is in a tensor.
#[derive(Debug, Clone, Copy)]
enum Elements {
    /// A format that the kernels multiply.
    Weights(WeightFormat),
    /// Numbers of that many bytes, which are no weights.
    Numbers(usize),
}

use Elements::{Numbers, Weights};

/// Every type by its number.
const TYPES: [(u32, &str, Elements); 32] = [
    (0, "F32", Weights(WeightFormat::F32)),
    (1, "F16", Weights(WeightFormat::F16)),
    (2, "Q4_0", Weights(WeightFormat::Q4_0)),
    (3, "Q4_1", Weights(WeightFormat::Q4_1)),
    (6, "Q5_0", Weights(WeightFormat::Q5_0)),
    (7, "Q5_1", Weights(WeightFormat::Q5_1)),
    (8, "Q8_0", Weights(WeightFormat::Q8_0)),
    (9, "Q8_1", Weights(WeightFormat::Q8_1)),
    (10, "Q2_K", Weights(WeightFormat::Q2K)),
    (11, "Q3_K", Weights(WeightFormat::Q3K)),
    (12, "Q4_K", Weights(WeightFormat::Q4K)),
    (13, "Q5_K", Weights(WeightFormat::Q5K)),
    (14, "Q6_K", Weights(WeightFormat::Q6K)),
    (15, "Q8_K", Weights(WeightFormat::Q8K)),
    (16, "IQ2_XXS", Weights(WeightFormat::IQ2XXS)),
    (17, "IQ2_XS", Weights(WeightFormat::IQ2XS)),
    (18, "IQ3_XXS", Weights(WeightFormat::IQ3XXS)),
    (19, "IQ1_S", Weights(WeightFormat::IQ1S)),
    (20, "IQ4_NL", Weights(WeightFormat::IQ4NL)),
    (21, "IQ3_S", Weights(WeightFormat::IQ3S)),
    (22, "IQ2_S", Weights(WeightFormat::IQ2S)),
    (23, "IQ4_XS", Weights(WeightFormat::IQ4XS)),
    (24, "I8", Numbers(1)),
    (25, "I16", Numbers(2)),
    (26, "I32", Numbers(4)),
    (27, "I64", Numbers(8)),
    (28, "F64", Numbers(8)),
    (29, "IQ1_M", Weights(WeightFormat::IQ1M)),
    (30, "BF16", Weights(WeightFormat::BF16)),
    (34, "TQ1_0", Weights(WeightFormat::TQ1_0)),
    (35, "TQ2_0", Weights(WeightFormat::TQ2_0)),
    (39, "MXFP4", Weights(WeightFormat::MXFP4)),
];

/// Types that were removed from the format, and newer ones that are not supported.
const NOT_READ: [(u32, &str); 10] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl TensorType {
    /// The type of a number, or why it is not supported.
    pub(super) fn of_number(number: u32) -> Result<Self, String> {
        if let Some(&(_, name, elements)) = TYPES.iter().find(|known| known.0 == number) {
            return Ok(Self { name, elements });
        }
        Err(match NOT_READ.iter().find(|known| known.0 == number) {
            Some((_, name)) => format!("type {name} (number {number})"),
            None => format!("a type of number {number}"),
        })
    }

    /// The kernels' format; `None` for types that are no weights.
    pub(super) fn format(self) -> Option<WeightFormat> {
        match self.elements {
            Weights(format) => Some(format),
            Numbers(_) => None,
        }
    }

    /// Elements of a block, and its bytes.
    pub(super) fn block(self) -> (usize, usize) {
        match self.elements {
            Weights(format) => format.block(),
            Numbers(bytes) => (1, bytes),
        }
    }
}
