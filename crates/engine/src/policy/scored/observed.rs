//! What the last prefill rows read of what a layer stores.

use crate::Result;
use crate::policy::StoredHead;
use layerscope_kernels::elementwise::{soft_cap, softmax};
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, Axis};
use rayon::prelude::*;

/// Rows whose scores are in memory at once.
const ROWS: usize = 128;

impl StoredHead<'_> {
    /// Attention that each stored token receives from the rows observed, mean over rows and over the query heads of a KV head;
    /// `[stored]`. A row sees the stored tokens that it saw in the prefill.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub(super) fn received(&self, kv_head: usize) -> Result<Vec<f32>> {
        let (dim, group) = (self.shape.head_dim, self.shape.query_heads / self.shape.kv_heads);
        let (keys, queries) = (self.keys_of(kv_head), self.queries_of(kv_head)?);
        let rows = queries.len() / (group * dim);
        let (Ok(keys), Ok(queries)) = (
            ArrayView2::from_shape((self.positions.len(), dim), &keys),
            ArrayView3::from_shape((rows, group, dim), &queries),
        ) else {
            return Ok(vec![0.0; self.positions.len()]);
        };
        let blocks: Vec<(usize, usize)> =
            (0..group).flat_map(|head| (0..rows).step_by(ROWS).map(move |first| (head, first))).collect();
        let of_block = |&(head, first): &(usize, usize)| {
            let of_head = queries.index_axis(Axis(1), head);
            let block = of_head.slice_axis(Axis(0), (first..rows.min(first + ROWS)).into());
            self.received_from(&block, self.prefill_len - rows + first, &keys)
        };
        let sums: Vec<Array1<f32>> = blocks.par_iter().map(of_block).collect();
        let mut received = vec![0.0; self.positions.len()];
        for sum in sums {
            received.iter_mut().zip(sum).for_each(|(received, sum)| *received += sum);
        }
        let count = (rows * group).max(1) as f32;
        received.iter_mut().for_each(|received| *received /= count);
        Ok(received)
    }

    /// Attention that the first stored tokens receive from rows at `first_position` …, summed over rows.
    fn received_from(
        &self,
        queries: &ArrayView2<'_, f32>,
        first_position: usize,
        keys: &ArrayView2<'_, f32>,
    ) -> Array1<f32> {
        let end = first_position + queries.nrows();
        let seen = self.positions.partition_point(|&position| position < end);
        let keys = keys.slice_axis(Axis(0), (..seen).into());
        let mut scores: Array2<f32> = queries.dot(&keys.t());
        scores *= self.shape.scale;
        let mut sums = Array1::zeros(seen);
        for (query, mut scores) in (first_position..).zip(scores.outer_iter_mut()) {
            let mut scores = scores.as_slice_mut().map_or_else(Vec::new, |scores| scores.to_vec());
            if let Some(cap) = self.shape.soft_cap {
                soft_cap(&mut scores, cap);
            }
            let mut sees_any = false;
            for (score, &key) in scores.iter_mut().zip(self.positions) {
                let sees = self.shape.sees(query, key);
                sees_any |= sees;
                if !sees {
                    *score = f32::NEG_INFINITY;
                }
            }
            if sees_any {
                softmax(&mut scores);
                sums.iter_mut().zip(scores).for_each(|(sum, attention)| *sum += attention);
            }
        }
        sums
    }
}
