//! Weights: their sources (GGUF or safetensors files, mapped or in huge pages, or random numbers) and their products.

mod bytes;
mod file;
mod float8;
mod gguf;
mod huge_pages;
mod linear;
mod mapped;
mod on_device;
mod place;
mod random;
mod safetensors;

pub(crate) use bytes::FileBytes;
pub(crate) use gguf::Strings;
pub use gguf::{Array as GgufArray, GgufFile, Value as GgufValue};
pub use linear::{Embedding, Linear};
pub(crate) use linear::{LinearCall, LinearMode};
pub use mapped::{FileState, explain_bus_errors};
pub(crate) use place::Place;
pub use random::{RandomWeights, ShapeWeights};
pub use safetensors::SafetensorsFiles;
pub(crate) use safetensors::without_wrapper;

use crate::Result;
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// The precision in which weights are kept and multiplied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsPrecision {
    /// As the file has them; several rows at once may be multiplied in bf16.
    #[default]
    Native,
    /// Dequantised to f32 at load and multiplied in f32: for figures that are compared with other programs.
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

/// A weight by its role; families and file formats have their own names for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Token embedding, `[V, d]`.
    Embedding,
    /// Learned vector of each position, `[context, d]`.
    PositionEmbedding,
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
    /// Norm of queries, `[head_dim]` or `[H·head_dim]`.
    QueryNorm(usize),
    /// Norm of keys, `[head_dim]` or `[kv_heads·head_dim]`.
    KeyNorm(usize),
    /// Attention output projection, `[d, H·head_dim]`.
    AttentionOutput(usize),
    /// Norm after attention, `[d]`.
    AttentionPostNorm(usize),
    /// Norm before the MLP, `[d]`.
    MlpNorm(usize),
    /// Gate projection, `[feed_forward, d]`.
    Gate(usize),
    /// Up projection, `[feed_forward, d]`.
    Up(usize),
    /// Down projection, `[d, feed_forward]`.
    Down(usize),
    /// Norm after the MLP, `[d]`.
    MlpPostNorm(usize),
    /// Scores of experts, `[experts, d]`.
    Router(usize),
    /// Gate projection of an expert of a layer.
    ExpertGate(usize, usize),
    /// Up projection of an expert of a layer.
    ExpertUp(usize, usize),
    /// Down projection of an expert of a layer.
    ExpertDown(usize, usize),
}

impl Weight {
    /// Whether it is the weight of a norm.
    pub(crate) fn is_norm(self) -> bool {
        use Weight as W;
        matches!(
            self,
            W::FinalNorm
                | W::AttentionNorm(_)
                | W::QueryNorm(_)
                | W::KeyNorm(_)
                | W::AttentionPostNorm(_)
                | W::MlpNorm(_)
                | W::MlpPostNorm(_)
        )
    }
}

/// What weights are read from.
///
/// Query and key rows are in rotate-half order (element i is paired with i + head_dim/2), whatever their order in the file.
pub trait WeightSource {
    /// A matrix `[rows, columns]`.
    ///
    /// # Errors
    /// [`crate::Error::MalformedFile`] where the weight is missing, of another shape or cut short.
    fn linear(&self, weight: Weight, shape: (usize, usize), precision: WeightsPrecision) -> Result<Linear>;

    /// A vector of `len` elements in f32.
    ///
    /// # Errors
    /// As [`WeightSource::linear`].
    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor>;

    /// The bias that goes with a matrix or norm, of `len` elements in f32, where there is one.
    ///
    /// # Errors
    /// As [`WeightSource::linear`], but it may be missing.
    fn bias(&self, weight: Weight, len: usize) -> Result<Option<Tensor>>;

    /// Whether the file has the weight.
    fn has(&self, weight: Weight) -> bool;

    /// Checks that every tensor was read: an unread one is a part of the model that would not run.
    ///
    /// # Errors
    /// [`crate::Error::MalformedFile`] naming a tensor that was not read.
    fn check_all_read(&self) -> Result<()>;

    /// The files that must stay as they are, since weights are read where they are in them.
    fn mapped_files(&self) -> Vec<FileState> {
        vec![]
    }
}
