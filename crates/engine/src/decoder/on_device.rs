//! Rows whose tokens and positions are in a GPU's memory.

use super::rotary::Angles;
use super::{Decoder, SequenceRows};
use crate::tensor::Tensor;
use crate::{Device, Error, Result};
use layerscope_kernels::cuda::Buffer;
use std::sync::Arc;

/// Tokens and positions of rows in a GPU's memory. Kernels read them when they run, not when they are queued.
#[derive(Clone)]
pub struct RowsOnDevice {
    /// Position of each row, i32.
    pub positions: Arc<Buffer>,
    /// Token of each row, u32.
    pub tokens: Arc<Buffer>,
}

impl Decoder {
    /// [`Self::embed`] of `count` rows, whose tokens are within the vocabulary; without hooks.
    pub(crate) fn embed_on_device(&self, rows: &RowsOnDevice, count: usize) -> Result<Tensor> {
        let x = self.embedding.forward_on_device(&rows.tokens, count)?;
        let x = x.scaled(self.config.embedding_scale)?;
        let Some(position_embedding) = &self.position_embedding else { return Ok(x) };
        x.add(&position_embedding.forward_on_device(&rows.positions, count)?)
    }

    /// Positions in the memory of the GPU that the model runs on, if it runs on one.
    pub(crate) fn positions_on_device(
        &self,
        positions: &[usize],
        given: Option<&RowsOnDevice>,
    ) -> Result<Option<Arc<Buffer>>> {
        match (&self.device, given) {
            (Device::Cpu, _) => Ok(None),
            (_, Some(rows)) if rows.positions.bytes() < positions.len() * size_of::<i32>() => {
                Err(Error::misuse("there are fewer positions on the GPU than rows"))
            }
            (_, Some(rows)) => Ok(Some(Arc::clone(&rows.positions))),
            (Device::Cuda(device), None) => {
                let positions: Vec<i32> = positions.iter().map(|&position| position as i32).collect();
                Ok(Some(Arc::new(device.upload(&positions)?)))
            }
        }
    }

    /// Rotary angles of rows at `positions`.
    pub(super) fn angles(
        &self,
        positions: &[usize],
        on_device: Option<&Arc<Buffer>>,
        sequences: &[SequenceRows],
    ) -> Result<Angles<'_>> {
        match on_device {
            None => Ok(self.rotary.angles(positions, sequences)),
            Some(positions) => self.rotary.angles_on_device(Arc::clone(positions), sequences),
        }
    }
}
