//! A run folder in memory: all small tables.

use super::DrawnPatches;
use layerscope_bench::BenchReport;
use layerscope_cutoff::budget::{BudgetCurve, BudgetPoint, curves};
use layerscope_cutoff::cost::Savings;
use layerscope_cutoff::recommend::{Evidence, FrontierSummary, Options, Recommendation, recommend};
use layerscope_diagnostics::patching::PatchMap;
use layerscope_diagnostics::policies::{PolicySummary, summarise_policies};
use layerscope_diagnostics::record::{Anchor, KNOCKOUT_KL, PromptSummary, SpanRecord};
use layerscope_diagnostics::run::{Manifest, Run};
use layerscope_diagnostics::summary::{RunSummary, Summary, summarise_by_layer, summarise_run};
use layerscope_engine::{ModelSource, Policy, Result};
use layerscope_eval::EvaluationSummary;
use ndarray::Array2;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run, without its long tables.
#[derive(Debug)]
pub struct RunData {
    /// The run folder.
    pub folder: PathBuf,
    /// The manifest.
    pub manifest: Manifest,
    /// The recorded prompts, in the order of the prompt file.
    pub prompts: Vec<PromptSummary>,
    /// Figures by layer over prompts, overall and per category.
    pub summary: RunSummary,
    /// Knockout KL by layer, nats: overall, then each category as in `summary`.
    pub knockout: Vec<Vec<Summary>>,
    /// Removed spans of the prompts.
    pub spans: Vec<SpanRecord>,
    /// Maps of activation patches between prompts, or why they cannot be read.
    pub patches: std::result::Result<Vec<DrawnPatches>, String>,
    /// Attention under policies, means over prompts.
    pub policies: Vec<PolicySummary>,
    /// The frontier of each recorded anchor.
    pub frontiers: Vec<FrontierSummary>,
    /// What cutoffs 1 … L save at the run's prompt lengths, for each of [`Anchor::ALL`].
    savings: [Vec<Savings>; 2],
    /// What each budget of KV costs, if sets were searched, or why they cannot be read.
    pub budgets: std::result::Result<Vec<BudgetCurve>, String>,
    /// The best sets: each costs less than all that keep no more KV; the one that keeps most first.
    pub sets: Vec<BudgetPoint>,
    /// Measurements of policies, if the run folder has some, or why they cannot be read.
    pub bench: std::result::Result<Option<BenchReport>, String>,
    /// Scores of policies at tasks, if the run folder has some, or why they cannot be read.
    pub evaluations: std::result::Result<Vec<EvaluationSummary>, String>,
    /// Its model, where it was found on the other machine that the run is on.
    pub model: Option<ModelSource>,
}

impl RunData {
    /// Reads a run folder.
    ///
    /// # Errors
    /// As [`Run::open`] and [`Run::prompt`].
    pub fn read(folder: &Path) -> Result<Self> {
        let run = Run::open(folder)?;
        let prompts = run.prompts().collect::<Result<Vec<_>>>()?;
        let evidence = Evidence { manifest: run.manifest(), prompts: &prompts };
        let summary = summarise_run(&prompts);
        let categories = summary.categories.iter().map(|group| group.category.as_deref());
        let knockout = std::iter::once(None).chain(categories);
        let (cost, workloads) = (evidence.cost(), evidence.workloads());
        let savings = Anchor::ALL.map(|anchor| {
            let cutoffs = 1..=evidence.layers();
            cutoffs.map(|cutoff| cost.savings(cutoff, anchor == Anchor::Bos, &workloads)).collect()
        });
        let budgets = run.sets().and_then(|sets| match sets {
            Some(sets) => curves(evidence, &sets, Anchor::Bos),
            None => Ok(vec![]),
        });
        let budgets = budgets.map_err(|error| error.to_string());
        Ok(Self {
            folder: folder.to_owned(),
            sets: best_sets(budgets.as_deref().unwrap_or_default()),
            budgets,
            savings,
            manifest: run.manifest().clone(),
            knockout: knockout.map(|category| knockout_summary(&prompts, category)).collect(),
            frontiers: Anchor::ALL.iter().filter_map(|&a| FrontierSummary::new(evidence, a)).collect(),
            bench: layerscope_bench::read_of_run(folder).map_err(|error| error.to_string()),
            evaluations: EvaluationSummary::of_run(folder, &run.manifest().model.sha256)
                .map_err(|error| error.to_string()),
            spans: run.spans()?,
            patches: match run.patches() {
                Ok(maps) => Ok(drawn(maps, evidence.layers())),
                Err(error) => Err(error.to_string()),
            },
            policies: summarise_policies(&run.policies()?),
            prompts,
            summary,
            model: None,
        })
    }

