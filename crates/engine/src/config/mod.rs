//! The config of a decoder, read from GGUF metadata or from `config.json`.

mod fields;
mod read;
mod rope;

pub(crate) use fields::{Fields, Key};
pub(crate) use read::{activation, rope, windows};

pub use fields::RopeFactors;
pub use layerscope_kernels::Activation;
pub use rope::{RopeConfig, RopeScaling};

use crate::family::Family;
use crate::weights::GgufValue;
use crate::{Error, Result};
use fields::FieldSource;
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;

/// Architecture numbers of a decoder-only model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Architecture as the file names it, e.g. `llama`.
    pub architecture: String,
    /// Family that runs it: the one of the architecture, or the one that the user named.
    pub family: &'static str,
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
    /// Inner width of the MLP; of one expert where all layers have experts.
    pub feed_forward: usize,
    /// Size of the vocabulary V.
    pub vocab: usize,
    /// Longest sequence the model was made for, tokens.
    pub context: usize,
    /// Which norm.
    pub norm: NormKind,
    /// ε of the norm.
    pub norm_epsilon: f64,
    /// Where a block has its norms.
    pub norm_placement: NormPlacement,
    /// Norm of queries and keys before rotary embedding.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Whether attention and MLP of a block read the same residual stream, rather than one after the other.
    pub parallel_residual: bool,
    /// Rotary position embedding of each layer; `None` where a layer has none. Length L.
    pub rope: Vec<Option<RopeConfig>>,
    /// Whether a learned vector for each position is added to the embedding.
    pub learned_positions: bool,
    /// Sliding window of each layer, tokens; `None` where a layer sees everything. Length L.
    pub windows: Vec<Option<usize>>,
    /// Scores are q·k times this.
    pub attention_scale: f64,
    /// Scores s become c·tanh(s/c).
    pub attention_soft_cap: Option<f64>,
    /// Logits z become c·tanh(z/c).
    pub logit_soft_cap: Option<f64>,
    /// Factor of the embedding.
    pub embedding_scale: f64,
    /// Factor of the outputs of attention and MLP before they are added to the residual stream.
    pub residual_scale: f64,
    /// Factor of the logits, before their soft cap.
    pub logit_scale: f64,
    /// Activation function of the MLP.
    pub activation: Activation,
    /// Whether the MLP is gated: down(f(gate(x)) · up(x)) rather than down(f(up(x))).
    pub gated: bool,
    /// Experts, in place of the MLP, in the layers that have a router.
    pub experts: Option<Experts>,
    /// Whether unembedding and embedding share their weights.
    pub tied_embeddings: bool,
}

/// Which norm a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMSNorm (Zhang & Sennrich 2019): x / √(mean(x²) + ε) · scale.
    Rms,
    /// LayerNorm (Ba et al. 2016): (x − mean) / √(variance + ε) · scale + bias.
    Layer,
}

/// Where a block has its norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlacement {
    /// Before attention and before the MLP.
    Before,
    /// After attention and after the MLP, before their outputs are added (OLMo 2).
    After,
    /// Both (Gemma 2 and 3).
    BeforeAndAfter,
}

/// What queries and keys are normalised over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNorm {
    /// Each head by itself (Qwen 3, Gemma 3).
    EachHead,
    /// All heads together (OLMo 2, OLMoE).
    AllHeads,
}

/// A mixture of experts (Shazeer et al. 2017): each token passes through a few of many MLPs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts that each token passes through.
    pub used: usize,
    /// Inner width of an expert.
    pub feed_forward: usize,
    /// Whether the weights of the chosen experts are made to sum to 1.
    pub normalized: bool,
}

