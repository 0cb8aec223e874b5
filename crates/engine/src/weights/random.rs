//! Random weights of any size, for measuring speed: what a product costs does not depend on the values in it.
//!
//! Weights are close to N(0, 1/in) in their first two moments, as at the start of a training, so that activations stay
//! finite through any number of layers. Norm scales are 1.

use super::{Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Error, ModelConfig, Result};
use candle_core::{DType, Device, Tensor};
use half::f16;
use layerscope_kernels::matmul::{Layout, WeightFormat};
use rayon::prelude::*;
use std::fmt;

/// Blocks that one task fills; each task has a generator of its own, so the weights do not depend on the threads.
const BLOCKS_AT_ONCE: usize = 1 << 14;

/// The type of the weights of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeWeights {
    /// Q4_0 in every matrix.
    Q4_0,
    /// Q4_1 in every matrix.
    Q4_1,
    /// Q8_0 in every matrix.
    Q8_0,
    /// llama.cpp's mixture of that name: Q4_K, with Q6_K for the unembedding and half of the value and down projections.
    /// Rows that are no multiple of 256 wide become Q5_0 and Q8_0 instead.
    Q4KM,
    /// f16 in every matrix.
    F16,
    /// bf16 in every matrix.
    Bf16,
    /// f32 in every matrix.
    F32,
}

impl ShapeWeights {
    /// Every type.
    pub const ALL: [Self; 7] =
        [Self::Q4_0, Self::Q4_1, Self::Q8_0, Self::Q4KM, Self::F16, Self::Bf16, Self::F32];

    /// The type of a name, e.g. `q4_k_m`.
    ///
    /// # Errors
    /// [`Error::Input`] naming the known types.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|weights| weights.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::input(format!("unknown type of weights `{name}` (known: {known})"))
        })
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
            Self::Q4KM => "q4_k_m",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// Bits of a weight.
    pub(crate) fn bits(self) -> f64 {
        match self {
            Self::Q4_0 => 4.5,
            Self::Q4_1 => 5.0,
            Self::Q8_0 => 8.5,
            // Between Q4_K and Q6_K.
            Self::Q4KM => 5.0,
            Self::F16 | Self::Bf16 => 16.0,
            Self::F32 => 32.0,
        }
    }

    /// The block type of a matrix.
    fn format(self, weight: Weight, columns: usize, config: &ModelConfig) -> WeightFormat {
        match self {
            Self::Q4_0 => WeightFormat::Q4_0,
            Self::Q4_1 => WeightFormat::Q4_1,
            Self::Q8_0 => WeightFormat::Q8_0,
            Self::F16 => WeightFormat::F16,
            Self::Bf16 => WeightFormat::BF16,
            Self::F32 => WeightFormat::F32,
            Self::Q4KM => {
                let more_bits = match weight {
                    Weight::Unembedding => true,
                    Weight::Embedding => config.tied_embeddings,
                    Weight::Value(layer) | Weight::Down(layer) => has_more_bits(layer, config.layers),
                    _ => false,
                };
                match (more_bits, columns.is_multiple_of(256)) {
                    (true, true) => WeightFormat::Q6K,
                    (true, false) => WeightFormat::Q8_0,
                    (false, true) => WeightFormat::Q4K,
                    (false, false) => WeightFormat::Q5_0,
                }
            }
        }
    }
}

impl fmt::Display for ShapeWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// llama.cpp's `use_more_bits`: the first and the last eighth of the layers, and every third between.
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Weights of a shape, made up when asked for.
pub struct RandomWeights {
    config: ModelConfig,
    weights: ShapeWeights,
    seed: u64,
    layout: Layout,
}

impl RandomWeights {
    /// Weights for a model of these numbers; the same seed gives the same weights.
    pub fn new(config: &ModelConfig, weights: ShapeWeights, seed: u64) -> Self {
        Self { config: config.clone(), weights, seed, layout: Layout::Rows }
    }

    /// The same in the order from which a CPU multiplies them faster in eight bits.
    pub(crate) fn interleaved(self) -> Self {
        Self { layout: Layout::Interleaved, ..self }
    }
}

impl WeightSource for RandomWeights {
    fn linear(
        &self,
        weight: Weight,
        (rows, columns): (usize, usize),
        precision: WeightsPrecision,
    ) -> Result<Linear> {
        let format = self.weights.format(weight, columns, &self.config);
        let name = format!("{weight:?}");
        let seed = name.bytes().fold(self.seed, |seed, byte| Random(seed ^ u64::from(byte)).next());
        let blocks = random_blocks(format, rows * columns, (columns as f32).sqrt().recip(), seed);
        let keep = precision == WeightsPrecision::Native;
        Ok(Linear::from_blocks_in(self.layout, &blocks, format, (rows, columns), keep))
    }

