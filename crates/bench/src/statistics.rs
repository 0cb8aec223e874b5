//! Mean, deviation and median of repeats.

use layerscope_diagnostics::summary::{mean, median};
use layerscope_diagnostics::undefined::number_or_null;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Times of repeats, seconds. Undefined ones are NaN here and null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// Arithmetic mean.
    #[serde(deserialize_with = "number_or_null")]
    pub mean: f64,
    /// Sample standard deviation (n − 1); NaN of a single repeat.
    #[serde(deserialize_with = "number_or_null")]
    pub std: f64,
    /// Median: the mean of the middle two where there are two.
    #[serde(deserialize_with = "number_or_null")]
    pub median: f64,
    /// What they are of, in order of repeat.
    pub repeats: Vec<f64>,
}

impl Statistics {
    /// Statistics of the finite values; NaN if there are none.
    pub fn of(repeats: Vec<f64>) -> Self {
        let mean = mean(repeats.iter().copied());
        let squares: f64 = repeats.iter().map(|value| (value - mean).powi(2)).sum();
        let std = match repeats.len() {
            0 | 1 => f64::NAN,
            count => (squares / (count - 1) as f64).sqrt(),
        };
        Self { mean, std, median: median(&repeats), repeats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        let statistics = Statistics::of(vec![4.0, 1.0, 4.0, 7.0]);
        assert_eq!((statistics.mean, statistics.median), (4.0, 4.0));
        // Squares of the deviations: 0 + 9 + 0 + 9, over 3.
        assert_eq!(statistics.std, 6.0_f64.sqrt());
        assert_eq!(Statistics::of(vec![9.0, 1.0, 2.0]).median, 2.0);
        let one = Statistics::of(vec![3.0]);
        assert_eq!((one.mean, one.median), (3.0, 3.0));
        assert!(one.std.is_nan());
        assert!(Statistics::of(vec![]).median.is_nan());
    }

    proptest! {
        #[test]
        fn shifting_and_reversing_change_nothing(values in proptest::collection::vec(0.0..10.0_f64, 2..20)) {
            let actual = Statistics::of(values.clone());
            let shifted = Statistics::of(values.iter().rev().map(|value| value + 3.0).collect());
            prop_assert!((shifted.mean - actual.mean - 3.0).abs() < 1e-9);
            prop_assert!((shifted.median - actual.median - 3.0).abs() < 1e-9);
            prop_assert!((shifted.std - actual.std).abs() < 1e-9);
            let below = values.iter().filter(|value| **value < actual.median).count();
            let above = values.iter().filter(|value| **value > actual.median).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
        }
    }
}
