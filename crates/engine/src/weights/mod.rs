//! Weights: where they come from (GGUF or safetensors, memory-mapped, or random) and how they multiply.

mod bytes;
mod gguf;
mod linear;
mod random;
mod safetensors;

pub use gguf::GgufFile;
pub use linear::{Embedding, Linear};
pub use random::{RandomWeights, ShapeWeights};
pub use safetensors::SafetensorsFiles;

use crate::Result;
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// In which precision weights are kept and multiplied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsPrecision {
    /// As the file has them; several rows at once may be multiplied in bf16.
    #[default]
    Native,
    /// Dequantised at load, computed in f32: the mode for figures that are compared with others.
    F32,
}

impl WeightsPrecision {
    /// Its name on the command line and in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::F32 => "f32",
        }
    }

    /// The precision of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Native, Self::F32].into_iter().find(|precision| precision.name() == name)
    }
}

/// A weight of the Llama family, by what it does; each file format has its own name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Token embedding, `[V, d]`.
    Embedding,
    /// Final norm, `[d]`.
    FinalNorm,
    /// Unembedding, `[V, d]`.
    Unembedding,
    /// Norm before attention of a layer, `[d]`.
    AttentionNorm(usize),
    /// Query projection, `[H·head_dim, d]`.
    Query(usize),
    /// Key projection, `[kv_heads·head_dim, d]`.
    Key(usize),
    /// Value projection, `[kv_heads·head_dim, d]`.
    Value(usize),
    /// Attention output projection, `[d, H·head_dim]`.
    AttentionOutput(usize),
    /// Norm before the MLP, `[d]`.
    MlpNorm(usize),
    /// Gate projection, `[feed_forward, d]`.
    Gate(usize),
    /// Up projection, `[feed_forward, d]`.
    Up(usize),
    /// Down projection, `[d, feed_forward]`.
    Down(usize),
}

impl Weight {
    /// Its name in GGUF files.
    pub fn gguf_name(self) -> String {
        match self {
            Self::Embedding => "token_embd.weight".to_owned(),
            Self::FinalNorm => "output_norm.weight".to_owned(),
            Self::Unembedding => "output.weight".to_owned(),
            Self::AttentionNorm(l) => format!("blk.{l}.attn_norm.weight"),
            Self::Query(l) => format!("blk.{l}.attn_q.weight"),
            Self::Key(l) => format!("blk.{l}.attn_k.weight"),
            Self::Value(l) => format!("blk.{l}.attn_v.weight"),
            Self::AttentionOutput(l) => format!("blk.{l}.attn_output.weight"),
            Self::MlpNorm(l) => format!("blk.{l}.ffn_norm.weight"),
            Self::Gate(l) => format!("blk.{l}.ffn_gate.weight"),
            Self::Up(l) => format!("blk.{l}.ffn_up.weight"),
            Self::Down(l) => format!("blk.{l}.ffn_down.weight"),
        }
    }

    /// Its name in Hugging Face checkpoints.
    pub fn hugging_face_name(self) -> String {
        match self {
            Self::Embedding => "model.embed_tokens.weight".to_owned(),
            Self::FinalNorm => "model.norm.weight".to_owned(),
            Self::Unembedding => "lm_head.weight".to_owned(),
            Self::AttentionNorm(l) => format!("model.layers.{l}.input_layernorm.weight"),
            Self::Query(l) => format!("model.layers.{l}.self_attn.q_proj.weight"),
            Self::Key(l) => format!("model.layers.{l}.self_attn.k_proj.weight"),
            Self::Value(l) => format!("model.layers.{l}.self_attn.v_proj.weight"),
            Self::AttentionOutput(l) => format!("model.layers.{l}.self_attn.o_proj.weight"),
            Self::MlpNorm(l) => format!("model.layers.{l}.post_attention_layernorm.weight"),
            Self::Gate(l) => format!("model.layers.{l}.mlp.gate_proj.weight"),
            Self::Up(l) => format!("model.layers.{l}.mlp.up_proj.weight"),
            Self::Down(l) => format!("model.layers.{l}.mlp.down_proj.weight"),
        }
    }
}

/// A file or set of files that weights are read from.
///
/// Query and key rows come out in rotate-half order (element i is paired with i + head_dim/2), whatever the file has.
pub trait WeightSource {
    /// A matrix `[rows, columns]` that multiplies.
    ///
    /// # Errors
    /// [`crate::Error::Input`] naming the file where the weight is missing, of another shape or cut short.
    fn linear(&self, weight: Weight, shape: (usize, usize), precision: WeightsPrecision) -> Result<Linear>;

    /// A vector of `len` elements in f32.
    ///
    /// # Errors
    /// As [`WeightSource::linear`].
    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor>;

    /// Whether the file has the weight.
    fn has(&self, weight: Weight) -> bool;
}
