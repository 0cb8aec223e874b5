//! Attention of a batch, forward and backward: rows read their sequence's prefix and, causally, its own rows.

use super::{Rows, TrainingSequence};
use crate::decoder::{Attend, Location};
use crate::hooks::Hooks;
use crate::policy::{Anchors, Visibility};
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, Error, Result};
use layerscope_kernels::AttentionShape;
use layerscope_kernels::elementwise::{soft_cap, softmax};
use ndarray::{Array1, Array2, ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;
use std::ops::Range;

/// Keys and values of a layer that are constants.
#[derive(Debug, Clone, Default)]
pub struct LayerKeys {
    /// Positions, ascending.
    pub positions: Vec<usize>,
    /// Keys, rotated: `[kv_heads, positions, head_dim]`.
    pub keys: Vec<f32>,
    /// Values, of the same shape.
    pub values: Vec<f32>,
    /// KV heads.
    pub kv_heads: usize,
}

/// What the rows of a sequence read beside each other, by layer; none where they read nothing else.
pub type Prefix = Vec<LayerKeys>;

/// Queries, keys and values of a layer `[rows, heads · head_dim]`, and the probabilities of each sequence and KV head.
pub(super) struct SavedAttention {
    pub(super) q: Array2<f32>,
    pub(super) k: Array2<f32>,
    pub(super) v: Array2<f32>,
    /// Attention-weighted values.
    pub(super) z: Array2<f32>,
    units: Vec<SavedUnit>,
}

struct SavedUnit {
    /// `[group · rows, prefix + rows]`, the rows of one query head after the other.
    probabilities: Array2<f32>,
    /// Where scores are soft-capped: ln Σ e^score of each row.
    normalisers: Array1<f32>,
}

/// Attention of a forward pass.
pub(super) struct BatchAttention<'a> {
    decoder: &'a Decoder,
    batch: &'a [TrainingSequence],
    visibility: &'a Visibility,
    pub(super) rows: Rows,
    pub(super) saved: Vec<SavedAttention>,
}

/// One KV head of one sequence in a layer.
struct Unit<'a> {
    shape: AttentionShape,
    prefix: Option<&'a LayerKeys>,
    kv_head: usize,
    /// Its rows in the pass, and their positions.
    rows: Range<usize>,
    positions: &'a [usize],
    /// Positions from which on rows read themselves and the anchors alone, and the anchors.
    self_only: Option<(usize, &'a Anchors)>,
}

impl<'a> BatchAttention<'a> {
    pub(super) fn new(
        decoder: &'a Decoder,
        batch: &'a [TrainingSequence],
        visibility: &'a Visibility,
    ) -> Self {
        Self { decoder, batch, visibility, rows: Rows::default(), saved: vec![] }
    }
}

/// Each sequence and KV head of a layer.
fn units<'a>(
    decoder: &Decoder,
    batch: &'a [TrainingSequence],
    visibility: &'a Visibility,
    rows: &'a Rows,
    layer: usize,
) -> Vec<Unit<'a>> {
    let shape = decoder.attention_shape(layer);
    let mut units = vec![];
    let mut first = 0;
    for (sequence, of) in batch.iter().zip(&rows.sequences) {
        let range = first..first + of.rows;
        first = range.end;
        let self_only = visibility.self_only && layer >= visibility.cutoff;
        for kv_head in 0..shape.kv_heads {
            units.push(Unit {
                shape,
                prefix: sequence.prefix.get(layer).filter(|prefix| !prefix.positions.is_empty()),
                kv_head,
                rows: range.clone(),
                positions: &rows.positions[range.clone()],
                self_only: self_only.then_some((sequence.prompt_len - 1, &visibility.anchors)),
            });
        }
    }
    units
}

