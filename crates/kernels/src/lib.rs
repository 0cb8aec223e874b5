//! CPU kernels of layerscope: attention that also yields its statistics, products with weights as files have them, and
//! comparisons of next-token distributions. Every kernel is tested against a plain f64 version in [`mod@reference`].
//!
//! All data are row-major `f32` slices. Vector width is chosen at run time (AVX-512, AVX2 with FMA, NEON or plain).

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
pub mod cuda;
pub mod distribution;
pub mod elementwise;
mod exp;
mod instructions;
mod lanes;
mod line;
pub mod matmul;
pub mod reference;
mod rows;
mod tile;
pub mod trajectory;

pub use attention::{
    AttentionShape, AttentionStatistics, Elements, KeySet, KeySpan, Q8Block, Queries, Read, ReadLimits,
    Received, RowReads, SEGMENTS, SPARSE_BLOCK, Segment, SparseKeys, attention, attention_with_statistics,
    sparse_attention,
};
pub use elementwise::Activation;
pub use exp::exp_nonpositive;
pub use instructions::Instructions;