impl ModelConfig {
    /// Weights that a row is multiplied with in a layer's attention and in its MLP; of experts those that a token chooses.
    pub fn row_weights(&self) -> [u64; 2] {
        let product = |factors: &[usize]| {
            factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor as u64))
        };
        let matrices = if self.gated { 3 } else { 2 };
        let mlp = match &self.experts {
            Some(experts) => product(&[matrices, self.hidden, experts.feed_forward, experts.used]),
            None => product(&[matrices, self.hidden, self.feed_forward]),
        };
        [product(&[2, self.hidden, self.heads.saturating_add(self.kv_heads), self.head_dim]), mlp]
    }

    /// From the metadata of a GGUF file. `vocab` is the number of rows of the embedding; `assumed` replaces the architecture that
    /// the file names.
    ///
    /// # Errors
    /// [`Error::MalformedFile`] naming the missing, impossible or unsupported value; [`Error::UnsupportedFamily`].
    pub fn from_gguf(
        metadata: &HashMap<String, GgufValue>,
        vocab: usize,
        tied_embeddings: bool,
        rope_factors: &RopeFactors,
        assumed: Option<&str>,
        source: &Path,
    ) -> Result<Self> {
        const ARCHITECTURE: &str = "general.architecture";
        let architecture = match metadata.get(ARCHITECTURE) {
            Some(GgufValue::String(architecture)) => architecture.as_str(),
            Some(_) => {
                return Err(Error::malformed(
                    source,
                    format_args!("metadata `{ARCHITECTURE}` is not a text"),
                ));
            }
            None => {
                return Err(Error::malformed(source, format_args!("metadata `{ARCHITECTURE}` is missing")));
            }
        };
        let fields =
            Fields { path: source, source: FieldSource::Gguf { metadata, architecture, rope_factors } };
        let mut config = Self::read(&fields, architecture, assumed)?;
        config.vocab = vocab;
        config.tied_embeddings = tied_embeddings;
        config.checked(source)
    }

    /// From the text of a Hugging Face `config.json`; `assumed` as in [`Self::from_gguf`].
    ///
    /// # Errors
    /// [`Error::MalformedFile`] naming the missing, impossible or unsupported value; [`Error::UnsupportedFamily`].
    pub fn from_json(text: &str, assumed: Option<&str>, source: &Path) -> Result<Self> {
        let json: Json = serde_json::from_str(text)
            .map_err(|e| Error::malformed(source, format_args!("not valid JSON ({e})")))?;
        // Multimodal models have the decoder's config in `text_config`.
        let json = json.get("text_config").filter(|inner| inner.get("model_type").is_some()).unwrap_or(&json);
        let fields = Fields { path: source, source: FieldSource::Json(json) };
        let Some(architecture) = fields.optional_text(Key("model_type", ""))? else {
            return Err(Error::malformed(source, "`model_type` is missing"));
        };
        check_quantization(&fields)?;
        let mut config = Self::read(&fields, architecture, assumed)?;
        config.vocab = fields.count(Key("vocab_size", ""))?;
        if let Some(tied) = fields.optional_boolean(Key("tie_word_embeddings", ""))? {
            config.tied_embeddings = tied;
        }
        config.checked(source)
    }

    fn read(fields: &Fields<'_>, architecture: &str, assumed: Option<&str>) -> Result<Self> {
        let family = Family::of(fields, architecture, assumed)?;
        let mut config = read::llama_like(fields, architecture, family.name)?;
        (family.configure)(fields, &mut config)?;
        Ok(config)
    }

    /// Rows of the query projection: H·head_dim.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection: kv_heads·head_dim.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Inner width of the feed-forward network that a token passes through: of the experts it uses, or of the MLP.
    pub fn active_feed_forward(&self) -> usize {
        self.experts.as_ref().map_or(self.feed_forward, |experts| experts.used * experts.feed_forward)
    }

    /// Checks that a prompt of `prompt_len` tokens and `decode_len` decode tokens fit the context; the last prompt token is a decode
    /// token.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::ContextExceeded`].
    pub fn check_sequence(&self, prompt_len: usize, decode_len: usize) -> Result<()> {
        if prompt_len == 0 {
            return Err(Error::EmptyPrompt("the prompt is empty; give at least one token"));
        }
        if (prompt_len - 1).saturating_add(decode_len) > self.context {
            let (prompt, decode, context) = (prompt_len, decode_len, self.context);
            return Err(Error::ContextExceeded { prompt, decode, context });
        }
        Ok(())
    }

    /// Rejects sizes that no model has, so that nothing later overflows or divides by zero.
    fn checked(self, source: &Path) -> Result<Self> {
        let refuse =
            |what: String| Err(Error::malformed(source, format_args!("{what}; the file may be damaged")));
        let (experts, used, expert_width) =
            self.experts.as_ref().map_or((1, 1, 1), |e| (e.count, e.used, e.feed_forward));
        let within = [
            ("hidden size", self.hidden, 1 << 20),
            ("number of heads", self.heads, 1 << 12),
            ("number of key/value heads", self.kv_heads, 1 << 12),
            ("head size", self.head_dim, 1 << 14),
            ("feed-forward size", self.feed_forward, 1 << 22),
            ("vocabulary", self.vocab, 1 << 24),
            ("context length", self.context, 1 << 30),
            ("number of experts", experts, 1 << 12),
            ("number of experts used", used, experts),
            ("feed-forward size of an expert", expert_width, 1 << 22),
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
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            return refuse(format!("norm epsilon {} is not between 0 and 1", self.norm_epsilon));
        }
        let caps = [self.attention_soft_cap, self.logit_soft_cap];
        if let Some(cap) = caps.into_iter().flatten().find(|cap| *cap <= 0.0) {
            return refuse(format!("soft cap {cap} is not above 0"));
        }
        match self.rope.iter().flatten().find_map(|rope| rope.problem(self.head_dim)) {
            Some(problem) => refuse(problem),
            None => Ok(self),
        }
    }
}

