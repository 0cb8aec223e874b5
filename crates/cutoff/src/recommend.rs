//! The recommendation: the smallest cutoff whose measured divergence stays within a tolerance, and which keeps the answers.
//!
//! A cutoff c qualifies if at c and at every larger cutoff the mean KL over prompts is at most the tolerance, and so is
//! its one-sided 95 % bootstrap upper bound over prompts: over all prompts and in each category. A category of fewer
//! than three prompts is judged by its mean alone. Of the answers that the full model gives, at least 95 % are kept, and in no
//! category so few that this would happen in less than 2.5 % of cases if 95 % were kept (exact binomial test); a run without such
//! answers is judged by KL alone. A cutoff of which any prompt's row is missing does not qualify; c = L, the full model, always
//! does. If the smallest such cutoff saves less than 5 % of the KV bytes, the recommendation is to keep full depth. A run in which
//! any KL is undefined gets no recommendation at all.
//!
//! Where a run has an adapter and the cutoff that this was made for holds, larger ones are not asked for: the adapter is left
//! away there.

mod answers;
mod diagnostic;
mod evidence;
mod frontier_summary;
mod kept;
mod reasons;
#[cfg(test)]
mod tests;
mod windows;

use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::summary::{largest, mean};
use layerscope_engine::{Error, Policy, Result};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::diagnostic::DiagnosticCut;
pub use self::evidence::Evidence;
pub use self::frontier_summary::{FrontierGroup, FrontierSummary};
pub use self::kept::{Criterion, Kept, KeptByCutoff};

use crate::cost::Savings;
use crate::{DEFAULT_KEPT, DEFAULT_TOLERANCE};

/// Least share of the KV bytes that makes a cutoff worth its divergence.
const LEAST_SAVING: f64 = 0.05;

/// How many layers are named in rankings.
const RANKED: usize = 3;

/// What the user may choose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, serde::Deserialize)]
pub struct Options {
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// What must hold besides.
    pub criterion: Criterion,
    /// Least share of the answers, or texts, that must be kept, 0 … 1.
    pub kept: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tolerance: DEFAULT_TOLERANCE,
            anchor: Anchor::Bos,
            criterion: Criterion::Answers,
            kept: DEFAULT_KEPT,
        }
    }
}

impl Options {
    /// The same for the other anchor.
    fn with_anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    fn check(self) -> Result<()> {
        let Self { tolerance, kept, .. } = self;
        if !tolerance.is_finite() || tolerance < 0.0 {
            return Err(Error::input(format!(
                "the tolerance {tolerance} is not a number of nats; choose one from 0 on, e.g. {DEFAULT_TOLERANCE}"
            )));
        }
        if !(0.0..=1.0).contains(&kept) {
            return Err(Error::input(format!(
                "{kept} is no share of answers to keep; choose one from 0 to 1, e.g. {DEFAULT_KEPT}"
            )));
        }
        Ok(())
    }
}

/// Whether a cutoff is recommended at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Verdict {
    /// Cut at `l_cut`.
    #[serde(rename = "cut")]
    Cut,
    /// No cutoff is worth it; `l_cut` is L.
    #[serde(rename = "keep full depth")]
    KeepFullDepth,
}

/// A cutoff with its anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontierPoint {
    /// Prompt tokens keep KV in layers 0 … cutoff−1; 1 … L.
    pub cutoff: usize,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
}

impl FrontierPoint {
    /// SPEED there, for a model of so many layers.
    ///
    /// # Errors
    /// [`Error::Input`] on a cutoff that the model does not have.
    pub fn policy(self, layers: usize) -> Result<Policy> {
        Policy::speed(self.cutoff, self.anchor == Anchor::Bos, layers)
    }
}

