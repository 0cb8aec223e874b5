//! What is looked at to choose keys: attention of the last rows, and of blocks by their means.

use crate::policy::PromptChunk;
use layerscope_kernels::SPARSE_BLOCK;
use layerscope_kernels::elementwise::{soft_cap, softmax};
use ndarray::{Array2, ArrayView2, Axis, aview1, aview2, s};

impl PromptChunk<'_> {
    /// Number of keys.
    pub(super) fn key_count(&self) -> usize {
        self.first_position + self.rows
    }

    /// Rows whose attention is looked at: the last 64.
    fn observed(&self) -> usize {
        self.rows.min(SPARSE_BLOCK)
    }

    /// Queries of a head of the last so many rows, `[rows, head_dim]`.
    fn queries_of(&self, head: usize, rows: usize) -> Array2<f32> {
        let (heads, dim) = (self.shape.query_heads, self.shape.head_dim);
        let mut queries = Array2::zeros((rows, dim));
        for (row, mut query) in (self.rows - rows..self.rows).zip(queries.outer_iter_mut()) {
            query.assign(&aview1(&self.queries[(row * heads + head) * dim..][..dim]));
        }
        queries
    }

    fn keys_of(&self, head: usize) -> ArrayView2<'_, f32> {
        let (count, dim) = (self.key_count(), self.shape.head_dim);
        let kv_head = head / (self.shape.query_heads / self.shape.kv_heads);
        let keys = &self.keys[kv_head * count * dim..][..count * dim];
        ArrayView2::from_shape((count, dim), keys).unwrap_or_else(|_| aview2::<f32, 0>(&[]))
    }

    fn scores(&self, queries: &ArrayView2<'_, f32>, keys: &ArrayView2<'_, f32>) -> Array2<f32> {
        let mut scores = queries.dot(&keys.t());
        scores *= self.shape.scale;
        if let (Some(cap), Some(scores)) = (self.shape.soft_cap, scores.as_slice_memory_order_mut()) {
            soft_cap(scores, cap);
        }
        scores
    }

    /// Attention of the last rows of a head over all keys, `[rows ≤ 64, keys]`.
    pub(super) fn last_rows(&self, head: usize) -> Array2<f32> {
        let last = self.queries_of(head, self.observed());
        self.attention(head, &last.view(), self.key_count() - self.observed())
    }

    /// Attention of rows at `first_position` … of a head over all keys, `[rows, keys]`.
    fn attention(&self, head: usize, queries: &ArrayView2<'_, f32>, first_position: usize) -> Array2<f32> {
        let mut scores = self.scores(queries, &self.keys_of(head));
        for (row, mut scores) in scores.outer_iter_mut().enumerate() {
            scores.slice_mut(s![first_position + row + 1..]).fill(f32::NEG_INFINITY);
            softmax(scores.as_slice_mut().unwrap_or_default());
        }
        scores
    }

    /// Attention of a head by key, summed over the rows of each block, `[blocks of rows, keys]`.
    pub(super) fn attention_by_row_block(&self, head: usize) -> Array2<f32> {
        let queries = self.queries_of(head, self.rows);
        let mut sums = Array2::zeros((self.rows.div_ceil(SPARSE_BLOCK), self.key_count()));
        let blocks = queries.axis_chunks_iter(Axis(0), SPARSE_BLOCK);
        for (block, (mut sums, queries)) in sums.outer_iter_mut().zip(blocks).enumerate() {
            let first_position = self.first_position + block * SPARSE_BLOCK;
            sums.assign(&self.attention(head, &queries, first_position).sum_axis(Axis(0)));
        }
        sums
    }

    /// Attention of the mean query of each block of rows over the mean key of each block of keys, `[blocks of rows, blocks of
    /// keys]`; a block sees those up to its own.
    pub(super) fn blocks(&self, head: usize) -> Array2<f32> {
        let queries = self.queries_of(head, self.rows);
        let (queries, keys) = (means(&queries.view()), means(&self.keys_of(head)));
        let mut scores = self.scores(&queries.view(), &keys.view());
        for (block, mut scores) in scores.outer_iter_mut().enumerate() {
            let last = self.key_count().min(self.first_position + (block + 1) * SPARSE_BLOCK) - 1;
            scores.slice_mut(s![last / SPARSE_BLOCK + 1..]).fill(f32::NEG_INFINITY);
            softmax(scores.as_slice_mut().unwrap_or_default());
        }
        scores
    }

    /// Attention of the mean of the last rows' queries over the mean key of each block of keys.
    pub(super) fn last_rows_by_means(&self, head: usize) -> Vec<f32> {
        let mean = self
            .queries_of(head, self.observed())
            .mean_axis(Axis(0))
            .unwrap_or_default()
            .insert_axis(Axis(0));
        let mut scores =
            self.scores(&mean.view(), &means(&self.keys_of(head)).view()).into_raw_vec_and_offset().0;
        softmax(&mut scores);
        scores
    }
}

/// Mean of each block of rows, the last of which may be shorter.
fn means(rows: &ArrayView2<'_, f32>) -> Array2<f32> {
    let blocks = rows.nrows().div_ceil(SPARSE_BLOCK);
    let mut means = Array2::zeros((blocks, rows.ncols()));
    for (mut mean, block) in means.outer_iter_mut().zip(rows.axis_chunks_iter(Axis(0), SPARSE_BLOCK)) {
        if let Some(of_block) = block.mean_axis(Axis(0)) {
            mean.assign(&of_block);
        }
    }
    means
}

/// Sums over the columns of each block.
pub(super) fn by_key_block(row: &[f32]) -> Vec<f32> {
    row.chunks(SPARSE_BLOCK).map(|block| block.iter().sum()).collect()
}
