//! Shapes of well-known models, to be filled with random weights: for measuring speed and memory without the files.

use crate::config::{Activation, ModelConfig, NormKind, NormPlacement, RopeConfig, RopeScaling};
use crate::weights::{RandomWeights, ShapeWeights, WeightsPrecision};
use crate::{Decoder, Device, Error, KvPrecision, MemoryNeed, Result};
use std::fmt;

/// The architecture numbers of a published model, all of its layers or the first few.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    name: &'static str,
    /// Layers of the published model.
    published_layers: usize,
    config: ModelConfig,
}

/// What tells the models of the Llama family apart, as their `config.json` has it.
struct PublishedShape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed_forward: usize,
    vocab: usize,
    context: usize,
    rope_base: f64,
    /// Factor of Llama 3.1's stretching of rotary frequencies, from a context of 8,192.
    llama3_factor: Option<f64>,
    tied_embeddings: bool,
}

const LLAMA_3_2_1B: PublishedShape = PublishedShape {
    name: "llama-3.2-1b",
    layers: 16,
    hidden: 2_048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    feed_forward: 8_192,
    vocab: 128_256,
    context: 131_072,
    rope_base: 500_000.0,
    llama3_factor: Some(32.0),
    tied_embeddings: true,
};

const SMOLLM2_135M: PublishedShape = PublishedShape {
    name: "smollm2-135m",
    layers: 30,
    hidden: 576,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    feed_forward: 1_536,
    vocab: 49_152,
    context: 8_192,
    rope_base: 100_000.0,
    llama3_factor: None,
    tied_embeddings: true,
};

const KNOWN: [PublishedShape; 7] = [
    PublishedShape {
        name: "llama-3.1-8b",
        layers: 32,
        hidden: 4_096,
        head_dim: 128,
        feed_forward: 14_336,
        llama3_factor: Some(8.0),
        tied_embeddings: false,
        ..LLAMA_3_2_1B
    },
    LLAMA_3_2_1B,
    PublishedShape {
        name: "llama-3.2-3b",
        layers: 28,
        hidden: 3_072,
        heads: 24,
        head_dim: 128,
        ..LLAMA_3_2_1B
    },
    SMOLLM2_135M,
    PublishedShape {
        name: "smollm2-360m",
        layers: 32,
        hidden: 960,
        heads: 15,
        kv_heads: 5,
        feed_forward: 2_560,
        ..SMOLLM2_135M
    },
    PublishedShape {
        name: "smollm2-1.7b",
        layers: 24,
        hidden: 2_048,
        heads: 32,
        kv_heads: 32,
        feed_forward: 8_192,
        rope_base: 130_000.0,
        ..SMOLLM2_135M
    },
    PublishedShape {
        name: "tinyllama-1.1b",
        layers: 22,
        hidden: 2_048,
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        feed_forward: 5_632,
        vocab: 32_000,
        context: 2_048,
        rope_base: 10_000.0,
        llama3_factor: None,
        tied_embeddings: false,
    },
];