impl Unit<'_> {
    fn group(&self) -> usize {
        self.shape.query_heads / self.shape.kv_heads
    }

    /// Rows of the unit's query heads `[group · rows, head_dim]` out of `[rows, H · head_dim]`.
    fn of_group(&self, x: &ArrayView2<'_, f32>) -> Array2<f32> {
        let (dim, group) = (self.shape.head_dim, self.group());
        let mut stacked = Array2::zeros((group * self.rows.len(), dim));
        for head in 0..group {
            let column = (self.kv_head * group + head) * dim;
            let from = x.slice(s![self.rows.clone(), column..column + dim]);
            stacked.slice_mut(s![head * self.rows.len()..(head + 1) * self.rows.len(), ..]).assign(&from);
        }
        stacked
    }

    /// The inverse of [`Self::of_group`].
    fn scatter(&self, stacked: &Array2<f32>, x: &mut ArrayViewMut2<'_, f32>) {
        let (dim, group) = (self.shape.head_dim, self.group());
        for head in 0..group {
            let column = (self.kv_head * group + head) * dim;
            let from = stacked.slice(s![head * self.rows.len()..(head + 1) * self.rows.len(), ..]);
            x.slice_mut(s![self.rows.clone(), column..column + dim]).assign(&from);
        }
    }

    fn own<'b>(&self, x: &'b ArrayView2<'_, f32>) -> ArrayView2<'b, f32> {
        let column = self.kv_head * self.shape.head_dim;
        x.slice(s![self.rows.clone(), column..column + self.shape.head_dim])
    }

    /// The prefix's keys and values of the head, `[positions, head_dim]`.
    fn prefix(&self) -> Option<[ArrayView2<'_, f32>; 2]> {
        let prefix = self.prefix?;
        let (count, dim) = (prefix.positions.len(), self.shape.head_dim);
        let start = self.kv_head * count * dim;
        let keys = prefix.keys.get(start..start + count * dim)?;
        let values = prefix.values.get(start..start + count * dim)?;
        let view = |numbers| ArrayView2::from_shape((count, dim), numbers).ok();
        Some([view(keys)?, view(values)?])
    }

    fn sees(&self, row: usize, key: usize) -> bool {
        let in_window = self.shape.window.is_none_or(|window| row - key < window);
        let in_reach = match self.self_only {
            Some((first_decode, anchors)) if row >= first_decode => row == key || anchors.contains(key),
            _ => true,
        };
        in_window && in_reach
    }

    /// Positions of the keys: the prefix's, then those of the rows.
    fn key_positions(&self) -> Vec<usize> {
        let prefix = self.prefix.iter().flat_map(|prefix| &prefix.positions);
        prefix.chain(self.positions).copied().collect()
    }

    fn forward(&self, [q, k, v]: [&ArrayView2<'_, f32>; 3]) -> (Array2<f32>, SavedUnit) {
        let (q, rows) = (self.of_group(q), self.rows.len());
        let own = self.own(k);
        let key_positions = self.key_positions();
        let before = key_positions.len() - rows;
        let mut scores = Array2::zeros((q.nrows(), key_positions.len()));
        scores.slice_mut(s![.., before..]).assign(&q.dot(&own.t()));
        if let Some([keys, _]) = self.prefix() {
            scores.slice_mut(s![.., ..before]).assign(&q.dot(&keys.t()));
        }
        scores *= self.shape.scale;
        // The prefix is before all rows: nothing of it is hidden but by a window or a policy.
        let masked = if self.shape.window.is_some() || self.self_only.is_some() { 0 } else { before };
        let mut normalisers = Array1::zeros(if self.shape.soft_cap.is_some() { scores.nrows() } else { 0 });
        for (index, scores) in numbers(&mut scores).chunks_exact_mut(key_positions.len()).enumerate() {
            if let Some(cap) = self.shape.soft_cap {
                soft_cap(scores, cap);
            }
            let row = self.positions[index % rows];
            for (score, &key) in scores[masked..].iter_mut().zip(&key_positions[masked..]) {
                if key > row || !self.sees(row, key) {
                    *score = f32::NEG_INFINITY;
                }
            }
            if let Some(normaliser) = normalisers.get_mut(index) {
                let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                *normaliser = max + scores.iter().map(|score| (score - max).exp()).sum::<f32>().ln();
            }
            softmax(scores);
        }
        let mut z = scores.slice(s![.., before..]).dot(&self.own(v));
        if let Some([_, values]) = self.prefix() {
            z += &scores.slice(s![.., ..before]).dot(&values);
        }
        (z, SavedUnit { probabilities: scores, normalisers })
    }

    /// Gradients of the unit's queries, keys and values from that of its output `[group · rows, head_dim]`.
    fn backward(&self, saved: &SavedAttention, unit: &SavedUnit, dz: &Array2<f32>) -> [Array2<f32>; 3] {
        let (q, z) = (self.of_group(&saved.q.view()), self.of_group(&saved.z.view()));
        let (k, v) = (saved.k.view(), saved.v.view());
        let (own_keys, own_values) = (self.own(&k), self.own(&v));
        let p = &unit.probabilities;
        let before = p.ncols() - self.rows.len();
        let mut ds = Array2::zeros(p.raw_dim());
        ds.slice_mut(s![.., before..]).assign(&dz.dot(&own_values.t()));
        let prefix = self.prefix();
        if let Some([_, values]) = &prefix {
            ds.slice_mut(s![.., ..before]).assign(&dz.dot(&values.t()));
        }
        // ∂L/∂s = P ∘ (∂L/∂P − Σ z·∂L/∂z), times the derivative of the soft cap, 1 − (s/cap)².
        let dots = (&z * dz).sum_axis(Axis(1));
        let keys = p.ncols();
        let rows =
            numbers(&mut ds).chunks_exact_mut(keys).zip(p.as_slice().unwrap_or_default().chunks_exact(keys));
        for (index, (ds, p)) in rows.enumerate() {
            let dot = dots[index];
            ds.iter_mut().zip(p).for_each(|(ds, p)| *ds = p * (*ds - dot) * self.shape.scale);
            if let Some(cap) = self.shape.soft_cap {
                for (ds, p) in ds.iter_mut().zip(p).filter(|(_, p)| **p > 0.0) {
                    let capped = (p.ln() + unit.normalisers[index]) / cap;
                    *ds *= 1.0 - capped * capped;
                }
            }
        }
        let own = ds.slice(s![.., before..]);
        let mut dq = own.dot(&own_keys);
        if let Some([keys, _]) = &prefix {
            dq += &ds.slice(s![.., ..before]).dot(keys);
        }
        [dq, own.t().dot(&q), p.slice(s![.., before..]).t().dot(dz)]
    }
}

