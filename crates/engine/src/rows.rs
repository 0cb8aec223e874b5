//! Rows on their way through the decoder.

use crate::tensor::Tensor;
use crate::{Error, Result};

/// Rows of the residual stream.
#[derive(Clone)]
pub struct ResidualRows {
    /// `[rows, d]`.
    pub x: Tensor,
    /// Position of each row.
    pub positions: Vec<usize>,
}

impl ResidualRows {
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Some of them that follow each other.
    pub(crate) fn narrow(&self, first: usize, len: usize) -> Result<Self> {
        Ok(Self { x: self.x.narrow(first, len)?, positions: self.positions[first..first + len].to_vec() })
    }

    /// So many of the first, and the others.
    pub(crate) fn split(&self, first: usize) -> Result<(Self, Self)> {
        Ok((self.narrow(0, first)?, self.narrow(first, self.len() - first)?))
    }

    /// Those for which `wanted` has a true; `None` where it has none.
    pub(crate) fn select(&self, wanted: &[bool]) -> Result<Option<Self>> {
        if wanted.iter().all(|wanted| *wanted) {
            return self.narrow(0, self.len()).map(Some);
        }
        let rows: Vec<u32> =
            (0u32..).zip(wanted).filter(|(_, wanted)| **wanted).map(|(row, _)| row).collect();
        if rows.is_empty() { Ok(None) } else { self.rows(&rows).map(Some) }
    }

    /// Those of some indices, in their order.
    pub(crate) fn rows(&self, rows: &[u32]) -> Result<Self> {
        let positions = rows.iter().map(|&row| self.positions[row as usize]).collect();
        Ok(Self { x: self.x.select(rows)?, positions })
    }

    /// Bytes of the residual streams.
    pub(crate) fn bytes(&self) -> usize {
        self.x.elements() * size_of::<f32>()
    }

    /// All by ascending position; `None` where there are none.
    pub(crate) fn in_order(pieces: Vec<Self>) -> Result<Option<Self>> {
        if pieces.is_empty() {
            return Ok(None);
        }
        let rows = Self::joined(pieces)?;
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by_key(|&row| rows.positions[row as usize]);
        rows.rows(&order).map(Some)
    }

    /// All, one after the other.
    pub(crate) fn joined(mut pieces: Vec<Self>) -> Result<Self> {
        match pieces.len() {
            0 => Err(Error::failure("no row is left; please report this")),
            1 => Ok(pieces.remove(0)),
            _ => {
                let x = Tensor::cat(&pieces.iter().map(|rows| &rows.x).collect::<Vec<_>>())?;
                Ok(Self { x, positions: pieces.into_iter().flat_map(|rows| rows.positions).collect() })
            }
        }
    }
}
