//! A decoder with an adapter beside its weights.

use super::layer::Projection;
use super::{Decoder, SequenceRows};
use crate::adapter::{Adapter, AdapterRows, LowRank, Target};
use crate::tensor::Tensor;
use crate::weights::{Linear, LinearCall, LinearMode};
use crate::{Device, Error, Result};
use layerscope_kernels::matmul::ProductRows;

/// A, and B times the scale.
#[derive(Clone)]
pub(crate) struct Addition {
    a: Linear,
    b: Linear,
}

impl Addition {
    fn new(matrix: &LowRank, device: &Device) -> Result<Self> {
        let (columns, rows) = (matrix.a.len() / matrix.rank, matrix.b.len() / matrix.rank);
        let b = matrix.b.iter().map(|x| x * matrix.scale).collect();
        Ok(Self {
            a: Linear::from_numbers(matrix.a.clone(), (matrix.rank, columns)).to_device(device)?,
            b: Linear::from_numbers(b, (rows, matrix.rank)).to_device(device)?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.a.bytes() + self.b.bytes()
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
        let [low] = Linear::multiply([LinearCall::of(&self.a)], &x.select(adapted)?, mode)?;
        let [more] = Linear::multiply([LinearCall::of(&self.b)], &low, mode)?;
        let mut y = y;
        y.add_weighted_rows(&more, adapted, &vec![1.0; adapted.len()])?;
        Ok(y)
    }

    fn added(&self, y: &Tensor, x: &Tensor, mode: LinearMode<'_>) -> Result<Tensor> {
        let [low] = Linear::multiply([LinearCall::of(&self.a)], x, mode)?;
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
        if self.adapter_rows.is_some() {
            return Err(Error::input("the model has an adapter already; give one"));
        }
        let mut adapted = self.shared();
        adapted.adapter_rows = Some(adapter.rows);
        for (&(layer, target), matrix) in adapter.matrices() {
            let projection = adapted.projection_mut(layer, target)?;
            projection.addition = Some(Addition::new(matrix, &self.device)?);
        }
        Ok(adapted)
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
