//! Two runs against each other: two models, two precisions, two prompt sets, before and after tuning.
//!
//! Differences are second less first, per layer, with bootstrap intervals over prompts. Prompts that both runs have (the
//! same id and text) are compared with themselves; runs that share fewer than two are compared as groups. Models of
//! different depth are compared at relative depth: layer ℓ of L stands at (ℓ + ½)/L, and figures are interpolated linearly
//! to the layers of the shallower model.

use layerscope_cutoff::recommend::{Evidence, FrontierSummary, Recommendation, Verdict};
use layerscope_diagnostics::record::{Anchor, KNOCKOUT_KL, PromptSummary};
use layerscope_diagnostics::summary::{Difference, Pairing, differences};
use schemars::JsonSchema;
use serde::Serialize;

/// Figures compared per layer, in the order of their appearance.
pub const COMPARED: [&str; 7] = [
    "prompt_mass",
    "bos_mass",
    "prompt_entropy",
    "selectivity",
    "straightening_prompt_deg",
    "lens_kl",
    KNOCKOUT_KL,
];

/// Fewest prompts that make a comparison prompt by prompt.
const FEWEST_PAIRS: usize = 2;

/// One of the runs.
#[derive(Debug, Clone, Copy)]
pub struct ComparedRun<'a> {
    /// Its manifest and prompts.
    pub evidence: Evidence<'a>,
    /// What is recommended for it; for both runs at the same tolerance and with the same anchor.
    pub recommendation: &'a Recommendation,
}

/// How two runs differ. Undefined figures are NaN here, which serde_json writes as null.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Comparison {
    /// How prompts were compared.
    pub pairing: Pairing,
    /// Prompts of the first and of the second run that it is based on.
    pub prompts: [usize; 2],
    /// Layers that differences are given for: those of the shallower model.
    pub layers: usize,
    /// Whether the models differ in depth, so that layers are compared at relative depth.
    pub relative_depth: bool,
    /// The figures of [`COMPARED`].
    pub figures: Vec<FigureDifference>,
    /// Mean KL by cutoff; of models of different depth, at relative depth (cutoff c of L at c/L).
    pub frontier_kl: Vec<Difference>,
    /// What the two recommendations have in common.
    pub agreement: Agreement,
}

/// How a figure differs, layer by layer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FigureDifference {
    /// Its name.
    pub figure: &'static str,
    /// Second less first, a difference for each layer.
    pub layers: Vec<Difference>,
}

/// What two recommendations have in common.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Agreement {
    /// Recommended cutoffs.
    pub l_cut: [usize; 2],
    /// Layers.
    pub layers: [usize; 2],
    /// Whether the two lie at most one layer of the shallower model apart, and both or neither cut.
    pub agree: bool,
    /// Cutoff of the other run's model at the depth of each run's own.
    pub transferred: [usize; 2],
    /// Mean KL in the other run at that cutoff, nats: what each recommendation costs there.
    pub transferred_kl: [f64; 2],
}

/// Compares two runs.
pub fn compare(first: ComparedRun<'_>, second: ComparedRun<'_>) -> Comparison {
    let anchor = first.recommendation.anchor;
    let (pairing, chosen) = pair(first.evidence.prompts, second.evidence.prompts);
    let depths = [first.evidence.layers(), second.evidence.layers()];
    let layers = depths[0].min(depths[1]);
    let difference = |of: &dyn Fn(&PromptSummary) -> Vec<f64>| {
        let sides = [0, 1].map(|side| chosen[side].iter().map(|prompt| of(prompt)).collect::<Vec<_>>());
        let [first, second] = [0, 1].map(|side| sides[side].iter().map(Vec::as_slice).collect::<Vec<_>>());
        differences(&first, &second, pairing)
    };
    let figures = COMPARED.iter().map(|figure| FigureDifference {
        figure,
        layers: difference(&|prompt| at_depths(&prompt.by_layer(figure), layers)),
    });
    let frontier_kl = difference(&|prompt| {
        let kl: Vec<f64> = prompt.frontier_of(anchor).iter().map(|divergence| divergence.kl).collect();
        at_cutoffs(&kl, layers)
    });
    Comparison {
        pairing,
        prompts: [chosen[0].len(), chosen[1].len()],
        layers,
        relative_depth: depths[0] != depths[1],
        figures: figures.collect(),
        frontier_kl,
        agreement: agreement([first, second], anchor),
    }
}

