//! Tick positions.

/// The smallest of 1, 2, 5, 10 … and their tenths that is at least `least`.
pub fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let scale = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * scale);
    steps.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(least)
}

/// Round values from `lower` to `upper`, at most `most` of them.
pub(crate) fn ticks(lower: f64, upper: f64, most: usize) -> Vec<f64> {
    let step = round_step((upper - lower) / most.max(1) as f64);
    let first = (lower / step - 1e-9).ceil();
    // Multiplied, not summed: 3 · 0.1 is closer to 0.3 than 0.1 + 0.1 + 0.1.
    let values = (0..=most).map(|index| (first + index as f64) * step);
    values.take_while(|value| *value <= upper + step * 1e-9).collect()
}

/// Integers from `first` to `last`, at least `least` points apart, with `per_unit` points per unit.
pub(crate) fn whole_ticks(first: usize, last: usize, per_unit: f64, least: f64) -> Vec<usize> {
    let step = round_step((least / per_unit).max(1.0)).ceil() as usize;
    (first.next_multiple_of(step)..=last).step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_ticks() {
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(-7.0, 12.0, 4), [-5.0, 0.0, 5.0, 10.0]);
        assert_eq!(whole_ticks(0, 29, 10.0, 26.0), [0, 5, 10, 15, 20, 25]);
        assert_eq!(whole_ticks(1, 4, 100.0, 26.0), [1, 2, 3, 4]);
        assert_eq!([0.0, f64::NAN].map(round_step), [1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn ticks_lie_within_and_are_few(lower in -1e3..1e3_f64, width in 1e-6..1e4_f64, most in 1_usize..12) {
            let ticks = ticks(lower, lower + width, most);
            prop_assert!(ticks.len() <= most + 1);
            for tick in ticks {
                prop_assert!(tick >= lower - width * 1e-6 && tick <= lower + width * (1.0 + 1e-6));
            }
        }
    }
}
