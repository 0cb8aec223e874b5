//! Prefill pattern: which keys prompt rows read in the prefill.

use layerscope_kernels::{AttentionShape, SparseKeys};

/// Which pairs of a prompt row and a stored key are multiplied in the prefill. It says nothing of which rows run, which KV stays
/// and what decode reads. Layers with a window are not asked.
pub trait PrefillPattern: Send + Sync {
    /// What the rows of a chunk read in each query head; `None`: everything.
    fn sparse_keys(&self, chunk: &PromptChunk<'_>) -> Option<SparseKeys>;
}

/// Rows of the prompt that are about to attend in a layer.
pub struct PromptChunk<'a> {
    /// The layer.
    pub layer: usize,
    /// Sizes and scale.
    pub shape: AttentionShape,
    /// Position of the first row.
    pub first_position: usize,
    /// Number of rows.
    pub rows: usize,
    /// Queries, rotated, `[rows, H, head_dim]`.
    pub queries: &'a [f32],
    /// Keys, rotated, of the positions 0 … first_position + rows − 1: `[kv_heads, keys, head_dim]`.
    pub keys: &'a [f32],
}
