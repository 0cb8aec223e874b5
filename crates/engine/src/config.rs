//! The blueprint of a decoder: architecture numbers, read from GGUF metadata or from `config.json`.

use crate::{Error, Result};
use candle_core::quantized::gguf_file::Value;
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;

/// Architectures that the decoder runs, as GGUF and `config.json` name them.
pub const SUPPORTED_ARCHITECTURES: [&str; 1] = ["llama"];

/// Architecture numbers of a decoder-only model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Family, e.g. `llama`.
    pub architecture: String,
    /// Number of blocks L.
    pub layers: usize,
    /// Width of the residual stream d.
    pub hidden: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Inner width of the MLP.
    pub feed_forward: usize,
    /// Size of the vocabulary V.
    pub vocab: usize,
    /// Longest sequence the model was made for, tokens.
    pub context: usize,
    /// ε of RMSNorm.
    pub norm_epsilon: f64,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Sliding window of each layer, tokens; `None` where a layer sees everything. Length L.
    pub windows: Vec<Option<usize>>,
    /// Whether unembedding and embedding share their weights.
    pub tied_embeddings: bool,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeConfig {
    /// Base θ of the frequencies θ^(−2i/head_dim).
    pub base: f64,
    /// How frequencies are stretched for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f64),
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above original_context / low_freq_factor are divided.
        low_freq_factor: f64,
        /// Wavelengths below original_context / high_freq_factor are kept.
        high_freq_factor: f64,
        /// Context length before stretching.
        original_context: f64,
    },
    /// Each frequency divided by a factor of its own, as GGUF files carry them; length head_dim / 2.
    Factors(Vec<f32>),
}

impl RopeConfig {
    /// Angular frequency of each pair of elements, radians per position; length `head_dim / 2`.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let plain = (0..head_dim / 2).map(|i| self.base.powf(-2.0 * i as f64 / head_dim as f64));
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear(factor) => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => {
                plain.zip(factors).map(|(f, &factor)| f / f64::from(factor)).collect()
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => plain
                .map(|f| {
                    let wavelength = std::f64::consts::TAU / f;
                    if wavelength < original_context / high_freq_factor {
                        f
                    } else if wavelength > original_context / low_freq_factor {
                        f / factor
                    } else {
                        let kept = (original_context / wavelength - low_freq_factor)
                            / (high_freq_factor - low_freq_factor);
                        (1.0 - kept) * f / factor + kept * f
                    }
                })
                .collect(),
        }
    }
}

impl ModelConfig {
    /// From the metadata of a GGUF file; `vocab` is the number of rows of the embedding and `rope_factors` the content of
    /// `rope_freqs.weight`, where the file has it.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file and the missing, impossible or unsupported value.
    pub fn from_gguf(
        metadata: &HashMap<String, Value>,
        vocab: usize,
        tied_embeddings: bool,
        rope_factors: Option<Vec<f32>>,
        source: &Path,
    ) -> Result<Self> {
        let fields = GgufFields { metadata, source };
        let architecture = fields.text("general.architecture")?;
        check_architecture(&architecture, source)?;
        let key = |name: &str| format!("{architecture}.{name}");
        let heads = fields.count(&key("attention.head_count"))?;
        let hidden = fields.count(&key("embedding_length"))?;
        let layers = fields.count(&key("block_count"))?;
        let head_dim = match fields.optional_count(&key("attention.key_length"))? {
            Some(length) => length,
            None => hidden / heads,
        };
        if let Some(rotated) = fields.optional_count(&key("rope.dimension_count"))?
            && rotated != head_dim
        {
            return Err(Error::input(format!(
                "{}: rotary embedding over {rotated} of {head_dim} elements is not supported",
                source.display()
            )));
        }
        let scaling = match (rope_factors, metadata.get(&key("rope.scaling.type"))) {
            (Some(factors), _) => RopeScaling::Factors(factors),
            (None, None) => RopeScaling::None,
            (None, Some(_)) => match fields.text(&key("rope.scaling.type"))?.as_str() {
                "none" => RopeScaling::None,
                "linear" => RopeScaling::Linear(fields.number(&key("rope.scaling.factor"))?),
                other => {
                    return Err(Error::input(format!(
                        "{}: RoPE scaling `{other}` is not supported (known: none, linear, and per-frequency factors)",
                        source.display()
                    )));
                }
            },
        };
        let config = Self {
            layers,
            hidden,
            heads,
            kv_heads: fields.optional_count(&key("attention.head_count_kv"))?.unwrap_or(heads),
            head_dim,
            feed_forward: fields.count(&key("feed_forward_length"))?,
            vocab,
            context: fields.count(&key("context_length"))?,
            norm_epsilon: fields.number(&key("attention.layer_norm_rms_epsilon"))?,
            rope: RopeConfig {
                base: fields.optional_number(&key("rope.freq_base"))?.unwrap_or(10_000.0),
                scaling,
            },
            windows: vec![None; layers.min(MOST_LAYERS)],
            tied_embeddings,
            architecture,
        };
        config.checked(source)
    }

