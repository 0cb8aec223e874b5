//! Attention of a batch, forward and backward: rows read their sequence's prefix and, causally, its own rows.

use super::keys::{HeadKeys, HeadMatrix, Which};
use super::{Rows, TrainingSequence};
use crate::decoder::{Attend, Location};
use crate::hooks::Hooks;
use crate::policy::{Anchors, Visibility};
use crate::product::{add_product, product};
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, Error, Result};
use layerscope_kernels::AttentionShape;
use layerscope_kernels::elementwise::{soft_cap, softmax_gradient, softmax_of_parts};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, CowArray, Ix2, s};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Query rows of a sequence that are multiplied together. Where a sequence has more, probabilities are computed again for gradients.
const TILE_ROWS: usize = 64;

/// Queries, keys and values of a layer `[rows, heads · head_dim]`, and the probabilities of each sequence and KV head.
pub(super) struct SavedAttention {
    pub(super) q: Array2<f32>,
    pub(super) k: Array2<f32>,
    pub(super) v: Array2<f32>,
    /// Attention-weighted values.
    pub(super) z: Array2<f32>,
    /// Probabilities of each unit; `None` where they are computed again.
    probabilities: Vec<Option<Parts>>,
}

/// Numbers for keys of the prefix, and for those of the rows: `[group · rows, keys]`, the rows of one query head after the other.
type Parts = [Array2<f32>; 2];

const PREFIX: usize = 0;
const OWN: usize = 1;

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
    prefix: Option<&'a HeadKeys>,
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
            let prefix = sequence.prefix.get(layer).and_then(|heads| heads.get(kv_head));
            units.push(Unit {
                shape,
                prefix: prefix.map(Arc::as_ref).filter(|prefix| !prefix.positions.is_empty()),
                kv_head,
                rows: range.clone(),
                positions: &rows.positions[range.clone()],
                self_only: self_only.then_some((sequence.prompt_len - 1, &visibility.anchors)),
            });
        }
    }
    units
}

/// Some rows of a unit, the keys that they read and their probabilities.
struct Tile<'a> {
    /// Rows, counted from the unit's first.
    rows: Range<usize>,
    /// Queries `[group · rows, head_dim]`, the rows of one query head after the other.
    q: Array2<f32>,
    /// As [`Parts`].
    probabilities: [CowArray<'a, f32, Ix2>; 2],
    /// ∂capped/∂score where scores are soft-capped.
    slopes: Option<Parts>,
}

/// Keys and values that a unit's rows read.
struct UnitKeys<'a> {
    prefix: Option<&'a HeadKeys>,
    /// Keys and values of the rows.
    own: [ArrayView2<'a, f32>; 2],
}

impl UnitKeys<'_> {
    fn prefix(&self, which: Which) -> Option<HeadMatrix<'_>> {
        Some(self.prefix?.matrix(which))
    }

    /// Those of the first own rows.
    fn own(&self, which: Which, rows: usize) -> ArrayView2<'_, f32> {
        self.own[which as usize].slice(s![..rows, ..])
    }

    /// `factor · x · Kᵀ` for keys or values of the prefix, and for those of the first own rows.
    fn times_transposed(&self, which: Which, rows: usize, x: &ArrayView2<'_, f32>, factor: f32) -> Parts {
        let of_prefix = match self.prefix(which) {
            Some(prefix) => prefix.times_transposed(x, factor),
            None => Array2::zeros((x.nrows(), 0)),
        };
        [of_prefix, product(x, &self.own(which, rows).t(), factor)]
    }

    /// The sum of `x · K` for the prefix and for the first own rows.
    fn times(
        &self,
        which: Which,
        rows: usize,
        [of_prefix, of_own]: [&ArrayView2<'_, f32>; 2],
    ) -> Array2<f32> {
        let own = self.own(which, rows);
        let mut sum = match self.prefix(which) {
            Some(prefix) => prefix.times(of_prefix),
            None => Array2::zeros((of_own.nrows(), own.ncols())),
        };
        add_product(&mut sum.view_mut(), of_own, &own, 1.0);
        sum
    }
}

