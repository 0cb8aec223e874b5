//! Maps values to positions on a colour bar.

use crate::axis::round_step;
use crate::number::short;
use crate::pyramid::Pyramid;
use serde::{Deserialize, Serialize};

/// The kind of scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ScaleKind {
    /// Linear.
    Linear,
    /// Logarithmic; zero is at the lower end.
    #[default]
    Log,
    /// By percentile: the share of smaller values.
    Percentile,
}

impl ScaleKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Linear, Self::Log, Self::Percentile];

    /// Its displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "Linear",
            Self::Log => "Log",
            Self::Percentile => "Percentile",
        }
    }
}

/// Most decades of a logarithmic bar.
const DECADES: f32 = 5.0;
/// Number of values sampled for percentiles.
pub(crate) const SAMPLED: usize = 1 << 15;
/// Steps between percentiles.
const QUANTILES: usize = 255;

/// A scale fitted to values.
#[derive(Debug, Clone)]
pub struct Scale {
    kind: ScaleKind,
    /// Lower and upper end of the bar, per row or for all rows.
    ends: Vec<(f32, f32)>,
    /// Evenly spaced quantiles, for percentiles.
    quantiles: Vec<f32>,
    per_row: bool,
}

impl Scale {
    /// Fits a scale to a pyramid: each row on its own with `per_row`, and without its first column with `without_first`.
    pub fn fit(kind: ScaleKind, values: &Pyramid, per_row: bool, without_first: bool) -> Self {
        let row_max = values.row_max(without_first);
        let overall = row_max.iter().copied().fold(f32::NAN, f32::max);
        let lower = |upper: f32| match kind {
            ScaleKind::Log => upper * 10_f32.powf(-DECADES),
            _ => 0.0,
        };
        let ends = |upper: f32| {
            let upper = if upper > 0.0 { upper } else { 1.0 };
            (lower(upper), upper)
        };
        let rows = if per_row { row_max.into_iter().map(ends).collect() } else { vec![ends(overall)] };
        let quantiles = match kind {
            ScaleKind::Percentile => quantiles(values.sample(SAMPLED, without_first)),
            _ => vec![],
        };
        Self { kind, ends: rows, quantiles, per_row }
    }

    /// A linear scale from `-limit` to `limit`, for [`crate::ColourMap::RedBlue`]; to 1 where the limit is not above 0.
    pub fn symmetric(limit: f32) -> Self {
        let limit = if limit > 0.0 && limit.is_finite() { limit } else { 1.0 };
        Self { kind: ScaleKind::Linear, ends: vec![(-limit, limit)], quantiles: vec![], per_row: false }
    }

    /// The kind of scale.
    pub fn kind(&self) -> ScaleKind {
        self.kind
    }

    /// Position of a row's value on the bar, in \[0, 1\]; NaN if it is undefined.
    pub fn position(&self, row: usize, value: f32) -> f32 {
        let (lower, upper) = self.ends[if self.per_row { row.min(self.ends.len() - 1) } else { 0 }];
        match self.kind {
            ScaleKind::Linear => ((value - lower) / (upper - lower)).clamp(0.0, 1.0),
            // Zero has no logarithm and is drawn at the lower end.
            ScaleKind::Log if value <= lower => 0.0,
            ScaleKind::Log => ((value / lower).log10() / DECADES).clamp(0.0, 1.0),
            ScaleKind::Percentile if value.is_nan() => f32::NAN,
            ScaleKind::Percentile => {
                let below = self.quantiles.partition_point(|quantile| *quantile < value);
                below as f32 / self.quantiles.len().max(1) as f32
            }
        }
    }

    /// The value at a position on the bar; with one scale per row, that of the first row.
    pub fn value_at(&self, position: f32) -> f32 {
        let (lower, upper) = self.ends[0];
        match self.kind {
            ScaleKind::Linear => lower + position * (upper - lower),
            ScaleKind::Log => lower * 10_f32.powf(position * DECADES),
            ScaleKind::Percentile => {
                let index = (position * self.quantiles.len().saturating_sub(1) as f32).round() as usize;
                self.quantiles.get(index).copied().unwrap_or(f32::NAN)
            }
        }
    }