    /// From the text of a Hugging Face `config.json`.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file and the missing, impossible or unsupported value.
    pub fn from_json(text: &str, source: &Path) -> Result<Self> {
        let json: Json = serde_json::from_str(text)
            .map_err(|e| Error::input(format!("{}: not valid JSON ({e})", source.display())))?;
        let fields = JsonFields { json: &json, source };
        let architecture = match json.get("model_type").and_then(Json::as_str) {
            Some(name) => name.to_owned(),
            None => {
                return Err(Error::input(format!("{}: `model_type` is missing", source.display())));
            }
        };
        check_architecture(&architecture, source)?;
        fields.refuse("attention_bias")?;
        fields.refuse("mlp_bias")?;
        if let Some(activation) = json.get("hidden_act").and_then(Json::as_str)
            && activation != "silu"
        {
            return Err(Error::input(format!(
                "{}: activation `{activation}` is not supported for {architecture} (known: silu)",
                source.display()
            )));
        }
        let heads = fields.count("num_attention_heads")?;
        let hidden = fields.count("hidden_size")?;
        let layers = fields.count("num_hidden_layers")?;
        let config = Self {
            layers,
            hidden,
            heads,
            kv_heads: fields.optional_count("num_key_value_heads")?.unwrap_or(heads),
            head_dim: fields.optional_count("head_dim")?.unwrap_or(hidden / heads),
            feed_forward: fields.count("intermediate_size")?,
            vocab: fields.count("vocab_size")?,
            context: fields.count("max_position_embeddings")?,
            norm_epsilon: fields.number("rms_norm_eps")?,
            rope: fields.rope()?,
            windows: vec![None; layers.min(MOST_LAYERS)],
            tied_embeddings: json.get("tie_word_embeddings").and_then(Json::as_bool).unwrap_or(false),
            architecture,
        };
        config.checked(source)
    }

    /// Refuses numbers that no model has, so that later sizes neither overflow nor divide by zero.
    fn checked(self, source: &Path) -> Result<Self> {
        let refuse = |what: String| {
            Err(Error::input(format!("{}: {what}; the file may be damaged", source.display())))
        };
        let within = [
            ("number of layers", self.layers, MOST_LAYERS),
            ("hidden size", self.hidden, 1 << 20),
            ("number of heads", self.heads, 1 << 12),
            ("number of key/value heads", self.kv_heads, 1 << 12),
            ("head size", self.head_dim, 1 << 14),
            ("feed-forward size", self.feed_forward, 1 << 22),
            ("vocabulary", self.vocab, 1 << 24),
            ("context length", self.context, 1 << 30),
        ];
        for (name, value, most) in within {
            if value == 0 || value > most {
                return refuse(format!("{name} {value} is not between 1 and {most}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(format!(
                "{} heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return refuse(format!("head size {} is odd", self.head_dim));
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            return refuse(format!("norm epsilon {} is not between 0 and 1", self.norm_epsilon));
        }
        let frequencies = self.rope.frequencies(self.head_dim);
        if frequencies.len() != self.head_dim / 2 || !frequencies.iter().all(|f| f.is_finite()) {
            return refuse("rotary frequencies do not fit the head size".to_owned());
        }
        Ok(self)
    }
}

const MOST_LAYERS: usize = 4096;

fn check_architecture(architecture: &str, source: &Path) -> Result<()> {
    if SUPPORTED_ARCHITECTURES.contains(&architecture) {
        return Ok(());
    }
    Err(Error::input(format!(
        "{}: architecture `{architecture}` is not supported (known: {})",
        source.display(),
        SUPPORTED_ARCHITECTURES.join(", ")
    )))
}

struct GgufFields<'a> {
    metadata: &'a HashMap<String, Value>,
    source: &'a Path,
}

impl GgufFields<'_> {
    fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::input(format!("{}: metadata `{key}` is not {expected}", self.source.display()))
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::input(format!("{}: metadata `{key}` is missing", self.source.display())))
    }

    fn text(&self, key: &str) -> Result<String> {
        match self.metadata.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.wrong(key, "a text")),
            None => self.required(key, None),
        }
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        let wrong = || self.wrong(key, "a count above 0");
        match self.metadata.get(key) {
            None => Ok(None),
            Some(value) => {
                let count = match value {
                    Value::I32(v) => u64::try_from(*v).map_err(|_| wrong())?,
                    Value::I64(v) => u64::try_from(*v).map_err(|_| wrong())?,
                    value => value.to_u64().map_err(|_| wrong())?,
                };
                match usize::try_from(count) {
                    Ok(count) if count > 0 => Ok(Some(count)),
                    _ => Err(wrong()),
                }
            }
        }
    }

    fn count(&self, key: &str) -> Result<usize> {
        let count = self.optional_count(key)?;
        self.required(key, count)
    }

    fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(f64::from(*v))),
            Some(Value::F64(v)) => Ok(Some(*v)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    fn number(&self, key: &str) -> Result<f64> {
        let number = self.optional_number(key)?;
        self.required(key, number)
    }
}