    fn vector(&self, _: Weight, len: usize) -> Result<Tensor> {
        Ok(Tensor::ones(len, DType::F32, &Device::Cpu)?)
    }

    fn bias(&self, _: Weight, _: usize) -> Result<Option<Tensor>> {
        Ok(None)
    }

    fn has(&self, weight: Weight) -> bool {
        match weight {
            Weight::Unembedding => !self.config.tied_embeddings,
            Weight::Router(_) => self.config.experts.is_some(),
            _ => true,
        }
    }

    fn check_all_read(&self) -> Result<()> {
        Ok(())
    }
}

/// What is written over the random bytes of a block, so that its weights have a given standard deviation.
enum Scale {
    /// f16 numbers at these bytes of the block: this multiple of the wanted deviation.
    Halves(&'static [(usize, f32)]),
    /// The weights are floats with this many bits of mantissa below this many of exponent: sign and mantissa stay random,
    /// the exponent is fixed.
    Exponent { mantissa: u32, exponent: u32 },
}

/// The scale of a block type whose quants, and 4- or 6-bit scales beneath, are random bits.
///
/// The multiples are 1 over the standard deviation of the quants: uniform on 0 … 2^b − 1 for b bits, and times their
/// own scales in K-quants. Offsets centre them where quants are not centred by themselves.
fn scale(format: WeightFormat) -> Scale {
    const Q4: f32 = 1.0 / 4.61;
    const Q4_K: f32 = 1.0 / 258.3;
    match format {
        WeightFormat::Q4_0 => Scale::Halves(&[(0, Q4)]),
        WeightFormat::Q4_1 => Scale::Halves(&[(0, Q4), (2, -7.5 * Q4)]),
        WeightFormat::Q5_0 => Scale::Halves(&[(0, 1.0 / 9.23)]),
        WeightFormat::Q8_0 => Scale::Halves(&[(0, 1.0 / 73.9)]),
        // d, d_min, then 6-bit scales and minima: d·scale·q − d_min·minimum.
        WeightFormat::Q4K => Scale::Halves(&[(0, Q4_K), (2, 7.5 * Q4_K)]),
        // d comes last, after quants and 8-bit scales.
        WeightFormat::Q6K => Scale::Halves(&[(208, 1.0 / 1365.7)]),
        WeightFormat::F16 => Scale::Exponent { mantissa: 10, exponent: 5 },
        WeightFormat::BF16 => Scale::Exponent { mantissa: 7, exponent: 8 },
        WeightFormat::F32 => Scale::Exponent { mantissa: 23, exponent: 8 },
        other => unreachable!("no shape has {other:?} weights"),
    }
}

/// Blocks of `elements` random weights with standard deviation about `deviation`.
fn random_blocks(format: WeightFormat, elements: usize, deviation: f32, seed: u64) -> Vec<u8> {
    let (block_elements, block_bytes) = format.block();
    let scale = scale(format);
    let mut blocks = vec![0; elements / block_elements * block_bytes];
    blocks.par_chunks_mut(BLOCKS_AT_ONCE * block_bytes).enumerate().for_each(|(index, blocks)| {
        let mut random = Random(seed ^ (index as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95));
        random.fill(blocks);
        match &scale {
            Scale::Halves(places) => {
                for &(place, multiple) in *places {
                    let half = f16::from_f32(multiple * deviation).to_le_bytes();
                    for block in blocks.chunks_exact_mut(block_bytes) {
                        block[place..place + 2].copy_from_slice(&half);
                    }
                }
            }
            &Scale::Exponent { mantissa, exponent } => fix_exponent(blocks, mantissa, exponent, deviation),
        }
    });
    blocks
}

/// Makes little-endian floats of random sign and mantissa all have one exponent: magnitudes are uniform on [2^e, 2^(e+1)).
fn fix_exponent(floats: &mut [u8], mantissa: u32, exponent: u32, deviation: f32) {
    // Their standard deviation is 2^e·√(7/3).
    let e = (deviation / (7.0f32 / 3.0).sqrt()).log2().round() as i32;
    let bias = (1 << (exponent - 1)) - 1;
    let field = ((1u32 << exponent) - 1) << mantissa;
    let fixed = ((e + bias) as u32) << mantissa;
    let width = (mantissa + exponent + 1) as usize / 8;
    for float in floats.chunks_exact_mut(width) {
        let mut bytes = [0; 4];
        bytes[..width].copy_from_slice(float);
        let bits = u32::from_le_bytes(bytes) & !field | fixed;
        float.copy_from_slice(&bits.to_le_bytes()[..width]);
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014): fast, and any seed will do.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Hooks, Interrupt, Policy, Session, Shape};

