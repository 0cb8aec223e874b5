//! Positions of losses and costs in a panel.

use super::TradeOff;
use crate::axis::ticks;
use crate::chart::LEAST_LOGARITHM;
use crate::number::short;

/// Height of the area for 0 below the logarithmic part.
const ZERO: f64 = 30.0;
/// Distance from 0 to the lower end.
const BELOW_ZERO: f64 = 13.0;

/// The vertical axis: logarithmic, with an area for 0 below.
#[derive(Debug, Clone, Copy)]
pub(super) struct LossAxis {
    /// Ends of the logarithmic part, log10.
    ends: [f64; 2],
    /// Whether a loss above 0 is drawn at 0 because it is too small.
    almost_zero: bool,
    top: f64,
    bottom: f64,
}

impl LossAxis {
    /// The axis of all points of a figure; [`Self::between`] sets its position.
    pub(super) fn of(figure: &TradeOff) -> Self {
        let losses = figure.rows.iter().flat_map(|row| &row.points).map(|point| point.loss);
        let (small, large): (Vec<f64>, Vec<f64>) =
            losses.filter(|loss| loss.is_finite()).partition(|loss| *loss < LEAST_LOGARITHM);
        let logarithms = large.iter().map(|loss| loss.log10());
        let (lower, upper) = logarithms
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), level| (low.min(level), high.max(level)));
        let ends = if lower > upper { [-3.0, 0.0] } else { [lower, upper] };
        let air = ((ends[1] - ends[0]) * 0.06).max(0.12);
        let almost_zero = small.iter().any(|loss| *loss > 0.0);
        Self { ends: [ends[0] - air, ends[1] + air], almost_zero, top: 0.0, bottom: 1.0 }
    }

    /// The same axis between two heights.
    pub(super) fn between(self, top: f64, bottom: f64) -> Self {
        Self { top, bottom, ..self }
    }

    /// Height of 0.
    pub(super) fn zero(&self) -> f64 {
        self.bottom - BELOW_ZERO
    }

    /// Height of the axis break.
    pub(super) fn gap(&self) -> f64 {
        self.bottom - ZERO
    }

    pub(super) fn y(&self, loss: f64) -> f64 {
        if loss < LEAST_LOGARITHM {
            return self.zero();
        }
        let share = (loss.log10() - self.ends[0]) / (self.ends[1] - self.ends[0]);
        self.gap() - share * (self.gap() - self.top)
    }

    /// Heights and texts of its ticks, 0 first.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let [lower, upper] = self.ends;
        let decades = lower.floor() as i32..=upper.ceil() as i32;
        let round = |factors: &'static [f64]| -> Vec<f64> {
            let all = decades
                .clone()
                .flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)));
            all.filter(|value| (lower..=upper).contains(&value.log10())).collect()
        };
        let sets: [&'static [f64]; 3] = [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0]];
        let values = sets.into_iter().map(round).find(|values| values.len() > 2);
        let values = values.unwrap_or_else(|| {
            let linear = ticks(10_f64.powf(lower), 10_f64.powf(upper), 4).into_iter();
            linear.filter(|value| *value > 0.0).collect()
        });
        let zero =
            if self.almost_zero { format!("≤{}", short(LEAST_LOGARITHM as f32)) } else { "0".into() };
        let of_values = values.into_iter().map(|value| (self.y(value), short(value as f32)));
        std::iter::once((self.zero(), zero)).chain(of_values).collect()
    }
}

/// Ends of a panel's cost axis: all points of the figure and the reference, with some padding.
pub(super) fn cost_ends(figure: &TradeOff, panel: usize) -> [f64; 2] {
    let points = figure.rows.iter().flat_map(|row| &row.points);
    let costs = points.filter_map(|point| point.at(panel)).map(|[cost, _]| cost);
    let (lower, upper) = costs.fold((1.0_f64, 1.0_f64), |(low, high), cost| (low.min(cost), high.max(cost)));
    let air = ((upper - lower) * 0.09).max(0.03);
    [lower - air, upper + air]
}
