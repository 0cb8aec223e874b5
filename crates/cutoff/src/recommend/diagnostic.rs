//! The cutoff that the diagnostics alone would suggest, as papers choose it: from where the prompt is read and where
//! trajectories straighten. It is based on correlations and stands beside the exact frontier, never in its place.
//!
//! With every figure averaged over prompts,
//!
//! - reading ends after the last layer whose selectivity is more than 10 % of its maximum over layers (prompt mass
//!   instead, where selectivity is defined nowhere): cutoff = that layer + 1;
//! - straightening s(ℓ) = curvature after layer ℓ less that after layer 0. It levels off at the first layer where s(ℓ)
//!   has reached 90 % of its minimum, if that is at least 1° down: cutoff = that layer + 1;
//! - the diagnostic cutoff is the larger of the two: the prompt is needed until both are over.

use layerscope_diagnostics::record::PromptSummary;
use layerscope_diagnostics::summary::mean;
use schemars::JsonSchema;
use serde::Serialize;

use super::evidence::Evidence;

/// Share of the maximum above which a layer still reads the prompt.
const READING_SHARE: f64 = 0.1;
/// Share of the full straightening at which it has levelled off.
const STRAIGHTENED_SHARE: f64 = 0.9;
/// Least straightening that counts as such, degrees.
const LEAST_STRAIGHTENING_DEG: f64 = 1.0;

/// What the diagnostics suggest; each is null where its figures show no such layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiagnosticCut {
    /// The larger of the two cutoffs below.
    pub l_cut: Option<usize>,
    /// Where reading the prompt ends.
    pub reading_l_cut: Option<usize>,
    /// The figure that says so: `selectivity`, or `prompt_mass`.
    pub reading_figure: &'static str,
    /// Where straightening levels off.
    pub straightening_l_cut: Option<usize>,
}

/// Reads the cutoff off the diagnostics.
pub(super) fn diagnostic_cut(evidence: Evidence<'_>) -> DiagnosticCut {
    let selectivity = over_prompts(evidence, evidence.layers(), |prompt| &prompt.layers.selectivity);
    let (figure, reading) = if selectivity.iter().any(|value| value.is_finite()) {
        ("selectivity", selectivity)
    } else {
        ("prompt_mass", prompt_mass(evidence))
    };
    let curvature = over_prompts(evidence, evidence.layers().saturating_add(1), |prompt| {
        &prompt.layers.curvature_prompt_deg
    });
    let reading_l_cut = reading_ends(&reading);
    let straightening_l_cut = straightening_levels_off(&curvature);
    DiagnosticCut {
        l_cut: reading_l_cut.max(straightening_l_cut),
        reading_l_cut,
        reading_figure: figure,
        straightening_l_cut,
    }
}

/// Mean prompt mass over prompts, length L.
pub(super) fn prompt_mass(evidence: Evidence<'_>) -> Vec<f64> {
    over_prompts(evidence, evidence.layers(), |prompt| &prompt.layers.prompt_mass)
}

fn over_prompts(
    evidence: Evidence<'_>,
    len: usize,
    figure: impl Fn(&PromptSummary) -> &Vec<f64>,
) -> Vec<f64> {
    let at = |index: usize| {
        let values = evidence.prompts.iter().map(&figure);
        mean(values.map(|values| values.get(index).copied().unwrap_or(f64::NAN)))
    };
    (0..len).map(at).collect()
}

fn reading_ends(reading: &[f64]) -> Option<usize> {
    let most = reading.iter().copied().fold(f64::NAN, f64::max);
    if most.is_nan() || most <= 0.0 {
        return None;
    }
    let last = reading.iter().rposition(|value| *value > READING_SHARE * most)?;
    Some(last + 1)
}

fn straightening_levels_off(curvature: &[f64]) -> Option<usize> {
    let after_blocks = curvature.get(1..)?;
    let first = *after_blocks.first()?;
    let straightening: Vec<f64> = after_blocks.iter().map(|degrees| degrees - first).collect();
    let most = straightening.iter().copied().fold(f64::NAN, f64::min);
    if most.is_nan() || most > -LEAST_STRAIGHTENING_DEG {
        return None;
    }
    let reached = straightening.iter().position(|value| *value <= STRAIGHTENED_SHARE * most)?;
    Some(reached + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_ends_after_the_last_layer_above_a_tenth() {
        assert_eq!(reading_ends(&[0.1, 0.5, 0.2, 0.06, 0.05, 0.01]), Some(4));
        assert_eq!(reading_ends(&[f64::NAN, 0.5, f64::NAN]), Some(2));
        assert_eq!(reading_ends(&[0.0, 0.0]), None);
        assert_eq!(reading_ends(&[f64::NAN]), None);
        assert_eq!(reading_ends(&[]), None);
    }

    #[test]
    fn straightening_levels_off_at_nine_tenths() {
        // The embedding output, index 0, does not count.
        assert_eq!(straightening_levels_off(&[10.0, 90.0, 80.0, 71.5, 70.0, 85.0]), Some(3));
        assert_eq!(straightening_levels_off(&[10.0, 90.0, 89.5, 95.0]), None);
        assert_eq!(straightening_levels_off(&[90.0]), None);
        assert_eq!(straightening_levels_off(&[f64::NAN; 4]), None);
    }
}