    /// Positions and texts of the bar's ticks.
    pub fn ticks(&self) -> Vec<(f32, String)> {
        let shares = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
        match self.kind {
            _ if self.per_row && self.kind != ScaleKind::Percentile => match self.kind {
                ScaleKind::Log => {
                    shares.map(|share| (share, format!("1e{:.0}", (share - 1.0) * DECADES))).to_vec()
                }
                _ => shares.map(|share| (share, format!("{share:.1}"))).to_vec(),
            },
            ScaleKind::Percentile => [0.0, 0.25, 0.5, 0.75, 1.0]
                .map(|share| (share, format!("{:.0} %: {}", share * 100.0, short(self.value_at(share)))))
                .to_vec(),
            ScaleKind::Log => {
                let (lower, upper) = self.ends[0];
                let decades = lower.log10().ceil() as i32..=upper.log10().floor() as i32;
                decades.map(|decade| (self.position(0, 10_f32.powi(decade)), power(decade))).collect()
            }
            ScaleKind::Linear => {
                let (lower, upper) = self.ends[0];
                let step = round_step(f64::from(upper - lower) / 5.0) as f32;
                let ticks = (-5..=5).map(|tick: i8| f32::from(tick) * step);
                let ticks = ticks.filter(|value| (lower..=upper).contains(value));
                ticks.map(|value| (self.position(0, value), short(value))).collect()
            }
        }
    }
}

/// The text of a power of ten on an axis.
fn power(decade: i32) -> String {
    match decade {
        -3..=3 => short(10_f32.powi(decade)),
        _ => format!("1e{decade}"),
    }
}

fn quantiles(mut sample: Vec<f32>) -> Vec<f32> {
    sample.sort_unstable_by(f32::total_cmp);
    if sample.is_empty() {
        return vec![];
    }
    let at = |index: usize| sample[(index * (sample.len() - 1)) / QUANTILES];
    (0..=QUANTILES).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pyramid(values: &[f32]) -> Pyramid {
        Pyramid::from_rows(values, 1, values.len())
    }

    #[test]
    fn known_positions() {
        let values = pyramid(&[9.0, 1.0, 0.1, 0.0, 0.001]);
        let linear = Scale::fit(ScaleKind::Linear, &values, false, true);
        assert_eq!([0.0, 0.5, 1.0, 9.0].map(|v| linear.position(0, v)), [0.0, 0.5, 1.0, 1.0]);
        let log = Scale::fit(ScaleKind::Log, &values, false, true);
        assert!((log.position(0, 0.1) - 0.8).abs() < 1e-6);
        assert_eq!(log.position(0, 0.0), 0.0);
        assert!(log.position(0, f32::NAN).is_nan());
        let percentile = Scale::fit(ScaleKind::Percentile, &values, false, false);
        assert!(percentile.position(0, 0.1) < percentile.position(0, 1.0));
        assert!(percentile.position(0, f32::NAN).is_nan());
    }

    #[test]
    fn a_symmetric_scale_has_0_in_its_middle() {
        let scale = Scale::symmetric(1.5);
        assert_eq!([-1.5, 0.0, 0.75, 2.0].map(|value| scale.position(0, value)), [0.0, 0.5, 0.75, 1.0]);
        assert!(scale.position(0, f32::NAN).is_nan());
        let ticks = scale.ticks();
        assert!(ticks.contains(&(0.5, "0".into())) && ticks.len() >= 3, "{ticks:?}");
        assert!(ticks.iter().all(|(position, _)| (0.0..=1.0).contains(position)));
        assert_eq!(Scale::symmetric(f32::NAN).value_at(1.0), 1.0);
    }

    #[test]
    fn rows_have_their_own_ends() {
        let values = Pyramid::from_rows(&[1.0, 2.0, 10.0, 20.0], 2, 2);
        let scale = Scale::fit(ScaleKind::Linear, &values, true, false);
        assert_eq!((scale.position(0, 2.0), scale.position(1, 20.0)), (1.0, 1.0));
    }

    #[test]
    fn nothing_and_zeros_have_a_scale() {
        for kind in ScaleKind::ALL {
            for values in [vec![], vec![f32::NAN; 3], vec![0.0; 3]] {
                let scale = Scale::fit(kind, &pyramid(&values), false, false);
                assert!(scale.position(0, f32::NAN).is_nan());
                assert!(!scale.ticks().is_empty());
            }
        }
    }

    proptest! {
        #[test]
        fn a_larger_value_never_stands_lower(values in proptest::collection::vec(0.0..1.0_f32, 1..40), a in 0.0..1.0_f32, b in 0.0..1.0_f32) {
            let values = pyramid(&values);
            for kind in ScaleKind::ALL {
                let scale = Scale::fit(kind, &values, false, false);
                let (low, high) = (scale.position(0, a.min(b)), scale.position(0, a.max(b)));
                prop_assert!(low <= high && (0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high));
            }
        }
    }
}