/// The recommendation. Undefined figures are NaN here, which serde_json writes as null.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Recommendation {
    /// The recommended cutoff, 1 … L; L is the full model.
    pub l_cut: usize,
    /// Layers L.
    pub layers: usize,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// Mean KL over prompts at `l_cut`, nats.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound over prompts, nats.
    pub kl_upper95: f64,
    /// Mean KL one layer below, nats: how sharp the edge is; null at cutoff 1.
    pub kl_below: f64,
    /// Share of steps with the same most likely token at `l_cut`.
    pub top1: f64,
    /// Mean change of the continuation's negative log-likelihood at `l_cut`, nats per token.
    pub dnll: f64,
    /// What the diagnostics alone would suggest.
    pub diagnostic_l_cut: Option<usize>,
    /// Share of the KV bytes saved at the run's own lengths.
    pub kv_saved: f64,
    /// Share of the prefill's layer work (token-layers) saved.
    pub flops_saved: f64,
    /// Prediction: share of the time to first token saved.
    pub predicted_ttft_saved: f64,
    /// Prediction: share of the time per output token saved.
    pub predicted_tpot_saved: f64,
    /// KV bytes of the full model, mean per prompt.
    pub kv_bytes_full: f64,
    /// KV bytes under the cutoff, mean per prompt.
    pub kv_bytes_cut: f64,
    /// Why, a plain sentence each.
    pub reasons: Vec<String>,
    /// What to beware of, a short clause each.
    pub caveats: Vec<String>,
    /// Whether a cutoff is recommended at all.
    pub verdict: Verdict,
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// What must hold besides the tolerance.
    pub criterion: Criterion,
    /// Least share of the answers, or texts, that must be kept.
    pub kept_wanted: f64,
    /// Prompts whose expected answer the full model gives.
    pub answers: usize,
    /// Share of those answers that are kept at `l_cut`; null without any.
    pub answers_kept: f64,
    /// Its 95 % interval (Wilson); null without any answer.
    pub answers_kept_ci95: [f64; 2],
    /// Share of the answers kept one layer below; null at cutoff 1 or without any.
    pub answers_kept_below: f64,
    /// Share of prompts whose greedy text is unchanged at `l_cut`; null where no text is known.
    pub text_unchanged: f64,
    /// The smallest cutoff that passes, whether or not it saves enough.
    pub exact_l_cut: usize,
    /// Prompts that the recommendation is based on.
    pub prompts: usize,
    /// Recorded prompts without any defined KL, which it is not based on.
    pub prompts_left_out: usize,
    /// Each category on its own.
    pub categories: Vec<CategoryOutcome>,
    /// The frontier over all prompts, cutoffs 1 … L.
    pub frontier: Vec<CutoffOutcome>,
    /// The same question for the other anchor; null where the run did not record it.
    pub other_anchor: Option<AnchorOutcome>,
    /// How the diagnostics come to their cutoff.
    pub diagnostics: DiagnosticCut,
    /// The layers whose hiding of the prompt moves the output most: causes.
    pub causal_layers: Vec<RankedLayer>,
    /// The layers with the largest prompt mass: correlations.
    pub reading_layers: Vec<RankedLayer>,
}

impl Recommendation {
    /// The recommended cutoff with its anchor; `None` where full depth is to be kept.
    pub fn point(&self) -> Option<FrontierPoint> {
        let point = FrontierPoint { cutoff: self.l_cut, anchor: self.anchor };
        (self.verdict == Verdict::Cut).then_some(point)
    }

    /// The caveats as one sentence.
    pub fn caveat(&self) -> String {
        let mut sentence = self.caveats.join("; ");
        if let Some(first) = sentence.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        sentence + "."
    }

    /// What is recommended, in one line.
    pub fn headline(&self) -> String {
        headline(self.point(), self.layers, self.kv_saved)
    }

    /// Name of the policy that cuts there, e.g. `speed:24+bos`; `None` where full depth is to be kept.
    pub fn policy_name(&self) -> Option<String> {
        self.point().and_then(|point| point.policy(self.layers).ok()).map(|policy| policy.to_string())
    }
}

/// What is recommended for a model of so many layers, with the share of the KV bytes saved, in one line.
pub fn headline(point: Option<FrontierPoint>, layers: usize, kv_saved: f64) -> String {
    let Some(point) = point else { return format!("Recommended: keep full depth, all {layers} layers") };
    let policy = point.policy(layers).map_or_else(|_| String::new(), |policy| policy.to_string());
    let less = kv_saved * 100.0;
    format!("Recommended L_cut: {} of {layers} layers (policy {policy}), {less:.1} % less KV", point.cutoff)
}

