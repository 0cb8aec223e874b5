//! A decoder with an adapter beside its weights.

use super::layer::Projection;
use super::{Decoder, SequenceRows};
use crate::adapter::{Adapter, AdapterRows, LowRank, Target};
use crate::tensor::Tensor;
use crate::training::Dropout;
use crate::weights::{Linear, LinearCall, LinearMode};
use crate::{Device, Error, Result};
use layerscope_kernels::matmul::ProductRows;
use std::sync::Arc;

/// A, unless it is the identity, and B times the scale.
#[derive(Clone)]
pub(crate) struct Addition {
    a: Option<Linear>,
    b: Linear,
    /// While it is trained: what is dropped of x, and the matrix that this is of.
    pub(crate) dropout: Option<(Dropout, (usize, Target))>,
}

impl Addition {
    fn new(matrix: &LowRank, dropout: Option<(Dropout, (usize, Target))>, device: &Device) -> Result<Self> {
        let (columns, rows) = (matrix.columns(), matrix.b.len() / matrix.rank);
        let a = match matrix.is_of_full_rank() {
            true => None,
            false => Some(Linear::from_numbers(matrix.a.clone(), (matrix.rank, columns)).to_device(device)?),
        };
        let b = matrix.b.iter().map(|x| x * matrix.scale).collect();
        Ok(Self { a, b: Linear::from_numbers(b, (rows, matrix.rank)).to_device(device)?, dropout })
    }

    pub(super) fn bytes(&self) -> usize {
        self.a.as_ref().map_or(0, Linear::bytes) + self.b.bytes()
    }

    /// Adds s·B·A·x to `y [rows, out]`, for the adapted of the rows `x [rows, in]`.
    pub(super) fn add_to(&self, y: Tensor, x: &Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        let Some(adapted) = mode.adapted else { return self.added(&y, x, mode) };
        if adapted.is_empty() {
            return Ok(y);
        }
        let rows = mode.rows.map(|rows| {
            let together = adapted.iter().filter(|&&row| (row as usize) < rows.together).count();
            ProductRows { together, alone: adapted.len() - together }
        });
        let mode = LinearMode { rows, ..mode };
        let low = self.low(x.select(adapted)?, mode)?;
        let [more] = Linear::multiply([LinearCall::of(&self.b)], &low, mode)?;
        let mut y = y;
        y.add_weighted_rows(&more, adapted, &vec![1.0; adapted.len()])?;
        Ok(y)
    }

    /// A·x.
    fn low(&self, x: Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        let Some(a) = &self.a else { return Ok(x) };
        let [low] = Linear::multiply([LinearCall::of(a)], &x, mode)?;
        Ok(low)
    }

    fn added(&self, y: &Tensor, x: &Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        let dropped = match self.dropout {
            Some((dropout, matrix)) => {
                let mut numbers = x.to_vec()?;
                dropout.apply(matrix, &mut numbers);
                Some(Tensor::from_vec(numbers, x.dims())?)
            }
            None => None,
        };
        let low = self.low(dropped.unwrap_or_else(|| x.clone()), mode)?;
        let [sum] =
            Linear::multiply([LinearCall { residual: Some(y), ..LinearCall::of(&self.b) }], &low, mode)?;
        Ok(sum)
    }
}

impl Decoder {
    /// The same model with an adapter beside its weights, which both share.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Input`] where the model has an adapter already.
    pub fn with_adapter(&self, adapter: &Adapter) -> Result<Self> {
        self.in_training(adapter, None)
    }

    /// [`Self::with_adapter`] for a step of training, with dropout.
    ///
    /// # Errors
    /// As [`Self::with_adapter`].
    pub fn in_training(&self, adapter: &Adapter, dropout: Option<Dropout>) -> Result<Self> {
        let mut adapted = self.to_adapt(adapter)?;
        for (&(layer, target), matrix) in adapter.matrices() {
            let projection = adapted.projection_mut(layer, target)?;
            let dropout = dropout.map(|dropout| (dropout, (layer, target)));
            projection.addition = Some(Addition::new(matrix, dropout, &self.device)?);
        }
        Ok(adapted)
    }

    /// The same model with an adapter in its weights. The matrices that it adds to are kept in f32, or in bf16 where the others are as
    /// their file has them.
    ///
    /// # Errors
    /// [`Error::Input`] where the adapter acts on decode rows alone, or the model has one already; [`Error::Device`].
    pub fn merged(&self, adapter: &Adapter) -> Result<Self> {
        if adapter.rows == AdapterRows::Decode {
            return Err(Error::input("an adapter of decode rows cannot be merged; leave out --merge"));
        }
        let mut merged = self.to_adapt(adapter)?;
        for (&(layer, target), matrix) in adapter.matrices() {
            let precision = self.precision;
            let projection = merged.projection_mut(layer, target)?;
            projection.weight = projection.weight.plus(matrix, precision)?.to_device(&self.device)?;
        }
        Ok(merged)
    }

    /// The same model, to which an adapter is about to be added.
    fn to_adapt(&self, adapter: &Adapter) -> Result<Self> {
        if self.adapter_rows.is_some() {
            return Err(Error::input("the model has an adapter already; give one"));
        }
        Ok(Self { adapter_rows: Some(adapter.rows), ..self.shared() })
    }

    /// Whether prompts have the same keys and values under this model, with its adapter, as under another: that without it.
    pub fn shares_prompts_with(&self, base: &Self) -> bool {
        self.adapter_rows == Some(AdapterRows::Decode)
            && base.adapter_rows.is_none()
            && Arc::ptr_eq(&self.weights, &base.weights)
            && self.kv == base.kv
    }

    fn projection_mut(&mut self, layer: usize, target: Target) -> Result<&mut Projection> {
        let layers = self.layers.len();
        let weights = self.layers.get_mut(layer).ok_or(Error::UnknownLayer { layer, layers })?;
        let found = weights.projection_mut(target);
        found.ok_or_else(|| Error::input(format!("layer {layer} has no {} to adapt", target.name())))
    }

    /// The rows that the adapter acts on; `None` for all, or where there is no adapter.
    pub(super) fn adapted_rows(&self, positions: &[usize], sequences: &[SequenceRows]) -> Option<Vec<u32>> {
        if self.adapter_rows != Some(AdapterRows::Decode) {
            return None;
        }
        let boundaries =
            sequences.iter().flat_map(|sequence| std::iter::repeat_n(sequence.first_decode, sequence.rows));
        let rows = positions.iter().zip(boundaries).zip(0u32..);
        let adapted: Vec<u32> = rows.filter(|((p, first), _)| *p >= first).map(|(_, row)| row).collect();
        Some(adapted).filter(|adapted| adapted.len() < positions.len())
    }
}
