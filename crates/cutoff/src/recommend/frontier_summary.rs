//! The frontier over prompts: what each cutoff costs, and the smallest one that keeps within the tolerance.

use std::collections::BTreeMap;

use layerscope_diagnostics::record::{Anchor, Divergence};
use layerscope_diagnostics::summary::mean_upper_bound95;

use super::evidence::{Evidence, PromptEvidence};

/// Fewest prompts of a category whose bootstrap bound says anything; fewer are judged by their mean.
pub(super) const BOUND_PROMPTS: usize = 3;

/// The frontier of one anchor over prompts.
#[derive(Debug, Clone)]
pub struct FrontierSummary {
    /// The anchor.
    pub anchor: Anchor,
    /// All prompts.
    pub overall: FrontierGroup,
    /// Each category, by name.
    pub categories: Vec<FrontierGroup>,
    /// Prompts without any defined KL, which count nowhere else.
    pub left_out: usize,
}

/// A group of prompts: all, or a category. Every curve has length L; index c−1 is cutoff c.
#[derive(Debug, Clone)]
pub struct FrontierGroup {
    /// The category; empty for all prompts.
    pub name: String,
    /// Prompts in the group.
    pub prompts: usize,
    /// Mean over prompts; NaN where any prompt's is undefined.
    pub mean: Vec<Divergence>,
    /// One-sided 95 % bootstrap upper bound of the mean KL over prompts, nats; NaN likewise.
    pub kl_upper95: Vec<f64>,
    /// Whether the bound counts, or the mean alone.
    pub judged_by_bound: bool,
}

/// What the full model costs against itself.
const FULL: Divergence = Divergence { kl: 0.0, top1: 1.0, dnll: 0.0 };
const UNDEFINED: Divergence = Divergence { kl: f64::NAN, top1: f64::NAN, dnll: f64::NAN };

impl FrontierSummary {
    /// Summarises the evidence for one anchor; `None` where no prompt has any defined KL.
    pub fn new(evidence: &Evidence, anchor: Anchor) -> Option<Self> {
        let mut all = Vec::new();
        let mut by_category: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for prompt in &evidence.prompts {
            if let Some(curve) = curve(prompt, anchor, evidence.layers) {
                by_category.entry(&prompt.category).or_default().push(all.len());
                all.push(curve);
            }
        }
        if all.is_empty() {
            return None;
        }
        let everyone: Vec<usize> = (0..all.len()).collect();
        let categories = by_category.into_iter();
        Some(Self {
            anchor,
            left_out: evidence.prompts.len() - all.len(),
            overall: FrontierGroup::new("", &all, &everyone, true),
            categories: categories
                .map(|(name, members)| {
                    FrontierGroup::new(name, &all, &members, members.len() >= BOUND_PROMPTS)
                })
                .collect(),
        })
    }

    /// The groups that a cutoff must satisfy: all prompts, then each category.
    pub fn groups(&self) -> impl Iterator<Item = &FrontierGroup> {
        std::iter::once(&self.overall).chain(&self.categories)
    }

    /// Whether every group stays within the tolerance at that cutoff; the full model does by definition.
    pub fn within(&self, cutoff: usize, tolerance: f64) -> bool {
        cutoff == self.overall.mean.len() || self.groups().all(|group| group.within(cutoff, tolerance))
    }

    /// The smallest cutoff that stays within the tolerance, as does every larger one.
    pub fn smallest_within(&self, tolerance: f64) -> usize {
        let layers = self.overall.mean.len();
        let mut cutoff = layers;
        while cutoff > 1 && self.within(cutoff - 1, tolerance) {
            cutoff -= 1;
        }
        cutoff
    }
}

impl FrontierGroup {
    fn new(name: &str, curves: &[Vec<Divergence>], members: &[usize], judged_by_bound: bool) -> Self {
        let curves: Vec<&Vec<Divergence>> = members.iter().map(|member| &curves[*member]).collect();
        let layers = curves.first().map_or(0, |curve| curve.len());
        let mean = (0..layers).map(|at| {
            let of = |figure: fn(&Divergence) -> f64| {
                curves.iter().map(|curve| figure(&curve[at])).sum::<f64>() / curves.len() as f64
            };
            let mean = Divergence {
                kl: of(|divergence| divergence.kl),
                top1: of(|divergence| divergence.top1),
                dnll: of(|divergence| divergence.dnll),
            };
            // An infinite divergence is as little a figure as an undefined one.
            if mean.kl.is_finite() { mean } else { UNDEFINED }
        });
        let mean: Vec<Divergence> = mean.collect();
        let kl: Vec<Vec<f64>> =
            curves.iter().map(|curve| curve.iter().map(|divergence| divergence.kl).collect()).collect();
        let rows: Vec<&[f64]> = kl.iter().map(Vec::as_slice).collect();
        // The bootstrap leaves undefined values out; a cutoff that has any must not profit from that.
        let bounds = mean_upper_bound95(&rows).into_iter().zip(&mean);
        let kl_upper95 = bounds.map(|(bound, mean)| if mean.kl.is_nan() { f64::NAN } else { bound });
        Self {
            name: name.to_owned(),
            prompts: curves.len(),
            kl_upper95: kl_upper95.collect(),
            mean,
            judged_by_bound,
        }
    }

    /// What the group's mean is at a cutoff; undefined outside 1 … L.
    pub fn at(&self, cutoff: usize) -> Divergence {
        let index = cutoff.checked_sub(1);
        index.and_then(|index| self.mean.get(index)).copied().unwrap_or(UNDEFINED)
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

    /// The group's own smallest cutoff within the tolerance.
    pub fn smallest_within(&self, tolerance: f64) -> usize {
        let mut cutoff = self.mean.len();
        while cutoff > 1 && self.within(cutoff - 1, tolerance) {
            cutoff -= 1;
        }
        cutoff
    }
}

/// A prompt's divergences at cutoffs 1 … L; `None` where no KL is defined. A missing row is undefined, but for the full
/// model's.
fn curve(prompt: &PromptEvidence, anchor: Anchor, layers: usize) -> Option<Vec<Divergence>> {
    let mut curve = vec![UNDEFINED; layers];
    let rows = prompt.frontier.iter().filter(|row| row.anchor == anchor);
    for row in rows {
        if let Some(place) = row.cutoff.checked_sub(1).and_then(|at| curve.get_mut(at)) {
            *place = row.divergence;
        }
    }
    if !curve.iter().any(|divergence| divergence.kl.is_finite()) {
        return None;
    }
    if let Some(full) = curve.last_mut().filter(|full| !full.kl.is_finite()) {
        *full = FULL;
    }
    Some(curve)
}
