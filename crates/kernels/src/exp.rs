//! e^x for f32, written so that loops over it vectorise.

/// e^x for x ≤ 0, and a little above it, within 2 ulp; exactly 0 below −87, so that hidden scores (−∞) weigh nothing; NaN of NaN.
///
/// Cody–Waite reduction x = n·ln 2 + r, |r| ≤ ln 2 / 2, and the Cephes polynomial for e^r.
#[inline(always)]
pub fn exp_nonpositive(x: f32) -> f32 {
    exp::<false>(x)
}

/// [`exp_nonpositive`], with products and sums in one instruction where `FUSED`, which only loops may ask for that are compiled with
/// such an instruction.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    const SMALLEST: f32 = -87.0;
    // Adding 1.5·2²³ rounds to the nearest integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // The two halves of ln 2; the first has few enough bits that n·LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    // Unlike `f32::max`, this keeps NaN; it is one instruction all the same.
    let clamped = if x < SMALLEST { SMALLEST } else { x };
    let times_plus = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    let shifted = times_plus(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = times_plus(n, -LN2_LOW, times_plus(n, -LN2_HIGH, clamped));
    let mut polynomial = 1.987_569_2e-4;
    polynomial = times_plus(polynomial, r, 1.398_199_9e-3);
    polynomial = times_plus(polynomial, r, 8.333_452e-3);
    polynomial = times_plus(polynomial, r, 4.166_579_6e-2);
    polynomial = times_plus(polynomial, r, 1.666_666_5e-1);
    polynomial = times_plus(polynomial, r, 0.5);
    let fraction = times_plus(polynomial * r, r, r) + 1.0;
    let power_of_two = f32::from_bits((shifted.to_bits().wrapping_add(127)) << 23);
    if x < SMALLEST { 0.0 } else { fraction * power_of_two }
}

#[cfg(test)]
mod tests {
    use super::{exp, exp_nonpositive};

    #[test]
    fn agrees_with_f64() {
        for step in 0..=87_000 {
            let x = -(step as f32) / 1000.0;
            let expected = f64::from(x).exp();
            let relative = (f64::from(exp_nonpositive(x)) - expected).abs() / expected;
            assert!(relative < 2.5e-7, "e^{x}: off by {relative:e}");
            let relative = (f64::from(exp::<true>(x)) - expected).abs() / expected;
            assert!(relative < 2.5e-7, "e^{x}, fused: off by {relative:e}");
        }
    }

    #[test]
    fn hidden_scores_weigh_nothing() {
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-100.0), 0.0);
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert!(exp_nonpositive(f32::NAN).is_nan() && exp_nonpositive(-f32::NAN).is_nan());
    }
}
