//! Attention of a batch, forward and backward: rows read their sequence's prefix and, causally, its own rows.

use super::product::add_product;
use super::{Rows, TrainingSequence};
use crate::decoder::{Attend, Location};
use crate::hooks::Hooks;
use crate::policy::{Anchors, Visibility};
use crate::tensor::{Tensor, with_f32};
use crate::{Decoder, Error, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;
use layerscope_kernels::AttentionShape;
use layerscope_kernels::elementwise::{soft_cap, softmax, softmax_gradient};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, CowArray, Ix2, s};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Query rows of a sequence that are multiplied together. Where a sequence has more, probabilities are computed again for gradients.
const TILE_ROWS: usize = 64;

/// Keys and values of a layer that are constants.
#[derive(Debug, Clone, Default)]
pub struct LayerKeys {
    /// Positions, ascending.
    pub positions: Vec<usize>,
    /// Keys, rotated: `[kv_heads, positions, head_dim]`.
    pub keys: Numbers,
    /// Values, of the same shape.
    pub values: Numbers,
    /// KV heads.
    pub kv_heads: usize,
}

impl LayerKeys {
    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.bytes().len() + self.values.bytes().len()
    }
}

/// Numbers in the type that a session stores keys in.
#[derive(Debug, Clone)]
pub enum Numbers {
    /// Four bytes each.
    F32(Vec<f32>),
    /// Two bytes each.
    F16(Vec<f16>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::F32(vec![])
    }
}

impl Numbers {
    /// In f32.
    fn read(&self, range: Range<usize>) -> Cow<'_, [f32]> {
        match self {
            Self::F32(numbers) => Cow::Borrowed(numbers.get(range).unwrap_or_default()),
            Self::F16(numbers) => {
                let numbers = numbers.get(range).unwrap_or_default();
                let mut wide = vec![0.0; numbers.len()];
                numbers.convert_to_f32_slice(&mut wide);
                Cow::Owned(wide)
            }
        }
    }

    /// Runs of `len` numbers, by index, one after the other.
    #[must_use]
    pub fn select(&self, len: usize, runs: &[usize]) -> Self {
        let range = |run: &usize| run * len..(run + 1) * len;
        match self {
            Self::F32(numbers) => {
                Self::F32(runs.iter().flat_map(|run| &numbers[range(run)]).copied().collect())
            }
            Self::F16(numbers) => {
                Self::F16(runs.iter().flat_map(|run| &numbers[range(run)]).copied().collect())
            }
        }
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their bytes as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(numbers) => bytemuck::cast_slice(numbers),
            Self::F16(numbers) => bytemuck::cast_slice(numbers),
        }
    }

    /// As many numbers of the same type from [`Self::bytes`].
    #[must_use]
    pub fn with_bytes(&self, bytes: &[u8]) -> Self {
        match self {
            Self::F32(_) => {
                Self::F32(bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
            }
            Self::F16(_) => {
                Self::F16(bytes.as_chunks().0.iter().map(|bytes| f16::from_ne_bytes(*bytes)).collect())
            }
        }
    }
}

/// What the rows of a sequence read beside each other, by layer; none where they read nothing else.
pub type Prefix = Vec<Arc<LayerKeys>>;

/// Queries, keys and values of a layer `[rows, heads · head_dim]`, and the probabilities of each sequence and KV head.
pub(super) struct SavedAttention {
    pub(super) q: Array2<f32>,
    pub(super) k: Array2<f32>,
    pub(super) v: Array2<f32>,
    /// Attention-weighted values.
    pub(super) z: Array2<f32>,
    /// Probabilities `[group · rows, prefix + rows]` of each unit, the rows of one query head after the other; `None` where they are
    /// computed again.
    probabilities: Vec<Option<Array2<f32>>>,
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
                prefix: sequence
                    .prefix
                    .get(layer)
                    .map(Arc::as_ref)
                    .filter(|prefix| !prefix.positions.is_empty()),
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
    /// `[group · rows, prefix + own]`.
    probabilities: CowArray<'a, f32, Ix2>,
    /// ∂capped/∂score where scores are soft-capped, of the same shape.
    slopes: Option<Array2<f32>>,
}

/// Keys and values that a unit's rows read.
struct UnitKeys<'a> {
    /// Of the prefix, `[positions, head_dim]`.
    prefix: Option<[Cow<'a, [f32]>; 2]>,
    /// Of the rows.
    own: [ArrayView2<'a, f32>; 2],
    head_dim: usize,
}

impl UnitKeys<'_> {
    fn prefix(&self, which: usize) -> Option<ArrayView2<'_, f32>> {
        let numbers = &self.prefix.as_ref()?[which];
        ArrayView2::from_shape((numbers.len() / self.head_dim, self.head_dim), numbers).ok()
    }

    /// Those of the first own rows.
    fn own(&self, which: usize, rows: usize) -> ArrayView2<'_, f32> {
        self.own[which].slice(s![..rows, ..])
    }
}

