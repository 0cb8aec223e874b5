//! What prefill rows read of what a layer stores.

use crate::Result;
use crate::policy::StoredHead;
use layerscope_kernels::elementwise::{soft_cap, softmax};
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, Axis};
use rayon::prelude::*;

/// Rows whose scores are in memory at once.
const ROWS: usize = 128;

/// Rows of query heads that share a KV head.
struct Rows {
    /// `[rows, group, head_dim]`.
    queries: Vec<f32>,
    /// Position of the first.
    first_position: usize,
    count: usize,
}

impl StoredHead<'_> {
    /// Attention that each stored token receives from the rows observed, mean over rows and over the query heads of a KV head;
    /// `[stored]`. A row sees the stored tokens that it saw in the prefill.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn received(&self, kv_head: usize) -> Result<Vec<f32>> {
        let rows = self.rows(kv_head)?;
        let first_position = self.prefill_len - rows.count;
        let rows = Rows { first_position, ..rows };
        let count = (rows.count * self.group()).max(1) as f32;
        let mut received = self.attention_of(kv_head, &rows, &|sum, attention| *sum += attention);
        received.iter_mut().for_each(|received| *received /= count);
        Ok(received)
    }

    /// The most attention that each stored token receives from any row of the second reading and any query head of a KV head;
    /// `[stored]`. A row of that sees what is stored, and the rows of the second reading up to itself.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn most_read_again(&self, kv_head: usize) -> Result<Vec<f32>> {
        let rows = self.rows(kv_head)?;
        let of_first =
            (rows.count - self.read_again.len().min(rows.count)) * self.group() * self.shape.head_dim;
        let rows = Rows {
            queries: rows.queries[of_first..].to_vec(),
            first_position: self.prefill_len,
            count: self.read_again.len().min(rows.count),
        };
        let mut most = self.attention_of(kv_head, &rows, &|most, attention| *most = most.max(attention));
        most.truncate(self.positions.len());
        Ok(most)
    }

    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        self.shape.query_heads / self.shape.kv_heads
    }

    fn rows(&self, kv_head: usize) -> Result<Rows> {
        let queries = self.queries_of(kv_head)?;
        let count = queries.len() / (self.group() * self.shape.head_dim);
        Ok(Rows { queries, first_position: 0, count })
    }

    /// Attention that each stored token receives, those of a second reading among them, `fold`ed over rows and query heads.
    fn attention_of(&self, kv_head: usize, rows: &Rows, fold: &(dyn Fn(&mut f32, f32) + Sync)) -> Vec<f32> {
        let (dim, group, count) = (self.shape.head_dim, self.group(), rows.count);
        let positions = [self.positions, self.read_again].concat();
        let keys = self.keys_of(kv_head);
        let (Ok(keys), Ok(queries)) = (
            ArrayView2::from_shape((positions.len(), dim), &keys),
            ArrayView3::from_shape((count, group, dim), &rows.queries),
        ) else {
            return vec![0.0; positions.len()];
        };
        let blocks: Vec<(usize, usize)> =
            (0..group).flat_map(|head| (0..count).step_by(ROWS).map(move |first| (head, first))).collect();
        let of_block = |&(head, first): &(usize, usize)| {
            let of_head = queries.index_axis(Axis(1), head);
            let block = of_head.slice_axis(Axis(0), (first..count.min(first + ROWS)).into());
            self.attention_of_block(&block, rows.first_position + first, (&keys, &positions), fold)
        };
        let blocks: Vec<Array1<f32>> = blocks.par_iter().map(of_block).collect();
        let mut all = vec![0.0; positions.len()];
        for block in blocks {
            all.iter_mut().zip(block).for_each(|(all, block)| fold(all, block));
        }
        all
    }

    /// Attention that the first stored tokens receive from rows at `first_position` …, `fold`ed over rows.
    fn attention_of_block(
        &self,
        queries: &ArrayView2<'_, f32>,
        first_position: usize,
        (keys, positions): (&ArrayView2<'_, f32>, &[usize]),
        fold: &(dyn Fn(&mut f32, f32) + Sync),
    ) -> Array1<f32> {
        let end = first_position + queries.nrows();
        let seen = positions.partition_point(|&position| position < end);
        let keys = keys.slice_axis(Axis(0), (..seen).into());
        let mut scores: Array2<f32> = queries.dot(&keys.t());
        scores *= self.shape.scale;
        let mut folded = Array1::zeros(seen);
        for (query, mut scores) in (first_position..).zip(scores.outer_iter_mut()) {
            let mut scores = scores.as_slice_mut().map_or_else(Vec::new, |scores| scores.to_vec());
            if let Some(cap) = self.shape.soft_cap {
                soft_cap(&mut scores, cap);
            }
            let mut sees_any = false;
            for (score, &key) in scores.iter_mut().zip(positions) {
                let sees = self.shape.sees(query, key);
                sees_any |= sees;
                if !sees {
                    *score = f32::NEG_INFINITY;
                }
            }
            if sees_any {
                softmax(&mut scores);
                folded.iter_mut().zip(scores).for_each(|(all, attention)| fold(all, attention));
            }
        }
        folded
    }
}