/// A category at the recommended cutoff.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CategoryOutcome {
    /// The category.
    pub category: String,
    /// Its prompts.
    pub prompts: usize,
    /// Mean KL at `l_cut`, nats.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound, nats; null with fewer than three prompts, which say nothing about it.
    pub kl_upper95: f64,
    /// Mean KL one layer below, nats; null at cutoff 1.
    pub kl_below: f64,
    /// Share of steps with the same most likely token at `l_cut`.
    pub top1: f64,
    /// Prompts whose expected answer the full model gives.
    pub answers: usize,
    /// Share of those answers that are kept at `l_cut`; null without any.
    pub answers_kept: f64,
    /// Share of prompts whose greedy text is unchanged at `l_cut`; null where no text is known.
    pub text_unchanged: f64,
    /// The smallest cutoff that passes for this category alone.
    pub exact_l_cut: usize,
}

/// One cutoff over all prompts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CutoffOutcome {
    /// The cutoff.
    pub cutoff: usize,
    /// Mean KL, nats; null where any prompt's is undefined.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound, nats.
    pub kl_upper95: f64,
    /// Share of steps with the same most likely token.
    pub top1: f64,
    /// Mean change of the continuation's negative log-likelihood, nats per token.
    pub dnll: f64,
    /// Share of the full model's answers that are kept; null without any.
    pub answers_kept: f64,
    /// Share of prompts whose greedy text is unchanged; null where no text is known.
    pub text_unchanged: f64,
    /// Whether all prompts and every category pass here: within the tolerance, and with enough answers kept.
    pub within: bool,
}

/// What another anchor comes to.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AnchorOutcome {
    /// The anchor.
    pub anchor: Anchor,
    /// Its smallest cutoff that passes.
    pub exact_l_cut: usize,
    /// Mean KL there, nats.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound, nats.
    pub kl_upper95: f64,
    /// Share of the KV bytes saved there.
    pub kv_saved: f64,
}

/// A layer in a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct RankedLayer {
    /// The layer.
    pub layer: usize,
    /// The figure it is ranked by: nats of KL, or prompt mass.
    pub value: f64,
}

/// Recommends a cutoff.
///
/// # Errors
/// [`Error::Input`] where the tolerance is no number of nats or the share none, nothing is recorded, the anchor was not, or a distribution is undefined.
pub fn recommend(evidence: Evidence<'_>, options: Options) -> Result<Recommendation> {
    options.check()?;
    let Options { tolerance, anchor, criterion, kept } = options;
    if let Some(undefined) = evidence.undefined() {
        return Err(Error::input(undefined));
    }
    let (layers, cost, workloads) = (evidence.layers(), evidence.cost(), evidence.workloads());
    let frontier = FrontierSummary::new(evidence, anchor)
        .filter(|_| layers > 0)
        .ok_or_else(|| no_frontier(evidence, anchor))?;
    let exact_l_cut = frontier.smallest_passing(&options);
    let savings = |cutoff, anchor| cost.savings(cutoff, anchor == Anchor::Bos, &workloads);
    let at_exact = savings(exact_l_cut, anchor);
    let (verdict, l_cut) = if exact_l_cut < layers && at_exact.kv_saved >= LEAST_SAVING {
        (Verdict::Cut, exact_l_cut)
    } else {
        (Verdict::KeepFullDepth, layers)
    };
    let other = Anchor::ALL.into_iter().find(|other| *other != anchor);
    let other_anchor = other.and_then(|other| FrontierSummary::new(evidence, other)).map(|other| {
        let cutoff = other.smallest_passing(&options.with_anchor(other.anchor));
        AnchorOutcome {
            anchor: other.anchor,
            exact_l_cut: cutoff,
            kl: other.overall().at(cutoff).kl,
            kl_upper95: other.overall().upper95_at(cutoff),
            kv_saved: savings(cutoff, other.anchor).kv_saved,
        }
    });
    let diagnostics = diagnostic::diagnostic_cut(evidence);
    let overall = frontier.overall();
    let at = overall.at(l_cut);
    let saved: Savings = savings(l_cut, anchor);
    let per_prompt = |bytes: u64| bytes as f64 / workloads.len() as f64;
    let mut recommendation = Recommendation {
        l_cut,
        layers,
        anchor,
        kl: at.kl,
        kl_upper95: overall.upper95_at(l_cut),
        kl_below: overall.at(l_cut - 1).kl,
        top1: at.top1,
        dnll: at.dnll,
        diagnostic_l_cut: diagnostics.l_cut,
        kv_saved: saved.kv_saved,
        flops_saved: saved.flops_saved,
        predicted_ttft_saved: saved.predicted_ttft_saved,
        predicted_tpot_saved: saved.predicted_tpot_saved,
        kv_bytes_full: per_prompt(saved.kv_bytes_full),
        kv_bytes_cut: per_prompt(saved.kv_bytes_cut),
        reasons: Vec::new(),
        caveats: Vec::new(),
        verdict,
        tolerance,
        criterion,
        kept_wanted: kept,
        answers: overall.kept.answers_at(l_cut).of,
        answers_kept: overall.kept.answers_at(l_cut).share(),
        answers_kept_ci95: interval(overall.kept.answers_at(l_cut)),
        answers_kept_below: overall.kept.answers_at(l_cut - 1).share(),
        text_unchanged: overall.kept.texts_at(l_cut).share(),
        exact_l_cut,
        prompts: overall.prompts,
        prompts_left_out: frontier.left_out,
        categories: categories(&frontier, l_cut, &options),
        frontier: (1..=layers)
            .map(|cutoff| {
                let at = overall.at(cutoff);
                CutoffOutcome {
                    cutoff,
                    kl: at.kl,
                    kl_upper95: overall.upper95_at(cutoff),
                    top1: at.top1,
                    dnll: at.dnll,
                    answers_kept: overall.kept.answers_at(cutoff).share(),
                    text_unchanged: overall.kept.texts_at(cutoff).share(),
                    within: frontier.passes(cutoff, &options),
                }
            })
            .collect(),
        other_anchor,
        diagnostics,
        causal_layers: causal_layers(evidence),
        reading_layers: ranked(&diagnostic::prompt_mass(evidence)),
    };
    recommendation.caveats = reasons::caveats(&recommendation, evidence, &frontier);
    recommendation.reasons = reasons::reasons(&recommendation, evidence, &frontier, &at_exact, &options);
    Ok(recommendation)
}

