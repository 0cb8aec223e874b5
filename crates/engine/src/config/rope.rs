//! Rotary position embedding (Su et al. 2021) and the scalings of its frequencies.

use serde::Serialize;
use std::f64::consts::TAU;

/// Rotary position embedding of a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeConfig {
    /// Base θ of the frequencies θ^(−2i/dims).
    pub base: f64,
    /// Number of elements of a head that are rotated, the first ones.
    pub dims: usize,
    /// How frequencies are scaled for longer contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f64),
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above original_context / low_freq_factor are divided.
        low_freq_factor: f64,
        /// Wavelengths below original_context / high_freq_factor are kept.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_context: f64,
    },
    /// YaRN (Peng et al. 2023): a ramp between two numbers of rotations within the original context.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Context length before scaling.
        original_context: f64,
        /// Rotations within the original context above which frequencies are kept.
        beta_fast: f64,
        /// Rotations within the original context below which frequencies are divided.
        beta_slow: f64,
        /// Whether the ramp begins and ends at whole elements.
        whole_elements: bool,
        /// Factor of cos and sin.
        magnitude: f64,
    },
    /// LongRoPE (Ding et al. 2024): factors for short sequences and for long ones, each of length dims / 2.
    Long {
        /// For sequences within the original context.
        short: Vec<f32>,
        /// For longer ones.
        long: Vec<f32>,
        /// Context length before scaling.
        original_context: usize,
        /// Factor of cos and sin.
        magnitude: f64,
    },
    /// A divisor for each frequency, as GGUF files have them; length dims / 2.
    Factors(Vec<f32>),
}

impl RopeConfig {
    /// Angular frequency of each pair of elements, radians per position, in a sequence of at most `sequence_len` tokens;
    /// length `dims / 2`.
    pub fn frequencies(&self, sequence_len: usize) -> Vec<f64> {
        let dims = self.dims as f64;
        let plain = (0..self.dims / 2).map(|i| self.base.powf(-2.0 * i as f64 / dims));
        let divided =
            |factors: &[f32]| plain.clone().zip(factors).map(|(f, &by)| f / f64::from(by)).collect();
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear(factor) => plain.map(|f| f / factor).collect(),
            RopeScaling::Factors(factors) => divided(factors),
            RopeScaling::Long { short, long, original_context, .. } => {
                divided(if sequence_len > *original_context { long } else { short })
            }
            &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => plain
                .map(|f| {
                    let wavelength = TAU / f;
                    if wavelength < original_context / high_freq_factor {
                        f
                    } else if wavelength > original_context / low_freq_factor {
                        f / factor
                    } else {
                        let kept = (original_context / wavelength - low_freq_factor)
                            / (high_freq_factor - low_freq_factor);
                        (1.0 - kept) * f / factor + kept * f
                    }
                })
                .collect(),
            &RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, whole_elements, .. } => {
                // The element whose frequency makes that many rotations within the original context.
                let element =
                    |turns: f64| dims * (original_context / (turns * TAU)).ln() / (2.0 * self.base.ln());
                let (mut first, mut last) = (element(beta_fast), element(beta_slow));
                if whole_elements {
                    (first, last) = (first.floor(), last.ceil());
                }
                (first, last) = (first.max(0.0), last.min(dims - 1.0));
                let width = if last > first { last - first } else { 0.001 };
                plain
                    .enumerate()
                    .map(|(i, f)| {
                        let divided = ((i as f64 - first) / width).clamp(0.0, 1.0);
                        divided * f / factor + (1.0 - divided) * f
                    })
                    .collect()
            }
        }
    }

    /// Factor of cos and sin.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::Long { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }

    /// The context to which YaRN extends the original one, tokens; 0 without YaRN.
    pub(super) fn stretched_context(&self) -> usize {
        match self.scaling {
            RopeScaling::Yarn { factor, original_context, .. } => (factor * original_context) as usize,
            _ => 0,
        }
    }

    /// Why the frequencies cannot be used, if they cannot.
    pub(super) fn problem(&self, head_dim: usize) -> Option<String> {
        if self.dims == 0 || self.dims > head_dim || !self.dims.is_multiple_of(2) {
            return Some(format!("rotary embedding over {} of {head_dim} elements is impossible", self.dims));
        }
        let usable = [1, usize::MAX].into_iter().all(|sequence_len| {
            let frequencies = self.frequencies(sequence_len);
            frequencies.len() == self.dims / 2 && frequencies.iter().all(|f| f.is_finite())
        });
        (!usable || !self.magnitude().is_finite())
            .then(|| "rotary frequencies do not fit the head size".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { base: 500_000.0, dims: 128, scaling }
    }

    #[test]
    fn llama_3_keeps_fast_frequencies_and_divides_slow_ones() {
        let plain = rope(RopeScaling::None).frequencies(1);
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8_192.0,
        };
        let scaled = rope(scaling).frequencies(1);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 8.0).abs() < 1e-15);
        let ratios: Vec<f64> = scaled.iter().zip(&plain).map(|(s, p)| p / s).collect();
        assert!(ratios.windows(2).all(|w| w[0] <= w[1] + 1e-12));
        assert!(ratios.iter().any(|&r| r > 1.5 && r < 7.5));
    }

    #[test]
    fn long_factors_are_for_long_sequences() {
        let scaling = RopeScaling::Long {
            short: vec![1.0; 64],
            long: vec![2.0; 64],
            original_context: 4_096,
            magnitude: 1.1,
        };
        let rope = rope(scaling);
        let (short, long) = (rope.frequencies(4_096), rope.frequencies(4_097));
        assert!(short.iter().zip(&long).all(|(s, l)| *s == 2.0 * l));
    }

    #[test]
    fn what_cannot_be_turned_is_told() {
        let of = |dims| RopeConfig { base: 10_000.0, dims, scaling: RopeScaling::None };
        assert!(of(64).problem(64).is_none() && of(16).problem(64).is_none());
        assert!([0, 3, 66].into_iter().all(|dims| of(dims).problem(64).is_some()));
        let short = RopeConfig { scaling: RopeScaling::Factors(vec![1.0; 3]), ..of(64) };
        assert!(short.problem(64).is_some());
    }
}
