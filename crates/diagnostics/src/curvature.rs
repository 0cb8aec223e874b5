//! Curvature of a residual-stream trajectory (Hénaff et al. 2021; Hosseini & Fedorenko 2023).
//!
//! With x_k the residual stream at position k and v_k = (x_{k+1} − x_k)/‖·‖, the curvature is the mean over k of
//! arccos(v_k · v_{k+1}), in degrees.

use layerscope_kernels::trajectory::angle_sum;

/// Running mean of the angle between successive steps; rows come in order, in any number of pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curvature {
    /// The last two rows, or as many as there were.
    last_rows: Vec<f32>,
    angle_sum: f64,
    angles: usize,
}

impl Curvature {
    /// Adds rows `[rows, width]`.
    pub(crate) fn extend(&mut self, rows: &[f32], width: usize) {
        let mut joined = std::mem::take(&mut self.last_rows);
        joined.extend_from_slice(rows);
        self.angle_sum += angle_sum(&joined, width);
        self.angles += (joined.len() / width).saturating_sub(2);
        let kept = joined.len().min(2 * width);
        self.last_rows = joined.split_off(joined.len() - kept);
    }

    /// Mean angle in degrees; NaN for fewer than three rows.
    pub(crate) fn degrees(&self) -> f64 {
        (self.angle_sum / self.angles as f64).to_degrees()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_angles() {
        let mut straight = Curvature::default();
        straight.extend(&[0.0, 0.0, 1.0, 2.0, 3.0, 6.0, 3.5, 7.0], 2);
        assert!(straight.degrees().abs() < 1e-6);
        let mut square = Curvature::default();
        square.extend(&[0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 2);
        assert!((square.degrees() - 90.0).abs() < 1e-9);
    }

    #[test]
    fn pieces_make_no_difference() {
        let rows: Vec<f32> = (0..70).map(|i| ((i * i * 31 % 97) as f32).sin()).collect();
        let mut whole = Curvature::default();
        whole.extend(&rows, 7);
        let mut pieces = Curvature::default();
        for piece in [&rows[..7], &rows[7..28], &rows[28..]] {
            pieces.extend(piece, 7);
        }
        assert!((whole.degrees() - pieces.degrees()).abs() < 1e-9);
    }

    #[test]
    fn two_rows_have_no_curvature() {
        let mut short = Curvature::default();
        short.extend(&[1.0, 2.0, 3.0, 4.0], 2);
        assert!(short.degrees().is_nan());
    }
}