impl Unit<'_> {
    fn group(&self) -> usize {
        self.shape.query_heads / self.shape.kv_heads
    }

    /// Some rows of the unit's query heads `[group · rows, head_dim]` out of `[all rows, H · head_dim]`.
    fn of_group(&self, x: &ArrayView2<'_, f32>, rows: &Range<usize>) -> Array2<f32> {
        let (dim, group) = (self.shape.head_dim, self.group());
        let mut stacked = Array2::zeros((group * rows.len(), dim));
        for head in 0..group {
            let column = (self.kv_head * group + head) * dim;
            let of_pass = self.rows.start + rows.start..self.rows.start + rows.end;
            let from = x.slice(s![of_pass, column..column + dim]);
            stacked.slice_mut(s![head * rows.len()..(head + 1) * rows.len(), ..]).assign(&from);
        }
        stacked
    }

    /// Puts rows of the unit's query heads, `[group, all rows of the unit, head_dim]`, where they belong in `x`.
    fn scatter(&self, stacked: &Array2<f32>, x: &mut ArrayViewMut2<'_, f32>) {
        let (dim, group, rows) = (self.shape.head_dim, self.group(), self.rows.len());
        for head in 0..group {
            let column = (self.kv_head * group + head) * dim;
            let from = stacked.slice(s![head * rows..(head + 1) * rows, ..]);
            x.slice_mut(s![self.rows.clone(), column..column + dim]).assign(&from);
        }
    }

    /// Writes a tile's rows into those of the whole unit.
    fn place(&self, tile: &Range<usize>, of_tile: &Array2<f32>, whole: &mut Array2<f32>) {
        for head in 0..self.group() {
            let from = of_tile.slice(s![head * tile.len()..(head + 1) * tile.len(), ..]);
            let start = head * self.rows.len() + tile.start;
            whole.slice_mut(s![start..start + tile.len(), ..]).assign(&from);
        }
    }

    /// Rows that are multiplied together.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let rows = self.rows.len();
        (0..rows).step_by(TILE_ROWS).map(move |start| start..rows.min(start + TILE_ROWS))
    }

    /// Keys and values out of those of all rows.
    fn keys<'b>(&'b self, k: &'b Array2<f32>, v: &'b Array2<f32>) -> UnitKeys<'b> {
        let dim = self.shape.head_dim;
        let column = self.kv_head * dim;
        let of_head = |x: &'b Array2<f32>| x.slice(s![self.rows.clone(), column..column + dim]);
        UnitKeys { prefix: self.prefix, own: [of_head(k), of_head(v)] }
    }

    fn sees(&self, row: usize, key: usize) -> bool {
        let in_reach = match self.self_only {
            Some((first_decode, anchors)) if row >= first_decode => row == key || anchors.contains(key),
            _ => true,
        };
        self.shape.sees(row, key) && in_reach
    }

    /// The probabilities of a tile's rows.
    fn tile<'b>(&self, rows: Range<usize>, q: &Array2<f32>, keys: &UnitKeys<'_>) -> Tile<'b> {
        let q = self.of_group(&q.view(), &rows);
        let mut scores = keys.times_transposed(Which::Keys, rows.end, &q.view(), self.shape.scale);
        let of_prefix = self.prefix.map_or(&[][..], |prefix| &prefix.positions);
        // The prefix is before all rows: nothing of it is hidden but by a window or a policy.
        let all_visible = self.shape.window.is_none() && self.self_only.is_none();
        let masked = if all_visible { [of_prefix.len(), rows.start] } else { [0, 0] };
        let mut slopes =
            self.shape.soft_cap.map(|_| scores.each_ref().map(|part| Array2::zeros(part.raw_dim())));
        for index in 0..q.nrows() {
            let row = self.positions[rows.start + index % rows.len()];
            let mut of_row =
                scores.each_mut().map(|part| part.row_mut(index).into_slice().unwrap_or_default());
            if let (Some(cap), Some(slopes)) = (self.shape.soft_cap, &mut slopes) {
                for (scores, slopes) in of_row.iter_mut().zip(slopes) {
                    soft_cap(scores, cap);
                    // The derivative of cap · tanh(s / cap).
                    let slope = |score: &f32| 1.0 - (score / cap) * (score / cap);
                    slopes
                        .row_mut(index)
                        .iter_mut()
                        .zip(&**scores)
                        .for_each(|(to, score)| *to = slope(score));
                }
            }
            for ((scores, positions), masked) in
                of_row.iter_mut().zip([of_prefix, &self.positions[..rows.end]]).zip(masked)
            {
                for (score, &key) in scores[masked..].iter_mut().zip(&positions[masked..]) {
                    if !self.sees(row, key) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            softmax_of_parts(of_row);
        }
        Tile { rows, q, probabilities: scores.map(CowArray::from), slopes }
    }

    /// The unit's output `[group · rows, head_dim]`, and its probabilities where they are kept.
    fn forward(&self, [q, k, v]: [&Array2<f32>; 3]) -> (Array2<f32>, Option<Parts>) {
        let keys = self.keys(k, v);
        let mut z = Array2::zeros((self.group() * self.rows.len(), self.shape.head_dim));
        let mut kept = None;
        for rows in self.tiles() {
            let tile = self.tile(rows, q, &keys);
            let [of_prefix, of_own] = tile.probabilities.each_ref().map(|part| part.view());
            let output = keys.times(Which::Values, tile.rows.end, [&of_prefix, &of_own]);
            self.place(&tile.rows, &output, &mut z);
            kept = Some(tile).filter(|tile| tile.rows.len() == self.rows.len() && tile.slopes.is_none());
        }
        (z, kept.map(|tile| tile.probabilities.map(CowArray::into_owned)))
    }

    /// Gradients of the unit's queries, keys and values from that of the output.
    fn backward(
        &self,
        saved: &SavedAttention,
        probabilities: Option<&Parts>,
        dz: &Array2<f32>,
    ) -> [Array2<f32>; 3] {
        let keys = self.keys(&saved.k, &saved.v);
        let dim = self.shape.head_dim;
        let mut dq = Array2::zeros((self.group() * self.rows.len(), dim));
        let [mut dk, mut dv] = [(); 2].map(|()| Array2::zeros((self.rows.len(), dim)));
        for rows in self.tiles() {
            let tile = match probabilities {
                Some(kept) => {
                    let q = self.of_group(&saved.q.view(), &rows);
                    let probabilities = kept.each_ref().map(|part| CowArray::from(part.view()));
                    Tile { rows, q, probabilities, slopes: None }
                }
                None => self.tile(rows, &saved.q, &keys),
            };
            let (z, dz) = (self.of_group(&saved.z.view(), &tile.rows), self.of_group(&dz.view(), &tile.rows));
            let ds = self.score_gradients(&tile, &keys, &z, &dz);
            let [of_prefix, of_own] = ds.each_ref().map(|part| part.view());
            let of_tile = keys.times(Which::Keys, tile.rows.end, [&of_prefix, &of_own]);
            self.place(&tile.rows, &of_tile, &mut dq);
            let read = s![..tile.rows.end, ..];
            add_product(&mut dk.slice_mut(read), &of_own.t(), &tile.q.view(), 1.0);
            add_product(&mut dv.slice_mut(read), &tile.probabilities[OWN].t(), &dz.view(), 1.0);
        }
        [dq, dk, dv]
    }

    /// ∂L/∂(q·k) = scale · P ∘ (∂L/∂P − Σ z·∂L/∂z), times the derivative of the soft cap.
    fn score_gradients(
        &self,
        tile: &Tile<'_>,
        keys: &UnitKeys<'_>,
        z: &Array2<f32>,
        dz: &Array2<f32>,
    ) -> Parts {
        let dots = (z * dz).sum_axis(Axis(1));
        let mut gradients = keys.times_transposed(Which::Values, tile.rows.end, &dz.view(), 1.0);
        for part in [PREFIX, OWN] {
            let p = tile.probabilities[part].as_standard_layout();
            for (index, dot) in dots.iter().enumerate() {
                let gradient = gradients[part].row_mut(index).into_slice().unwrap_or_default();
                softmax_gradient(
                    p.row(index).to_slice().unwrap_or_default(),
                    gradient,
                    *dot,
                    self.shape.scale,
                );
            }
            if let Some(slopes) = &tile.slopes {
                gradients[part] *= &slopes[part];
            }
        }
        gradients
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
        let outputs: Vec<_> = units.par_iter().map(|unit| unit.forward([&q, &k, &v])).collect();
        let mut z = Array2::zeros(q.raw_dim());
        let mut probabilities = vec![];
        for (unit, (output, kept)) in units.iter().zip(outputs) {
            unit.scatter(&output, &mut z.view_mut());
            probabilities.push(kept);
        }
        let shape = self.decoder.attention_shape(at.layer);
        let dims = [z.nrows(), shape.query_heads, shape.head_dim];
        let output = Tensor::from_vec(numbers(&mut z).to_vec(), &dims)?;
        self.saved.push(SavedAttention { q, k, v, z, probabilities });
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
    let of_unit = |(unit, kept): (&Unit<'_>, &Option<Parts>)| unit.backward(saved, kept.as_ref(), dz);
    let gradients: Vec<[Array2<f32>; 3]> = units.par_iter().zip(&saved.probabilities).map(of_unit).collect();
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

#[cfg(test)]
mod tests;