const KEYS: usize = 0;
const VALUES: usize = 1;

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
        let prefix = self.prefix.map(|prefix| {
            let len = prefix.positions.len() * dim;
            let range = self.kv_head * len..(self.kv_head + 1) * len;
            [prefix.keys.read(range.clone()), prefix.values.read(range)]
        });
        UnitKeys { prefix, own: [of_head(k), of_head(v)], head_dim: dim }
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
        let prefix = keys.prefix(KEYS);
        let before = prefix.map_or(0, |prefix| prefix.nrows());
        let mut scores = Array2::zeros((q.nrows(), before + rows.end));
        let (mut of_prefix, mut of_own) = scores.view_mut().split_at(Axis(1), before);
        if let Some(prefix) = prefix {
            add_product(&mut of_prefix, &q.view(), &prefix.t(), self.shape.scale);
        }
        add_product(&mut of_own, &q.view(), &keys.own(KEYS, rows.end).t(), self.shape.scale);
        let positions = self.prefix.iter().flat_map(|prefix| &prefix.positions);
        let positions: Vec<usize> = positions.chain(&self.positions[..rows.end]).copied().collect();
        // The prefix is before all rows: nothing of it is hidden but by a window or a policy.
        let masked =
            if self.shape.window.is_some() || self.self_only.is_some() { 0 } else { before + rows.start };
        let mut slopes = self.shape.soft_cap.map(|_| Array2::zeros(scores.raw_dim()));
        for (index, scores) in numbers(&mut scores).chunks_exact_mut(positions.len()).enumerate() {
            if let (Some(cap), Some(slopes)) = (self.shape.soft_cap, &mut slopes) {
                soft_cap(scores, cap);
                // The derivative of cap · tanh(s / cap).
                let slope = |score: &f32| 1.0 - (score / cap) * (score / cap);
                slopes.row_mut(index).iter_mut().zip(&*scores).for_each(|(to, score)| *to = slope(score));
            }
            let row = self.positions[rows.start + index % rows.len()];
            for (score, &key) in scores[masked..].iter_mut().zip(&positions[masked..]) {
                if !self.sees(row, key) {
                    *score = f32::NEG_INFINITY;
                }
            }
            softmax(scores);
        }
        Tile { rows, q, probabilities: scores.into(), slopes }
    }

    /// The unit's output `[group · rows, head_dim]`, and its probabilities where they are kept.
    fn forward(&self, [q, k, v]: [&Array2<f32>; 3]) -> (Array2<f32>, Option<Array2<f32>>) {
        let keys = self.keys(k, v);
        let mut z = Array2::zeros((self.group() * self.rows.len(), self.shape.head_dim));
        let mut kept = None;
        for rows in self.tiles() {
            let tile = self.tile(rows, q, &keys);
            let (of_prefix, of_own) =
                tile.probabilities.view().split_at(Axis(1), tile.probabilities.ncols() - tile.rows.end);
            let mut output = Array2::zeros(tile.q.raw_dim());
            if let Some(values) = keys.prefix(VALUES) {
                add_product(&mut output.view_mut(), &of_prefix, &values, 1.0);
            }
            add_product(&mut output.view_mut(), &of_own, &keys.own(VALUES, tile.rows.end), 1.0);
            self.place(&tile.rows, &output, &mut z);
            kept = Some(tile).filter(|tile| tile.rows.len() == self.rows.len() && tile.slopes.is_none());
        }
        (z, kept.map(|tile| tile.probabilities.into_owned()))
    }

    /// Gradients of the unit's queries, keys and values from that of the output.
    fn backward(
        &self,
        saved: &SavedAttention,
        probabilities: Option<&Array2<f32>>,
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
                    Tile { rows, q, probabilities: kept.view().into(), slopes: None }
                }
                None => self.tile(rows, &saved.q, &keys),
            };
            let (z, dz) = (self.of_group(&saved.z.view(), &tile.rows), self.of_group(&dz.view(), &tile.rows));
            let mut ds = self.score_gradients(&tile, &keys, &z, &dz);
            let before = ds.ncols() - tile.rows.end;
            let (of_prefix, of_own) = ds.view_mut().split_at(Axis(1), before);
            let mut of_tile = Array2::zeros(tile.q.raw_dim());
            if let Some(prefix) = keys.prefix(KEYS) {
                add_product(&mut of_tile.view_mut(), &of_prefix.view(), &prefix, 1.0);
            }
            add_product(&mut of_tile.view_mut(), &of_own.view(), &keys.own(KEYS, tile.rows.end), 1.0);
            self.place(&tile.rows, &of_tile, &mut dq);
            let read = s![..tile.rows.end, ..];
            add_product(&mut dk.slice_mut(read), &of_own.t(), &tile.q.view(), 1.0);
            let own = tile.probabilities.slice(s![.., before..]);
            add_product(&mut dv.slice_mut(read), &own.t(), &dz.view(), 1.0);
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
    ) -> Array2<f32> {
        let p = &tile.probabilities;
        let mut ds = Array2::zeros(p.raw_dim());
        let (mut of_prefix, mut of_own) = ds.view_mut().split_at(Axis(1), p.ncols() - tile.rows.end);
        if let Some(values) = keys.prefix(VALUES) {
            add_product(&mut of_prefix, &dz.view(), &values.t(), 1.0);
        }
        add_product(&mut of_own, &dz.view(), &keys.own(VALUES, tile.rows.end).t(), 1.0);
        let dots = (z * dz).sum_axis(Axis(1));
        let (columns, p) = (p.ncols(), p.as_standard_layout());
        let rows = p.as_slice().unwrap_or_default().chunks_exact(columns);
        for ((ds, p), dot) in numbers(&mut ds).chunks_exact_mut(columns).zip(rows).zip(dots) {
            softmax_gradient(p, ds, dot, self.shape.scale);
        }
        if let Some(slopes) = &tile.slopes {
            ds *= slopes;
        }
        ds
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
    let of_unit = |(unit, kept): (&Unit<'_>, &Option<Array2<f32>>)| unit.backward(saved, kept.as_ref(), dz);
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
