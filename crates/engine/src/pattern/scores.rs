//! Scores of a layer's queries and keys, and what each row's probabilities are divided by.

use super::exponentials::{largest, run};
use super::watch::LayerReads;
use crate::product::write_product;
use layerscope_kernels::elementwise::soft_cap;
use ndarray::{ArrayView, ArrayView2, ArrayViewMut2, ShapeBuilder};
use std::ops::Range;
use std::sync::OnceLock;

/// Rows whose normalisers are computed together.
pub(super) const NORMALISED: usize = 256;
/// Rows that are multiplied together.
pub(super) const ROWS: usize = 128;
/// Keys that are multiplied together.
pub(super) const KEYS: usize = 1_024;

/// A layer's queries and keys, with the normalisers that are known.
pub(super) struct LayerScores {
    pub(super) reads: LayerReads,
    /// Logarithm of Σ e^score of each row, by head and block of [`NORMALISED`] rows; NaN where a softmax is undefined, −∞ where a row
    /// reads nothing.
    normalisers: Vec<OnceLock<Vec<f32>>>,
    rows: usize,
}

/// Takes a run of keys that a row reads: the row, the keys, their scores, and the row's normaliser.
pub(super) type SeeRun<'a> = dyn FnMut(usize, Range<usize>, &mut [f32], f32) + 'a;

/// Scores of some rows, and buffers.
#[derive(Default)]
pub(super) struct ScoreBlock {
    scores: Vec<f32>,
    visible: Vec<Range<usize>>,
}

impl LayerScores {
    pub(super) fn new(reads: LayerReads) -> Self {
        let shape = reads.shape;
        let rows = reads.queries.len() / (shape.query_heads * shape.head_dim).max(1);
        let blocks = shape.query_heads * rows.div_ceil(NORMALISED);
        Self { reads, normalisers: (0..blocks).map(|_| OnceLock::new()).collect(), rows }
    }

    /// Scores `[rows, keys]` of a head, whatever the rows read of them.
    fn scores(&self, head: usize, rows: &Range<usize>, keys: &Range<usize>, scores: &mut Vec<f32>) {
        let shape = &self.reads.shape;
        let (dim, width) = (shape.head_dim, shape.query_heads * shape.head_dim);
        let kv_head = head / (shape.query_heads / shape.kv_heads);
        scores.resize(rows.len() * keys.len(), 0.0);
        let queries = &self.reads.queries[rows.start * width + head * dim..];
        let of_head = &self.reads.keys[(kv_head * self.rows + keys.start) * dim..][..keys.len() * dim];
        let queries = ArrayView::from_shape((rows.len(), dim).strides((width, 1)), queries);
        let of_head = ArrayView2::from_shape((keys.len(), dim), of_head);
        let output = ArrayViewMut2::from_shape((rows.len(), keys.len()), scores);
        if let (Ok(queries), Ok(of_head), Ok(mut output)) = (queries, of_head, output) {
            write_product(&mut output, &queries, &of_head.t(), shape.scale);
        }
        if let Some(cap) = shape.soft_cap {
            soft_cap(scores, cap);
        }
    }

    /// The normalisers of a block of [`NORMALISED`] rows of a head.
    pub(super) fn normalisers(&self, head: usize, block: usize) -> &[f32] {
        let index = head * self.rows.div_ceil(NORMALISED) + block;
        self.normalisers[index].get_or_init(|| self.normalise(head, block))
    }

    fn normalise(&self, head: usize, block: usize) -> Vec<f32> {
        let all = block * NORMALISED..self.rows.min((block + 1) * NORMALISED);
        let mut normalisers = Vec::with_capacity(all.len());
        let mut buffers = ScoreBlock::default();
        for first in all.clone().step_by(ROWS) {
            let rows = first..all.end.min(first + ROWS);
            let mut sums = vec![LogSum::default(); rows.len()];
            for start in (0..rows.end).step_by(KEYS) {
                let keys = start..rows.end.min(start + KEYS);
                self.scores(head, &rows, &keys, &mut buffers.scores);
                for (row, sum) in rows.clone().zip(&mut sums) {
                    self.reads.visible(row, head, &keys, &mut buffers.visible);
                    let scores = &buffers.scores[(row - rows.start) * keys.len()..][..keys.len()];
                    for range in &buffers.visible {
                        sum.add(&scores[range.start - keys.start..range.end - keys.start]);
                    }
                }
            }
            normalisers.extend(sums.iter().map(|sum| sum.logarithm()));
        }
        normalisers
    }

    /// Scores of some rows of a head within a block of [`NORMALISED`], on some keys: calls `see(row, keys, scores, normaliser)` for each
    /// run of keys that a row reads, with positions counted from the first of `rows` and `keys`. A probability is
    /// e^(score − normaliser).
    pub(super) fn runs(
        &self,
        head: usize,
        rows: &Range<usize>,
        keys: &Range<usize>,
        ScoreBlock { scores, visible }: &mut ScoreBlock,
        see: &mut SeeRun<'_>,
    ) {
        self.scores(head, rows, keys, scores);
        let block = rows.start / NORMALISED;
        let normalisers = self.normalisers(head, block);
        for (index, row) in rows.clone().enumerate() {
            self.reads.visible(row, head, keys, visible);
            for range in &*visible {
                let range = range.start - keys.start..range.end - keys.start;
                let scores = &mut scores[index * keys.len()..][range.clone()];
                see(index, range, scores, normalisers[row - block * NORMALISED]);
            }
        }
    }
}

/// The logarithm of a sum of exponentials.
#[derive(Clone, Copy)]
struct LogSum {
    max: f64,
    sum: f64,
}

impl Default for LogSum {
    fn default() -> Self {
        Self { max: f64::NEG_INFINITY, sum: 0.0 }
    }
}

impl LogSum {
    /// Adds e^x of each x.
    fn add(&mut self, x: &[f32]) {
        let max = largest(x);
        if max == f32::NEG_INFINITY && !x.iter().any(|x| x.is_nan()) {
            return;
        }
        let (sum, max) = (f64::from(run(x, max).sum), f64::from(max));
        if self.sum == 0.0 {
            (self.max, self.sum) = (max, sum);
        } else {
            let to = self.max.max(max);
            self.sum = self.sum * (self.max - to).exp() + sum * (max - to).exp();
            self.max = to;
        }
    }

    fn logarithm(self) -> f32 {
        match self.sum == 0.0 {
            true => f32::NEG_INFINITY,
            false => (self.max + self.sum.ln()) as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LogSum;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_of_parts_are_those_of_all(x in proptest::collection::vec(-40_f32..40.0, 1..200), at in 0_usize..200) {
            let (first, rest) = x.split_at(at.min(x.len()));
            let mut sum = LogSum::default();
            for part in [first, rest] {
                sum.add(part);
            }
            let plain = x.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            prop_assert!((f64::from(sum.logarithm()) - plain).abs() < 1e-5, "{} {plain}", sum.logarithm());
        }
    }

    #[test]
    fn nothing_is_minus_infinity_and_nan_stays() {
        assert_eq!(LogSum::default().logarithm(), f32::NEG_INFINITY);
        let mut sum = LogSum::default();
        sum.add(&[f32::NEG_INFINITY]);
        assert_eq!(sum.logarithm(), f32::NEG_INFINITY);
        sum.add(&[1.0, f32::NAN]);
        sum.add(&[2.0]);
        assert!(sum.logarithm().is_nan());
    }
}