fn no_frontier(evidence: Evidence<'_>, anchor: Anchor) -> Error {
    match evidence.anchors().first() {
        _ if evidence.prompts.is_empty() => Error::input(
            "the run holds no recorded prompt to recommend from; record some with layerscope record",
        ),
        Some(recorded) if *recorded != anchor => Error::input(format!(
            "the run holds no frontier for the anchor {}; choose the anchor {} or record the run again",
            anchor.name(),
            recorded.name()
        )),
        _ => Error::input(
            "the run holds no defined frontier to recommend from; record it again with layerscope record",
        ),
    }
}

/// The interval of the share that is kept, undefined for none.
fn interval(kept: Kept) -> [f64; 2] {
    if kept.of == 0 { [f64::NAN; 2] } else { kept.interval95() }
}

fn categories(frontier: &FrontierSummary, l_cut: usize, options: &Options) -> Vec<CategoryOutcome> {
    let categories = frontier.categories().iter();
    categories
        .map(|group| CategoryOutcome {
            category: group.category.clone().unwrap_or_default(),
            prompts: group.prompts,
            kl: group.at(l_cut).kl,
            kl_upper95: if group.judged_by_bound { group.upper95_at(l_cut) } else { f64::NAN },
            kl_below: group.at(l_cut - 1).kl,
            top1: group.at(l_cut).top1,
            answers: group.kept.answers_at(l_cut).of,
            answers_kept: group.kept.answers_at(l_cut).share(),
            text_unchanged: group.kept.texts_at(l_cut).share(),
            exact_l_cut: frontier.smallest_passing_of(group, options),
        })
        .collect()
}

/// The layers with the highest mean knockout KL over prompts.
fn causal_layers(evidence: Evidence<'_>) -> Vec<RankedLayer> {
    let kl = |layer: usize| mean(evidence.prompts.iter().map(|prompt| prompt.knockout_at(layer).kl));
    ranked(&(0..evidence.layers()).map(kl).collect::<Vec<_>>())
}

/// The layers with the highest defined values, highest first.
fn ranked(values: &[f64]) -> Vec<RankedLayer> {
    let layers = largest(values.iter().copied(), RANKED).into_iter();
    layers.map(|layer| RankedLayer { layer, value: values[layer] }).collect()
}
