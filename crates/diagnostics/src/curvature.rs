//! Curvature of a residual-stream trajectory (Hénaff et al. 2021; Hosseini & Fedorenko 2023).
//!
//! With x_k the residual stream at position k and v_k = (x_{k+1} − x_k)/‖·‖, the curvature is the mean over k of
//! arccos(v_k · v_{k+1}), in degrees.

/// Running mean of the angle between successive steps; rows come in order, in any number of pieces.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curvature {
    last_row: Vec<f32>,
    /// x_{k+1} − x_k of the last two rows.
    last_step: Vec<f32>,
    angle_sum: f64,
    angles: usize,
}

impl Curvature {
    /// Adds rows `[rows, width]`.
    pub(crate) fn extend(&mut self, rows: &[f32], width: usize) {
        for row in rows.chunks_exact(width) {
            if self.last_row.is_empty() {
                self.last_row = row.to_vec();
                continue;
            }
            let step: Vec<f32> = row.iter().zip(&self.last_row).map(|(x, y)| x - y).collect();
            if !self.last_step.is_empty() {
                let norms = (dot(&step, &step) * dot(&self.last_step, &self.last_step)).sqrt();
                // Two equal rows in a row have no direction; as in the reference they count as a right angle.
                let cosine = if norms > 0.0 { dot(&step, &self.last_step) / norms } else { 0.0 };
                self.angle_sum += cosine.clamp(-1.0, 1.0).acos();
                self.angles += 1;
            }
            self.last_row.copy_from_slice(row);
            self.last_step = step;
        }
    }

    /// Mean angle in degrees; NaN for fewer than three rows.
    pub(crate) fn degrees(&self) -> f64 {
        (self.angle_sum / self.angles as f64).to_degrees()
    }
}

/// Products of f32 are exact in f64; eight sums so that the loop vectorises.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sums.iter().sum::<f64>() + rest
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
        assert_eq!(whole.degrees(), pieces.degrees());
    }

    #[test]
    fn two_rows_have_no_curvature() {
        let mut short = Curvature::default();
        short.extend(&[1.0, 2.0, 3.0, 4.0], 2);
        assert!(short.degrees().is_nan());
    }
}
