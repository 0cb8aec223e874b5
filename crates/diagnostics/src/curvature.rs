//! Curvature of a residual-stream trajectory (Hénaff et al. 2021; Hosseini & Fedorenko 2023).
//!
//! With x_k the residual stream at position k and v_k = (x_{k+1} − x_k)/‖·‖, the curvature is the mean over k of
//! arccos(v_k · v_{k+1}), in degrees.

use layerscope_engine::{Result, Tensor, with_f32};
use layerscope_kernels::cuda::Buffer;
use layerscope_kernels::trajectory::{angle_sum, cuda};

/// Running mean of the angle between successive steps. Rows arrive in order, in any number of chunks.
#[derive(Default)]
pub(crate) struct Curvature {
    /// The last rows, at most two.
    last_rows: Option<Tensor>,
    angle_sum: f64,
    angles: usize,
    /// On a GPU: sum and number of angles so far.
    on_device: Option<Buffer>,
}

impl Curvature {
    /// Adds rows `[rows, width]`.
    pub(crate) fn extend(&mut self, rows: &Tensor) -> Result<()> {
        let width = rows.elements() / rows.rows().max(1);
        let before = self.last_rows.take();
        match rows.on_device() {
            Some(on_device) => {
                let sums = match self.on_device.take() {
                    Some(sums) => sums,
                    None => on_device.device().upload(&[0f64; 2])?,
                };
                let before = before.as_ref().and_then(Tensor::on_device).map(|tensor| tensor.numbers());
                cuda::curvature(before, on_device.numbers(), width, &sums)?;
                self.on_device = Some(sums);
            }
            None => {
                let joined = joined(before.as_ref(), rows)?;
                self.angle_sum += with_f32(&joined, |rows| angle_sum(rows, width))?;
                self.angles += joined.rows().saturating_sub(2);
            }
        }
        // Copies the few rows, so that the whole chunk can be freed.
        let missing = 2usize.saturating_sub(rows.rows());
        let kept = before.as_ref().map_or(0, Tensor::rows).min(missing);
        let earlier = before.map(|before| before.narrow(before.rows() - kept, kept)).transpose()?;
        let last = rows.narrow(rows.rows().saturating_sub(2), rows.rows().min(2))?;
        self.last_rows = Some(joined(earlier.as_ref().filter(|earlier| earlier.rows() > 0), &last)?);
        Ok(())
    }

    /// Mean angle in degrees; NaN for fewer than three rows.
    pub(crate) fn degrees(&self) -> Result<f64> {
        let (sum, angles) = match &self.on_device {
            None => (self.angle_sum, self.angles as f64),
            Some(sums) => match sums.to_vec::<f64>()?[..] {
                [sum, angles] => (sum, angles),
                _ => (f64::NAN, 0.0),
            },
        };
        Ok((sum / angles).to_degrees())
    }
}

/// Concatenates rows into new memory.
fn joined(before: Option<&Tensor>, rows: &Tensor) -> Result<Tensor> {
    match before {
        Some(before) => Tensor::cat(&[before, rows]),
        None => Tensor::cat(&[rows]),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn degrees(pieces: &[&[f32]], width: usize) -> f64 {
        let mut curvature = Curvature::default();
        for piece in pieces {
            let rows = Tensor::from_vec(piece.to_vec(), &[piece.len() / width, width]).unwrap();
            curvature.extend(&rows).unwrap();
        }
        curvature.degrees().unwrap()
    }

    #[test]
    fn known_angles() {
        assert!(degrees(&[&[0.0, 0.0, 1.0, 2.0, 3.0, 6.0, 3.5, 7.0]], 2).abs() < 1e-6);
        assert!((degrees(&[&[0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]], 2) - 90.0).abs() < 1e-9);
    }

    #[test]
    fn pieces_make_no_difference() {
        let rows: Vec<f32> = (0..70).map(|i| ((i * i * 31 % 97) as f32).sin()).collect();
        let whole = degrees(&[&rows], 7);
        for cuts in [[7, 28], [7, 14], [14, 63]] {
            let pieces = [&rows[..cuts[0]], &rows[cuts[0]..cuts[1]], &rows[cuts[1]..]];
            assert!((whole - degrees(&pieces, 7)).abs() < 1e-9);
        }
    }

    #[test]
    fn two_rows_have_no_curvature() {
        assert!(degrees(&[&[1.0, 2.0, 3.0, 4.0]], 2).is_nan());
    }
}
