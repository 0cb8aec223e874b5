//! Keys and values of rows that do not run through the layers, projected from one residual stream.

use super::layer::Projection;
use super::{Decoder, RowsOnDevice, SequenceRows};
use crate::hooks::{Hooks, Site};
use crate::tensor::Tensor;
use crate::weights::LinearMode;
use crate::{ComputeType, Result};
use std::ops::Range;

/// Layers whose keys and values are projected from one residual stream.
#[derive(Clone)]
pub struct KeysValuesOf<'a> {
    /// The layers.
    pub layers: Range<usize>,
    /// The layer whose attention norm all of them share; `None`: each has its own.
    pub shared_norm: Option<usize>,
    /// Most tokens that the sequence will have.
    pub sequence_len: usize,
    /// As in [`SequenceRows`].
    pub first_decode: usize,
    /// As in [`super::Pass`].
    pub compute: ComputeType,
    /// As in [`super::Pass`].
    pub rows_on_device: Option<&'a RowsOnDevice>,
}

impl Decoder {
    /// The residual stream `x [rows, d]` as attention of a layer reads it, for products in `compute`; no hook point.
    ///
    /// # Errors
    /// [`crate::Error::UnknownLayer`]; [`crate::Error::Misuse`] where `x` is not `[rows, d]`.
    pub fn attention_norm(&self, layer: usize, x: &Tensor, compute: ComputeType) -> Result<Tensor> {
        self.check_residual(x, x.rows())?;
        let compute = self.compute_type(compute);
        match &self.layer(layer)?.attention_norm {
            Some(norm) => norm.forward(x, Some(compute)),
            None => x.for_products(compute),
        }
    }

    /// K and V of rows at `positions`, projected from their residual stream `x [rows, d]`; `keep` gets each layer's, as
    /// [`super::Attend`] would.
    ///
    /// # Errors
    /// [`crate::Error::UnknownLayer`]; [`crate::Error::Misuse`] where `x` is not `[rows, d]`; whatever `keep` returns.
    pub fn project_keys_values(
        &self,
        x: &Tensor,
        positions: &[usize],
        of: KeysValuesOf<'_>,
        hooks: &mut Hooks<'_>,
        keep: &mut dyn FnMut(usize, [&Tensor; 2]) -> Result<()>,
    ) -> Result<()> {
        self.check_residual(x, positions.len())?;
        let on_device = self.positions_on_device(positions, of.rows_on_device)?;
        let KeysValuesOf { sequence_len, first_decode, .. } = of;
        let sequence = [SequenceRows { rows: positions.len(), sequence_len, first_decode }];
        let adapted = self.adapted_rows(positions, &sequence);
        let angles = self.angles(positions, on_device.as_ref(), &sequence)?;
        let compute = self.compute_type(of.compute);
        // A single prompt row gets the bits that it gets among others.
        let rows = Some(self.product_rows(&sequence, positions)?);
        let shape = [positions.len(), self.config.kv_heads, self.config.head_dim];
        let shared = of.shared_norm.map(|layer| self.attention_norm(layer, x, compute)).transpose()?;
        for layer in of.layers {
            let weights = self.layer(layer)?;
            let normed = match &shared {
                Some(shared) => shared,
                None => &self.attention_norm(layer, x, compute)?,
            };
            let mode = LinearMode { compute, rows, adapted: adapted.as_deref() };
            let [k, v] = Projection::forward_together([&weights.key, &weights.value], normed, mode)?;
            let k = hooks.visit(layer, Site::Key, positions, k.reshape(&shape)?)?;
            let v = hooks.visit(layer, Site::Value, positions, v.reshape(&shape)?)?;
            let k = weights.key_norm(k)?;
            let k = match angles.of_layer(layer) {
                Some(rotary) => rotary.apply(&k)?,
                None => k,
            };
            let k = hooks.visit(layer, Site::RotatedKey, positions, k)?;
            keep(layer, [&k, &v])?;
        }
        Ok(())
    }
}