    #[test]
    fn every_block_type_has_the_wanted_deviation() {
        use WeightFormat as T;
        for format in [T::Q4_0, T::Q4_1, T::Q5_0, T::Q8_0, T::Q4K, T::Q6K, T::F16, T::BF16, T::F32] {
            let (rows, columns) = (64, 1_024);
            let deviation = (columns as f32).sqrt().recip();
            let blocks = random_blocks(format, rows * columns, deviation, 5);
            let weights = Linear::from_blocks(&blocks, format, (rows, columns), false).to_tensor().unwrap();
            let weights = weights.to_vec().unwrap();
            let mean = weights.iter().sum::<f32>() / weights.len() as f32;
            let variance = weights.iter().map(|w| (w - mean).powi(2)).sum::<f32>() / weights.len() as f32;
            // Powers of two, where floats have them, are within √2.
            let ratio = variance.sqrt() / deviation;
            let bound = if !format.is_quantized() { 1.42 } else { 1.03 };
            assert!((1.0 / bound..bound).contains(&ratio), "{format:?}: {ratio}");
            assert!(mean.abs() < 0.12 * deviation, "{format:?}: {mean}");
        }
    }

    #[test]
    fn logits_are_finite_for_every_type_of_weights() {
        let shape = Shape::named("smollm2-135m").unwrap().cut_to(2).unwrap();
        for weights in ShapeWeights::ALL {
            let decoder = shape
                .decoder(weights, WeightsPrecision::Native, &crate::Device::Cpu, 3, &mut |_, _| Ok(()))
                .unwrap();
            let decoder = std::sync::Arc::new(decoder);
            let mut session = Session::new(&decoder, Policy::full(2), 5, 2).unwrap();
            let interrupt = Interrupt::new(false);
            let prefilled = session
                .prefill(&[0, 7, 49_151, 300, 5], &mut Hooks::none(), &interrupt, &mut |_| {})
                .unwrap();
            let stepped = session.step(11, &mut Hooks::none()).unwrap();
            for logits in [prefilled, stepped] {
                let logits = logits.to_vec().unwrap();
                assert!(logits.iter().all(|logit| logit.is_finite()), "{weights}");
                let spread = logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
                assert!((1e-2..1e3).contains(&spread), "{weights}: {spread}");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_weights() {
        // More blocks than one task fills.
        let blocks = |seed| random_blocks(WeightFormat::Q4_0, 32 * (BLOCKS_AT_ONCE + 3), 0.1, seed);
        assert_eq!(blocks(1), blocks(1));
        assert_ne!(blocks(1), blocks(2));
        // Each task draws its own.
        let all = blocks(1);
        let (first, second) = all.split_at(BLOCKS_AT_ONCE * 18);
        assert_ne!(first[..second.len()], *second);
    }

    #[test]
    fn q4_k_m_mixes_as_llama_cpp_does() {
        let config = |name| Shape::named(name).unwrap().config().clone();
        let (large, narrow) = (config("llama-3.1-8b"), config("smollm2-135m"));
        let format =
            |weight, columns, config: &ModelConfig| ShapeWeights::Q4KM.format(weight, columns, config);
        assert_eq!(format(Weight::Unembedding, 4_096, &large), WeightFormat::Q6K);
        assert_eq!(format(Weight::Embedding, 4_096, &large), WeightFormat::Q4K);
        let deep = (0..32).filter(|&l| format(Weight::Down(l), 14_336, &large) == WeightFormat::Q6K).count();
        assert_eq!(deep, 16);
        assert_eq!(format(Weight::Embedding, 576, &narrow), WeightFormat::Q8_0);
        assert_eq!(format(Weight::Query(0), 576, &narrow), WeightFormat::Q5_0);
        assert_eq!(format(Weight::Down(0), 1_536, &narrow), WeightFormat::Q6K);
    }

    #[test]
    fn types_of_weights_have_names() {
        for weights in ShapeWeights::ALL {
            assert_eq!(ShapeWeights::parse(weights.name()).unwrap(), weights);
        }
        assert!(ShapeWeights::parse("q3").unwrap_err().to_string().contains("q4_k_m"));
    }
}