struct JsonFields<'a> {
    json: &'a Json,
    source: &'a Path,
}

impl JsonFields<'_> {
    fn error(&self, key: &str, what: &str) -> Error {
        Error::input(format!("{}: `{key}` {what}", self.source.display()))
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        match self.json.get(key) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => match value.as_u64().and_then(|v| usize::try_from(v).ok()) {
                Some(count) if count > 0 => Ok(Some(count)),
                _ => Err(self.error(key, "is not a count above 0")),
            },
        }
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.optional_count(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<f64> {
        self.json.get(key).and_then(Json::as_f64).ok_or_else(|| self.error(key, "is missing or not a number"))
    }

    fn refuse(&self, key: &str) -> Result<()> {
        match self.json.get(key).and_then(Json::as_bool) {
            Some(true) => Err(self.error(key, "is true, which is not supported")),
            _ => Ok(()),
        }
    }

    /// `rope_theta` and `rope_scaling`, or both within `rope_parameters` as newer files write them.
    fn rope(&self) -> Result<RopeConfig> {
        let nested = self.json.get("rope_parameters").filter(|v| v.is_object());
        let scaling = nested.or_else(|| self.json.get("rope_scaling").filter(|v| v.is_object()));
        let base = nested
            .and_then(|v| v.get("rope_theta"))
            .or_else(|| self.json.get("rope_theta"))
            .map_or(Ok(10_000.0), |v| {
                v.as_f64().ok_or_else(|| self.error("rope_theta", "is not a number"))
            })?;
        let scaling = match scaling {
            None => RopeScaling::None,
            Some(scaling) => {
                let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Json::as_str);
                let inner = JsonFields { json: scaling, source: self.source };
                match kind.unwrap_or("default") {
                    "default" => RopeScaling::None,
                    "linear" => RopeScaling::Linear(inner.number("factor")?),
                    "llama3" => RopeScaling::Llama3 {
                        factor: inner.number("factor")?,
                        low_freq_factor: inner.number("low_freq_factor")?,
                        high_freq_factor: inner.number("high_freq_factor")?,
                        original_context: inner.number("original_max_position_embeddings")?,
                    },
                    other => {
                        return Err(self.error(
                            "rope_scaling",
                            &format!("is of type `{other}`, which is not supported (known: default, linear, llama3)"),
                        ));
                    }
                }
            }
        };
        Ok(RopeConfig { base, scaling })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LLAMA_3_1: &str = r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,
        "max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0,
        "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
        "original_max_position_embeddings":8192}}"#;

    #[test]
    fn llama_3_1_is_read_and_its_frequencies_are_stretched() {
        let config = ModelConfig::from_json(LLAMA_3_1, Path::new("config.json")).unwrap();
        assert_eq!((config.layers, config.kv_heads, config.head_dim), (32, 8, 128));
        let scaled = config.rope.frequencies(128);
        let plain = RopeConfig { scaling: RopeScaling::None, ..config.rope }.frequencies(128);
        // The fastest frequencies are kept, the slowest divided by 8, those between lie between.
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 8.0).abs() < 1e-15);
        let ratios: Vec<f64> = scaled.iter().zip(&plain).map(|(s, p)| p / s).collect();
        assert!(ratios.windows(2).all(|w| w[0] <= w[1] + 1e-12));
        assert!(ratios.iter().any(|&r| r > 1.5 && r < 7.5));
    }

    #[test]
    fn impossible_numbers_are_refused_in_one_sentence() {
        for (from, to, names) in [
            ("\"num_key_value_heads\":8", "\"num_key_value_heads\":5", "share"),
            ("\"num_hidden_layers\":32", "\"num_hidden_layers\":0", "num_hidden_layers"),
            ("\"num_attention_heads\":32,", "", "num_attention_heads"),
            ("\"model_type\":\"llama\"", "\"model_type\":\"mamba\"", "mamba"),
            ("\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":-1", "epsilon"),
            ("\"llama3\"", "\"yarn\"", "yarn"),
            ("4096", "99999999999999999999", "hidden_size"),
        ] {
            let text = LLAMA_3_1.replace(from, to);
            let error = ModelConfig::from_json(&text, Path::new("config.json")).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(names) && message.contains("config.json"), "{message}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
