//! The frontier over prompts: what each cutoff costs, and the smallest one that keeps within the tolerance.

use super::Options;
use super::evidence::Evidence;
use super::kept::KeptByCutoff;
use layerscope_diagnostics::record::{Anchor, Divergence, PromptSummary};
use layerscope_diagnostics::summary::mean_upper_bound95;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Fewest prompts of a category whose bootstrap bound says anything; fewer are judged by their mean.
pub(super) const BOUND_PROMPTS: usize = 3;

/// What each cutoff 1 … L costs with an anchor.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Frontier")]
pub struct FrontierSummary {
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// All prompts first, then each category by name.
    pub groups: Vec<FrontierGroup>,
    /// Prompts without any defined KL, which count nowhere else.
    #[serde(skip)]
    pub left_out: usize,
    /// The cutoff that the run's adapter was made for with this anchor, if it was.
    #[serde(skip)]
    pub adapted_to: Option<usize>,
}

/// The frontier of a group of prompts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FrontierGroup {
    /// The category; null for all prompts.
    pub category: Option<String>,
    /// Prompts with a defined frontier.
    pub prompts: usize,
    /// Means over prompts at cutoffs 1 … L.
    pub cutoffs: Vec<Divergence>,
    /// One-sided 95 % bootstrap upper bound of the mean KL at cutoffs 1 … L, nats.
    pub kl_upper95: Vec<f64>,
    /// Answers and texts that are kept at cutoffs 1 … L.
    #[serde(flatten)]
    pub kept: KeptByCutoff,
    /// Whether the bound counts, or the mean alone.
    #[serde(skip)]
    pub judged_by_bound: bool,
}

impl FrontierSummary {
    /// Summarises the evidence for one anchor; `None` where no prompt has any defined KL.
    pub fn new(evidence: Evidence<'_>, anchor: Anchor) -> Option<Self> {
        let mut all = Vec::new();
        let mut by_category: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for prompt in evidence.prompts {
            if let Some(curve) = curve(prompt, anchor) {
                by_category.entry(&prompt.category).or_default().push(all.len());
                all.push((prompt, curve));
            }
        }
        if all.is_empty() {
            return None;
        }
        let everyone: Vec<usize> = (0..all.len()).collect();
        let group = |category, members: &[usize], judged_by_bound| {
            let members: Vec<_> = members.iter().map(|&member| &all[member]).collect();
            FrontierGroup { judged_by_bound, ..FrontierGroup::new(category, &members, anchor) }
        };
        let overall = group(None, &everyone, true);
        let categories = by_category
            .into_iter()
            .map(|(name, members)| group(Some(name), &members, members.len() >= BOUND_PROMPTS));
        Some(Self {
            anchor,
            left_out: evidence.prompts.len() - all.len(),
            adapted_to: evidence.adapted_to(anchor),
            groups: std::iter::once(overall).chain(categories).collect(),
        })
    }

    /// All prompts.
    pub fn overall(&self) -> &FrontierGroup {
        &self.groups[0]
    }

    /// Each category, by name.
    pub fn categories(&self) -> &[FrontierGroup] {
        &self.groups[1..]
    }

    /// Whether a cutoff passes: every group stays within the tolerance, at least the wanted share of answers or texts is kept, and
    /// no category proves that it keeps less. The full model passes by definition.
    pub fn passes(&self, cutoff: usize, options: &Options) -> bool {
        let layers = self.overall().cutoffs.len();
        cutoff == layers
            || self.groups.iter().all(|group| group.passes(cutoff, options))
                && self.keeps_enough(cutoff, options)
    }

    /// Whether the wanted share of all answers or texts is kept at a cutoff.
    pub fn keeps_enough(&self, cutoff: usize, options: &Options) -> bool {
        self.overall().kept.judged(options.criterion, cutoff).reaches(options.kept)
    }

    /// The smallest cutoff that passes, as does every larger one; up to the one that the adapter was made for, where that passes.
    pub fn smallest_passing(&self, options: &Options) -> usize {
        self.smallest(|cutoff| self.passes(cutoff, options))
    }

    /// A category's own smallest passing cutoff.
    pub fn smallest_passing_of(&self, category: &FrontierGroup, options: &Options) -> usize {
        self.smallest(|cutoff| {
            let judged = category.kept.judged(options.criterion, cutoff);
            category.passes(cutoff, options) && judged.reaches(options.kept)
        })
    }