const MOST_LAYERS: usize = 4096;

/// Rejects checkpoints whose quantisation is not supported.
fn check_quantization(fields: &Fields<'_>) -> Result<()> {
    const METHOD: Key = Key("quant_method", "");
    let Some(quantization) = fields.object(Key("quantization_config", "")) else { return Ok(()) };
    match quantization.optional_text(METHOD)? {
        None | Some("fp8" | "fbgemm_fp8" | "compressed-tensors") => Ok(()),
        Some(other) => Err(quantization.error(
            METHOD,
            &format!(
                "is `{other}`, which is not supported (known: fp8); take the model unquantised or as GGUF"
            ),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const LLAMA_3_1: &str = r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,
        "max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000.0,
        "rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
        "original_max_position_embeddings":8192}}"#;

    fn read(text: &str, assumed: Option<&str>) -> Result<ModelConfig> {
        ModelConfig::from_json(text, assumed, Path::new("config.json"))
    }

    #[test]
    fn llama_3_1_is_read() {
        let config = read(LLAMA_3_1, None).unwrap();
        assert_eq!((config.layers, config.kv_heads, config.head_dim), (32, 8, 128));
        let rope = config.rope[31].as_ref().unwrap();
        assert_eq!((rope.base, rope.dims), (500_000.0, 128));
        assert!(matches!(rope.scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
    }

    #[test]
    fn impossible_numbers_are_refused_in_one_sentence() {
        for (from, to, names) in [
            ("\"num_key_value_heads\":8", "\"num_key_value_heads\":5", "share"),
            ("\"num_hidden_layers\":32", "\"num_hidden_layers\":0", "num_hidden_layers"),
            ("\"num_hidden_layers\":32", "\"num_hidden_layers\":4000000000", "num_hidden_layers"),
            ("\"num_attention_heads\":32,", "", "num_attention_heads"),
            ("\"rms_norm_eps\":1e-5", "\"rms_norm_eps\":-1", "epsilon"),
            ("\"llama3\"", "\"dynamic\"", "dynamic"),
            ("4096", "99999999999999999999", "hidden_size"),
            ("\"rope_theta\":500000.0", "\"rope_theta\":\"x\"", "rope_theta"),
            ("\"rope_theta\"", "\"hidden_act\":\"xielu\",\"rope_theta\"", "xielu"),
            ("\"rope_theta\"", "\"quantization_config\":{\"quant_method\":\"gptq\"},\"rope_theta\"", "gptq"),
            ("\"rope_theta\"", "\"layer_types\":[\"linear_attention\"],\"rope_theta\"", "layer_types"),
        ] {
            let text = LLAMA_3_1.replace(from, to);
            let error = read(&text, None).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(names) && message.contains("config.json"), "{message}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn soft_caps_of_gemma_2_are_there_unless_a_config_switches_them_off() {
        let gemma = LLAMA_3_1.replace("\"llama\"", "\"gemma2\"");
        assert_eq!(read(&gemma, None).unwrap().attention_soft_cap, Some(50.0));
        let off = gemma.replace("\"rope_theta\"", "\"attn_logit_softcapping\":null,\"rope_theta\"");
        let off = read(&off, None).unwrap();
        assert_eq!((off.attention_soft_cap, off.logit_soft_cap), (None, Some(30.0)));
    }

    /// Fields of all families, with plausible and impossible values.
    fn field() -> impl Strategy<Value = (&'static str, Json)> {
        let names = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "max_position_embeddings",
            "rms_norm_eps",
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "partial_rotary_factor",
            "sliding_window",
            "layer_types",
            "sliding_window_pattern",
            "use_sliding_window",
            "max_window_layers",
            "no_rope_layers",
            "no_rope_layer_interval",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
            "logits_scaling",
            "attention_multiplier",
            "residual_multiplier",
            "hidden_act",
            "rope_local_base_freq",
            "original_max_position_embeddings",
            "use_parallel_residual",
            "text_config",
        ];
        let scaling = |kind: &str| {
            json!({ "rope_type": kind, "factor": 4.0, "low_freq_factor": 1, "high_freq_factor": 4,
                "original_max_position_embeddings": 64, "short_factor": [1.0, 2.0], "long_factor": [] })
        };
        let values = vec![
            json!(null),
            json!(0),
            json!(1),
            json!(3),
            json!(64),
            json!(-1),
            json!(u64::MAX),
            json!(1e300),
            json!(0.25),
            json!(true),
            json!("silu"),
            json!("x"),
            json!([]),
            json!([1, 0, 1]),
            json!(["sliding_attention"]),
            json!({}),
            scaling("yarn"),
            scaling("llama3"),
            scaling("longrope"),
            scaling("linear"),
            scaling("su"),
            json!({ "full_attention": scaling("yarn"), "sliding_attention": { "rope_theta": 5 } }),
        ];
        (prop::sample::select(names.to_vec()), prop::sample::select(values))
    }

    proptest! {
        #[test]
        fn any_config_is_read_or_refused(
            family in prop::sample::select(vec![
                "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi3", "smollm3",
                "olmo2", "olmoe", "granite", "gpt_neox", "gpt2", "starcoder2", "newcomer",
            ]),
            fields in prop::collection::vec(field(), 0..6),
        ) {
            let mut config: Json = serde_json::from_str(LLAMA_3_1).unwrap();
            config["model_type"] = family.into();
            for (name, value) in fields {
                config[name] = value;
            }
            match read(&config.to_string(), None) {
                Ok(config) => {
                    prop_assert_eq!((config.windows.len(), config.rope.len()), (config.layers, config.layers));
                    for rope in config.rope.iter().flatten() {
                        prop_assert_eq!(rope.frequencies(config.context).len(), rope.dims / 2);
                    }
                }
                Err(error) => prop_assert_eq!(error.exit_code(), 2),
            }
        }
    }

    #[test]
    fn an_unknown_architecture_says_what_would_be_assumed_and_how_to_say_so() {
        let unknown = LLAMA_3_1.replace("\"model_type\":\"llama\"", "\"model_type\":\"newcomer\"");
        let message = read(&unknown, None).unwrap_err().to_string();
        for part in ["`newcomer`", "RMSNorm", "rotary", "--architecture llama"] {
            assert!(message.contains(part), "{message}");
        }
        let config = read(&unknown, Some("llama")).unwrap();
        assert_eq!((config.architecture.as_str(), config.layers), ("newcomer", 32));
        // Without the sizes of a decoder there is no hint.
        let message = read(r#"{"model_type":"mamba","hidden_size":8}"#, None).unwrap_err().to_string();
        assert!(message.contains("`mamba`") && !message.contains("--architecture"), "{message}");
        let message = read(LLAMA_3_1, Some("lama")).unwrap_err().to_string();
        assert!(message.contains("`lama`") && message.contains("llama"), "{message}");
    }
}