impl Shape {
    /// The names of all shapes.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|numbers| numbers.name)
    }

    /// The shape of a name, e.g. `llama-3.1-8b`.
    ///
    /// # Errors
    /// [`Error::Input`] naming the known shapes.
    pub fn named(name: &str) -> Result<Self> {
        let numbers = KNOWN.iter().find(|numbers| numbers.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::names().collect();
            Error::input(format!("unknown shape `{name}` (known: {})", known.join(", ")))
        })?;
        Ok(Self { name: numbers.name, published_layers: numbers.layers, config: numbers.config() })
    }

    /// The first `layers` layers of it, so that a large model's shape fits a small machine.
    ///
    /// # Errors
    /// [`Error::Input`] on 0 or more layers than the shape has.
    pub fn cut_to(mut self, layers: usize) -> Result<Self> {
        if layers == 0 || layers > self.config.layers {
            return Err(Error::input(format!(
                "the shape {} has {} layers; choose from 1 to {} of them, not {layers}",
                self.name, self.config.layers, self.config.layers
            )));
        }
        self.config.layers = layers;
        self.config.windows.truncate(layers);
        self.config.rope.truncate(layers);
        Ok(self)
    }

    /// Architecture numbers.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Memory that random weights take on a device.
    pub fn memory_need(
        &self,
        weights: ShapeWeights,
        precision: WeightsPrecision,
        device: &Device,
    ) -> MemoryNeed {
        let bits = match precision {
            WeightsPrecision::Native => weights.bits(),
            WeightsPrecision::F32 => 32.0,
        };
        let bytes = (self.parameters() as f64 * bits / 8.0) as u64;
        MemoryNeed::of_weights(&self.config, KvPrecision::with(precision, device), bytes, device)
    }

    /// Number of weights.
    fn parameters(&self) -> u64 {
        let config = &self.config;
        let attention = 2 * config.hidden * (config.query_width() + config.kv_width());
        let layer = attention + 3 * config.hidden * config.feed_forward + 2 * config.hidden;
        let embeddings = if config.tied_embeddings { 1 } else { 2 } * config.vocab * config.hidden;
        (config.layers * layer + embeddings + config.hidden) as u64
    }

    /// A decoder of this shape with random weights on a device, the same for the same seed; `progress` is as in [`Decoder::load`].
    ///
    /// # Errors
    /// Whatever `progress` breaks off with.
    pub fn decoder(
        &self,
        weights: ShapeWeights,
        precision: WeightsPrecision,
        device: &Device,
        seed: u64,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Decoder> {
        let source = RandomWeights::new(&self.config, weights, seed);
        let source = if matches!(device, Device::Cpu) { source.interleaved() } else { source };
        Decoder::load(self.config.clone(), &source, precision, device, progress)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if self.config.layers < self.published_layers {
            write!(f, " cut to {} of {} layers", self.config.layers, self.published_layers)?;
        }
        Ok(())
    }
}

impl PublishedShape {
    fn config(&self) -> ModelConfig {
        let scaling = match self.llama3_factor {
            None => RopeScaling::None,
            Some(factor) => RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 8_192.0,
            },
        };
        let rope = RopeConfig { base: self.rope_base, dims: self.head_dim, scaling };
        ModelConfig {
            architecture: "llama".to_owned(),
            family: "llama",
            layers: self.layers,
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            feed_forward: self.feed_forward,
            vocab: self.vocab,
            context: self.context,
            norm: NormKind::Rms,
            norm_epsilon: 1e-5,
            norm_placement: NormPlacement::Before,
            query_key_norm: None,
            parallel_residual: false,
            rope: vec![Some(rope); self.layers],
            learned_positions: false,
            windows: vec![None; self.layers],
            attention_scale: 1.0 / (self.head_dim as f64).sqrt(),
            attention_soft_cap: None,
            logit_soft_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            activation: Activation::Silu,
            gated: true,
            experts: None,
            tied_embeddings: self.tied_embeddings,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_as_many_parameters_as_their_models() {
        let published = [
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.2-3b", 3_212_749_824),
            ("smollm2-135m", 134_515_008),
            ("smollm2-360m", 361_821_120),
            ("smollm2-1.7b", 1_711_376_384),
            ("tinyllama-1.1b", 1_100_048_384),
        ];
        assert!(Shape::names().eq(published.iter().map(|(name, _)| *name)));
        for (name, count) in published {
            assert_eq!(Shape::named(name).unwrap().parameters(), count, "{name}");
        }
    }

    #[test]
    fn a_shape_is_cut_and_says_so() {
        let shape = Shape::named("llama-3.1-8b").unwrap();
        assert_eq!(shape.to_string(), "llama-3.1-8b");
        let cut = shape.cut_to(4).unwrap();
        assert_eq!((cut.config().layers, cut.config().windows.len()), (4, 4));
        assert_eq!(cut.to_string(), "llama-3.1-8b cut to 4 of 32 layers");
        for wrong in [0, 5] {
            assert_eq!(cut.clone().cut_to(wrong).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn an_unknown_shape_names_the_known_ones() {
        let error = Shape::named("llama-9").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("tinyllama-1.1b"), "{error}");
    }
}