    /// Goes down from full depth, which always passes, or from the adapter's own cutoff: nobody needs the adapter above that one.
    fn smallest(&self, passes: impl Fn(usize) -> bool) -> usize {
        let mut cutoff = self.adapted_to.filter(|&own| passes(own)).unwrap_or(self.overall().cutoffs.len());
        while cutoff > 1 && passes(cutoff - 1) {
            cutoff -= 1;
        }
        cutoff
    }
}

impl FrontierGroup {
    /// The group of these prompts and their curves, judged by the mean alone.
    fn new(category: Option<&str>, members: &[&(&PromptSummary, Vec<Divergence>)], anchor: Anchor) -> Self {
        let (prompts, curves): (Vec<&PromptSummary>, Vec<&Vec<Divergence>>) =
            members.iter().map(|(prompt, curve)| (*prompt, curve)).unzip();
        let layers = curves.first().map_or(0, |curve| curve.len());
        let mean = (0..layers).map(|at| {
            let mean = Divergence::mean(&curves.iter().map(|curve| curve[at]).collect::<Vec<_>>());
            // An infinite divergence is as little a figure as an undefined one.
            if mean.kl.is_finite() { mean } else { Divergence::UNDEFINED }
        });
        let mean: Vec<Divergence> = mean.collect();
        let kl: Vec<Vec<f64>> =
            curves.iter().map(|curve| curve.iter().map(|divergence| divergence.kl).collect()).collect();
        let rows: Vec<&[f64]> = kl.iter().map(Vec::as_slice).collect();
        // The bootstrap leaves undefined values out; a cutoff that has any must not profit from that.
        let bounds = mean_upper_bound95(&rows).into_iter().zip(&mean);
        let kl_upper95 = bounds.map(|(bound, mean)| if mean.kl.is_nan() { f64::NAN } else { bound });
        Self {
            category: category.map(str::to_owned),
            prompts: curves.len(),
            kl_upper95: kl_upper95.collect(),
            cutoffs: mean,
            kept: KeptByCutoff::new(&prompts, anchor, layers),
            judged_by_bound: false,
        }
    }

    /// Mean KL at cutoffs 1 … L, nats.
    pub fn kl(&self) -> Vec<f64> {
        self.cutoffs.iter().map(|divergence| divergence.kl).collect()
    }

    /// What the group's mean is at a cutoff; undefined outside 1 … L.
    pub fn at(&self, cutoff: usize) -> Divergence {
        let index = cutoff.checked_sub(1);
        index.and_then(|index| self.cutoffs.get(index)).copied().unwrap_or(Divergence::UNDEFINED)
    }

    /// The upper bound of the mean KL at a cutoff; NaN outside 1 … L.
    pub fn upper95_at(&self, cutoff: usize) -> f64 {
        let index = cutoff.checked_sub(1);
        index.and_then(|index| self.kl_upper95.get(index)).copied().unwrap_or(f64::NAN)
    }

    /// Whether the group stays within the tolerance at a cutoff; what is undefined does not.
    pub fn within(&self, cutoff: usize, tolerance: f64) -> bool {
        self.at(cutoff).kl <= tolerance && (!self.judged_by_bound || self.upper95_at(cutoff) <= tolerance)
    }

    /// Whether the group stays within the tolerance and does not prove that fewer answers or texts are kept than wanted.
    pub fn passes(&self, cutoff: usize, options: &Options) -> bool {
        let judged = self.kept.judged(options.criterion, cutoff);
        self.within(cutoff, options.tolerance) && !judged.falls_short(options.kept)
    }
}

/// A prompt's divergences at cutoffs 1 … L; `None` where no KL is defined. A missing row is undefined, but for the full
/// model's.
fn curve(prompt: &PromptSummary, anchor: Anchor) -> Option<Vec<Divergence>> {
    let mut curve = prompt.frontier_of(anchor);
    if !curve.iter().any(|divergence| divergence.kl.is_finite()) {
        return None;
    }
    if let Some(full) = curve.last_mut().filter(|full| !full.kl.is_finite()) {
        *full = Divergence::ZERO;
    }
    Some(curve)
}
