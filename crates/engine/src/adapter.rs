//! Low-rank adapters (LoRA, Hu et al. 2022): y = W·x + s·B·A·x for some of a model's matrices.

mod gguf;
mod info;
mod merge;
mod peft;

pub use info::{AdapterInfo, AdapterTraining, HeldOutFigures};

use crate::weights::Weight;
use crate::{Error, ModelConfig, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The matrices of a layer that an adapter can add to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Attention output projection.
    AttentionOutput,
    /// Gate projection of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Down projection of the MLP.
    Down,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::AttentionOutput, Self::Gate, Self::Up, Self::Down];

    /// Its name on the command line, as Llama's checkpoints have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::AttentionOutput => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    pub(crate) fn weight(self, layer: usize) -> Weight {
        match self {
            Self::Query => Weight::Query(layer),
            Self::Key => Weight::Key(layer),
            Self::Value => Weight::Value(layer),
            Self::AttentionOutput => Weight::AttentionOutput(layer),
            Self::Gate => Weight::Gate(layer),
            Self::Up => Weight::Up(layer),
            Self::Down => Weight::Down(layer),
        }
    }

    /// Rows and columns of the matrix; `None` where a model has none, or has experts in its place.
    pub fn shape(self, config: &ModelConfig) -> Option<[usize; 2]> {
        let (d, q, kv, f) = (config.hidden, config.query_width(), config.kv_width(), config.feed_forward);
        let has_mlp = config.experts.is_none();
        match self {
            Self::Query => Some([q, d]),
            Self::Key | Self::Value => Some([kv, d]),
            Self::AttentionOutput => Some([d, q]),
            Self::Gate => Some([f, d]).filter(|_| has_mlp && config.gated),
            Self::Up => Some([f, d]).filter(|_| has_mlp),
            Self::Down => Some([d, f]).filter(|_| has_mlp),
        }
    }
}

/// Which rows an adapter acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterRows {
    /// Decode rows: positions from p − 1 on, p the number of prompt tokens. The prompt's KV is that of the base model.
    Decode,
    /// All rows.
    All,
}

impl AdapterRows {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::All => "all",
        }
    }
}

/// What is added to one matrix: scale·B·A.
#[derive(Clone, PartialEq)]
pub struct LowRank {
    /// A, `[rank, in]`; empty where it is the identity, so that B is all that is added, `[out, in]`.
    pub a: Vec<f32>,
    /// B, `[out, rank]`.
    pub b: Vec<f32>,
    /// Rank r.
    pub rank: usize,
    /// Factor: α/r, or α/√r where it is rank-stabilised (Kalajdzievski 2023).
    pub scale: f32,
}

impl LowRank {
    /// An addition of any rank, `[out, columns]`, of zeros.
    pub fn of_full_rank([out, columns]: [usize; 2]) -> Self {
        Self { a: vec![], b: vec![0.0; out * columns], rank: columns, scale: 1.0 }
    }

    /// Whether A is the identity.
    pub fn is_of_full_rank(&self) -> bool {
        self.a.is_empty()
    }

    /// Columns of A: those of the matrix that is added to.
    pub(crate) fn columns(&self) -> usize {
        if self.is_of_full_rank() { self.rank } else { self.a.len() / self.rank.max(1) }
    }

    /// A with all its elements.
    pub(crate) fn whole_a(&self) -> Cow<'_, [f32]> {
        if !self.is_of_full_rank() {
            return Cow::Borrowed(&self.a);
        }
        let mut identity = vec![0.0; self.rank * self.rank];
        identity.iter_mut().step_by(self.rank + 1).for_each(|one| *one = 1.0);
        Cow::Owned(identity)
    }

    /// A row of scale·B·A, `[in]`.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let columns = self.columns();
        if self.is_of_full_rank() {
            return self.b[row * columns..][..columns].iter().map(|x| self.scale * x).collect();
        }
        let mut sum = vec![0.0; columns];
        for (b, a) in self.b[row * self.rank..][..self.rank].iter().zip(self.a.chunks_exact(columns)) {
            let factor = self.scale * b;
            sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
        }
        sum
    }
}

impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowRank")
            .field("rank", &self.rank)
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}

/// Low-rank additions to matrices of a model, by layer and target.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// The rows it acts on.
    pub rows: AdapterRows,
    matrices: BTreeMap<(usize, Target), LowRank>,
}

impl Adapter {
    /// From its matrices.
    ///
    /// # Errors
    /// [`Error::Input`] where a matrix does not fit the model.
    pub fn new(
        rows: AdapterRows,
        matrices: BTreeMap<(usize, Target), LowRank>,
        config: &ModelConfig,
    ) -> Result<Self> {
        for (&(layer, target), matrix) in &matrices {
            let fits =
                target.shape(config).filter(|_| layer < config.layers).is_some_and(|[out, columns]| {
                    let has = |len: usize, width: usize| matrix.rank.checked_mul(width) == Some(len);
                    let a_fits = match matrix.is_of_full_rank() {
                        true => matrix.rank == columns,
                        false => has(matrix.a.len(), columns),
                    };
                    a_fits && has(matrix.b.len(), out)
                });
            if !fits || matrix.rank == 0 {
                return Err(Error::input(format!(
                    "the adapter's {} of layer {layer} is of another shape than this model's; it was made for another model",
                    target.name()
                )));
            }
        }
        Ok(Self { rows, matrices })
    }

    /// Reads an adapter for a model: a folder of PEFT's, or a GGUF file of llama.cpp's; and what it was made for, `None` where nothing
    /// says so, as with all but this program's own.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] or [`Error::MalformedFile`] where it has what is not understood, does not fit the model, or
    /// adds nothing to it.
    pub fn read(path: &Path, config: &ModelConfig) -> Result<(Self, Option<AdapterInfo>)> {
        match path.is_file() {
            true => Ok((Self::read_gguf(path, config)?, None)),
            false => Self::read_peft(path, config),
        }
    }

    /// The file that has an adapter's matrices.
    pub(crate) fn tensors_file(path: &Path) -> PathBuf {
        if path.is_file() { path.to_owned() } else { path.join(peft::TENSORS) }
    }

    /// The same for other rows.
    #[must_use]
    pub fn with_rows(self, rows: AdapterRows) -> Self {
        Self { rows, ..self }
    }

    /// Its matrices by layer and target.
    pub fn matrices(&self) -> &BTreeMap<(usize, Target), LowRank> {
        &self.matrices
    }

    /// Number of its elements.
    pub fn elements(&self) -> usize {
        self.matrices.values().map(|matrix| matrix.a.len() + matrix.b.len()).sum()
    }
}
