//! The types of tensors that GGUF numbers (`ggml_type` of `ggml.h`).

use layerscope_kernels::matmul::Format;

/// A type that the format defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorType {
    pub(super) name: &'static str,
    /// What the kernels multiply; `None` for what holds no weights.
    pub(super) format: Option<Format>,
}

/// Every type by its number.
const TYPES: [(u32, &str, Option<Format>); 32] = [
    (0, "F32", Some(Format::F32)),
    (1, "F16", Some(Format::F16)),
    (2, "Q4_0", Some(Format::Q4_0)),
    (3, "Q4_1", Some(Format::Q4_1)),
    (6, "Q5_0", Some(Format::Q5_0)),
    (7, "Q5_1", Some(Format::Q5_1)),
    (8, "Q8_0", Some(Format::Q8_0)),
    (9, "Q8_1", Some(Format::Q8_1)),
    (10, "Q2_K", Some(Format::Q2K)),
    (11, "Q3_K", Some(Format::Q3K)),
    (12, "Q4_K", Some(Format::Q4K)),
    (13, "Q5_K", Some(Format::Q5K)),
    (14, "Q6_K", Some(Format::Q6K)),
    (15, "Q8_K", Some(Format::Q8K)),
    (16, "IQ2_XXS", Some(Format::IQ2XXS)),
    (17, "IQ2_XS", Some(Format::IQ2XS)),
    (18, "IQ3_XXS", Some(Format::IQ3XXS)),
    (19, "IQ1_S", Some(Format::IQ1S)),
    (20, "IQ4_NL", Some(Format::IQ4NL)),
    (21, "IQ3_S", Some(Format::IQ3S)),
    (22, "IQ2_S", Some(Format::IQ2S)),
    (23, "IQ4_XS", Some(Format::IQ4XS)),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", Some(Format::IQ1M)),
    (30, "BF16", Some(Format::BF16)),
    (34, "TQ1_0", Some(Format::TQ1_0)),
    (35, "TQ2_0", Some(Format::TQ2_0)),
    (39, "MXFP4", Some(Format::MXFP4)),
];

/// Types that were taken out of the format again, and newer ones that are not read here.
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
    /// The type of a number, or what is said of it.
    pub(super) fn of_number(number: u32) -> Result<Self, String> {
        if let Some(&(_, name, format)) = TYPES.iter().find(|known| known.0 == number) {
            return Ok(Self { name, format });
        }
        Err(match NOT_READ.iter().find(|known| known.0 == number) {
            Some((_, name)) => format!("type {name} (number {number})"),
            None => format!("a type of number {number}"),
        })
    }
}
