//! Reductions over a row, written so that they vectorise.

const LANES: usize = 16;

/// The largest element; −∞ for an empty row.
#[inline(always)]
pub(crate) fn row_max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| m.max(x))
}