    /// The evidence for a recommendation.
    pub(super) fn evidence(&self) -> Evidence<'_> {
        Evidence { manifest: &self.manifest, prompts: &self.prompts }
    }

    /// Layers L.
    pub fn layers(&self) -> usize {
        self.manifest.model.layers
    }

    /// Query heads H.
    pub fn heads(&self) -> usize {
        self.manifest.model.heads
    }

    /// The categories of the prompts, by name.
    pub fn categories(&self) -> impl Iterator<Item = &str> {
        self.summary.categories.iter().filter_map(|group| group.category.as_deref())
    }

    /// The frontier of an anchor; `None` if it was not recorded.
    pub fn frontier(&self, anchor: Anchor) -> Option<&FrontierSummary> {
        self.frontiers.iter().find(|frontier| frontier.anchor == anchor)
    }

    /// The savings of a cutoff at the run's prompt lengths.
    pub fn savings(&self, cutoff: usize, anchor: Anchor) -> Savings {
        let of_anchor = Anchor::ALL.into_iter().position(|known| known == anchor);
        let saved = of_anchor.and_then(|index| self.savings[index].get(cutoff.checked_sub(1)?));
        saved.copied().unwrap_or_default()
    }

    /// Share of the full model's tokens that each KV head has at a prompt's end under a policy, `[layer, KV head]`.
    pub fn kept(&self, policy: &Policy, prompt_len: usize) -> Array2<f64> {
        let (windows, kv_heads) = (self.evidence().cost().windows, self.manifest.model.kv_heads);
        let tokens = |policy: Policy| policy.with_windows(&windows).capacity_by_head(prompt_len, 1, kv_heads);
        let (full, kept) = (tokens(Policy::full(self.layers())), tokens(policy.clone()));
        Array2::from_shape_fn((self.layers(), kv_heads), |(layer, head)| {
            kept[layer][head] as f64 / full[layer][head] as f64
        })
    }

    /// The recommendation.
    ///
    /// # Errors
    /// As [`recommend`].
    pub fn recommend(&self, options: Options) -> Result<Recommendation> {
        recommend(self.evidence(), options)
    }
}

/// The sets of searches, which follow the cutoffs.
fn best_sets(budgets: &[BudgetCurve]) -> Vec<BudgetPoint> {
    let mut sets: Vec<&BudgetPoint> = budgets.iter().skip(1).flat_map(|curve| &curve.points).collect();
    sets.sort_by(|a, b| a.kv_kept.total_cmp(&b.kv_kept).then(a.kl.total_cmp(&b.kl)));
    let mut least = f64::INFINITY;
    sets.retain(|set| {
        let is_best = set.kl < least;
        least = least.min(set.kl);
        is_best
    });
    sets.into_iter().rev().cloned().collect()
}

fn knockout_summary(prompts: &[PromptSummary], category: Option<&str>) -> Vec<Summary> {
    let members = prompts.iter().filter(|prompt| category.is_none_or(|name| prompt.category == name));
    summarise_by_layer(members, KNOCKOUT_KL)
}

fn drawn(maps: Vec<PatchMap>, layers: usize) -> Vec<DrawnPatches> {
    maps.into_iter().map(|map| DrawnPatches::new(Arc::new(map), layers)).collect()
}