impl Attend for BatchAttention<'_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        _: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let Some([k, v]) = kv else {
            return Err(Error::misuse("rows that are trained have keys of their own"));
        };
        let [q, k, v] = [matrix(q)?, matrix(k)?, matrix(v)?];
        let units = units(self.decoder, self.batch, self.visibility, &self.rows, at.layer);
        let views = [&q.view(), &k.view(), &v.view()];
        let outputs: Vec<(Array2<f32>, SavedUnit)> =
            units.par_iter().map(|unit| unit.forward(views)).collect();
        let mut z = Array2::zeros(q.raw_dim());
        let mut saved = vec![];
        for (unit, (output, of_unit)) in units.iter().zip(outputs) {
            unit.scatter(&output, &mut z.view_mut());
            saved.push(of_unit);
        }
        let shape = self.decoder.attention_shape(at.layer);
        let dims = [z.nrows(), shape.query_heads, shape.head_dim];
        let output = Tensor::from_vec(z.iter().copied().collect(), &dims)?;
        self.saved.push(SavedAttention { q, k, v, z, units: saved });
        Ok(output)
    }
}

/// Gradients of queries, keys and values, rotated, from that of the attention-weighted values `[rows, H · head_dim]`.
pub(super) fn backward(
    decoder: &Decoder,
    batch: &[TrainingSequence],
    visibility: &Visibility,
    (rows, layer): (&Rows, usize),
    saved: &SavedAttention,
    dz: &Array2<f32>,
) -> [Array2<f32>; 3] {
    let units = units(decoder, batch, visibility, rows, layer);
    let of_unit =
        |(unit, of_unit): (&Unit<'_>, &SavedUnit)| unit.backward(saved, of_unit, &unit.of_group(&dz.view()));
    let gradients: Vec<[Array2<f32>; 3]> = units.par_iter().zip(&saved.units).map(of_unit).collect();
    let [mut dq, mut dk, mut dv] = [&saved.q, &saved.k, &saved.v].map(|x| Array2::zeros(x.raw_dim()));
    for (unit, [q, k, v]) in units.iter().zip(&gradients) {
        unit.scatter(q, &mut dq.view_mut());
        let column = unit.kv_head * unit.shape.head_dim;
        for (sum, gradient) in [(&mut dk, k), (&mut dv, v)] {
            sum.slice_mut(s![unit.rows.clone(), column..column + unit.shape.head_dim]).assign(gradient);
        }
    }
    [dq, dk, dv]
}

/// The numbers of a matrix, row after row.
pub(super) fn numbers(x: &mut Array2<f32>) -> &mut [f32] {
    if !x.is_standard_layout() {
        *x = x.as_standard_layout().into_owned();
    }
    x.as_slice_mut().unwrap_or_default()
}

/// Rows of a tensor, `[rows, rest]`.
pub(super) fn matrix(x: &Tensor) -> Result<Array2<f32>> {
    let numbers = with_f32(x, <[f32]>::to_vec)?;
    let width = numbers.len() / x.rows().max(1);
    Array2::from_shape_vec((x.rows(), width), numbers).map_err(|error| Error::failure(error.to_string()))
}