/// The prompts to compare: those of both runs, or all.
fn pair<'a>(
    first: &'a [PromptSummary],
    second: &'a [PromptSummary],
) -> (Pairing, [Vec<&'a PromptSummary>; 2]) {
    let same = |a: &PromptSummary, b: &PromptSummary| a.id == b.id && a.text == b.text;
    let pairs = first.iter().filter_map(|a| Some((a, second.iter().find(|b| same(a, b))?)));
    let (a, b): (Vec<_>, Vec<_>) = pairs.unzip();
    match a.len() >= FEWEST_PAIRS {
        true => (Pairing::Paired, [a, b]),
        false => (Pairing::Unpaired, [first.iter().collect(), second.iter().collect()]),
    }
}

/// Values of layers, each at (ℓ + ½)/L, interpolated to `layers` layers.
fn at_depths(values: &[f64], layers: usize) -> Vec<f64> {
    interpolated(values, layers, |layer| (layer + 0.5) / layers as f64 * values.len() as f64 - 0.5)
}

/// Values of cutoffs 1 … L, each at c/L, interpolated to `layers` cutoffs.
fn at_cutoffs(values: &[f64], layers: usize) -> Vec<f64> {
    interpolated(values, layers, |index| (index + 1.0) / layers as f64 * values.len() as f64 - 1.0)
}

/// Linear interpolation; `at` maps each new index to an old one.
fn interpolated(values: &[f64], len: usize, at: impl Fn(f64) -> f64) -> Vec<f64> {
    if values.len() == len {
        return values.to_vec();
    }
    let last = values.len().saturating_sub(1);
    let value = |index: usize| {
        let at = at(index as f64).clamp(0.0, last as f64);
        let (low, share) = (at.floor() as usize, at.fract());
        let (a, b) = (values.get(low)?, values.get((low + 1).min(last))?);
        Some(if share == 0.0 { *a } else { a + (b - a) * share })
    };
    (0..len).map(|index| value(index).unwrap_or(f64::NAN)).collect()
}

fn agreement(sides: [ComparedRun<'_>; 2], anchor: Anchor) -> Agreement {
    let recommendations = sides.map(|side| side.recommendation);
    let (l_cut, layers) = (
        [recommendations[0].l_cut, recommendations[1].l_cut],
        [recommendations[0].layers, recommendations[1].layers],
    );
    let share = |side: usize| l_cut[side] as f64 / layers[side] as f64;
    let shallower = layers[0].min(layers[1]) as f64;
    let cuts = |side: usize| recommendations[side].verdict == Verdict::Cut;
    // A small margin, because c/L is rounded.
    let near = (share(0) - share(1)).abs() * shallower <= 1.0 + 1e-9;
    // Rounded up: deeper is safer.
    let transferred =
        [(0, 1), (1, 0)].map(|(from, to)| (share(from) * layers[to] as f64 - 1e-9).ceil().max(1.0) as usize);
    let transferred_kl = [(0, 1), (1, 0)].map(|(from, to)| {
        let frontier = FrontierSummary::new(sides[to].evidence, anchor);
        frontier.map_or(f64::NAN, |frontier| frontier.overall().at(transferred[from]).kl)
    });
    Agreement { l_cut, layers, agree: cuts(0) == cuts(1) && near, transferred, transferred_kl }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_depths_are_left_alone() {
        assert_eq!(at_depths(&[1.0, 2.0, 4.0], 3), [1.0, 2.0, 4.0]);
        assert_eq!(at_cutoffs(&[1.0, 2.0], 2), [1.0, 2.0]);
    }

    #[test]
    fn relative_depths() {
        // The layers of 4 are at 1/8, 3/8 …, those of 2 at 1/4 and 3/4, halfway between two.
        assert_eq!(at_depths(&[1.0, 3.0, 5.0, 9.0], 2), [2.0, 7.0]);
        // Cutoffs 1 and 2 of 2 are cutoffs 2 and 4 of 4.
        assert_eq!(at_cutoffs(&[1.0, 3.0, 5.0, 9.0], 2), [3.0, 9.0]);
        // A straight line stays straight.
        let line: Vec<f64> = (0..30).map(|layer| (f64::from(layer) + 0.5) / 30.0).collect();
        for (index, value) in at_depths(&line, 18).into_iter().enumerate() {
            assert!((value - (index as f64 + 0.5) / 18.0).abs() < 1e-12);
        }
        assert!(at_depths(&[], 3).iter().all(|value| value.is_nan()));
        assert!(at_depths(&[f64::NAN, 1.0, 2.0, 3.0], 2)[0].is_nan());
    }
}
