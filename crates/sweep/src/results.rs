//! What a finished cell says: a row for each category and policy.

use crate::jobs::Cell;
use layerscope_cutoff::cost::{CostModel, Workload, saved_share};
use layerscope_cutoff::recommend::{Criterion, Evidence, FrontierGroup, FrontierSummary, Options, recommend};
use layerscope_diagnostics::prompts::{Prompt, read_prompts};
use layerscope_diagnostics::record::{Anchor, Divergence, PolicyRecord, PromptSummary};
use layerscope_diagnostics::run::Run;
use layerscope_diagnostics::summary::{mean, mean_upper_bound95};
use layerscope_engine::{Policy, Result};
use serde::Serialize;
use std::collections::BTreeMap;

/// The results of a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// Version of layerscope that computed them.
    pub layerscope: String,
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// What must hold besides.
    pub criterion: Criterion,
    /// Least share of answers, or texts, that must be kept.
    pub kept: f64,
    /// Which prompt tokens keep KV at every layer, in recommended cutoffs.
    pub anchor: Anchor,
    /// One for each cell, category and policy.
    pub rows: Vec<Row>,
    /// Sentences about what is not among the rows.
    pub notes: Vec<String>,
}

/// Whether a row is of a cutoff or of another policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A cutoff of the exact frontier, the full model as cutoff L.
    Cutoff,
    /// A policy that was recorded besides.
    Policy,
}

impl Kind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cutoff => "cutoff",
            Self::Policy => "policy",
        }
    }
}

/// A model on a category of a prompt set, or on all of it, under a policy. Undefined figures are NaN here, and null in files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the run folder within `runs`.
    pub run: String,
    /// Short name of the model.
    pub model: String,
    /// SHA-256 of its weights.
    pub model_sha256: String,
    /// Its layers L.
    pub layers: usize,
    /// Short name of the adapter.
    pub adapter: Option<String>,
    /// Precision of the weights.
    pub weights: String,
    /// What the run was computed on.
    pub device: String,
    /// Short name of the prompt set.
    pub prompt_set: String,
    /// SHA-256 of its file.
    pub prompts_sha256: String,
    /// The category; none for all prompts.
    pub category: Option<String>,
    /// Cutoff or another policy.
    pub kind: Kind,
    /// Name of the policy.
    pub policy: String,
    /// The cutoff, 1 … L.
    pub cutoff: Option<usize>,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Option<Anchor>,
    /// Prompts.
    pub prompts: usize,
    /// Prompts of the run that could not be recorded.
    pub prompts_failed: usize,
    /// Prompt tokens, mean.
    pub prompt_tokens: f64,
    /// Decode steps, at most.
    pub max_new_tokens: usize,
    /// Mean KL(full ‖ policy), nats per token.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound over prompts.
    pub kl_upper95: f64,
    /// Share of steps with the full model's most likely token.
    pub top1: f64,
    /// Mean change of the continuation's negative log-likelihood, nats per token.
    pub dnll: f64,
    /// Share of prompts whose greedy text is the full model's.
    pub text_unchanged: f64,
    /// Prompts with an expected answer, also those that could not be recorded.
    pub expected: usize,
    /// Of these, prompts whose text has it under the policy. Texts under cutoffs are judged where the full model gives the answer.
    pub right: Option<usize>,
    /// Prompts whose expected answer the full model gives.
    pub answers: Option<usize>,
    /// Share of those answers that are kept.
    pub answers_kept: f64,
    /// Whether the tolerance and the criterion hold; none where answers or texts under the policy are unknown.
    pub passes: Option<bool>,
    /// Whether it is the cutoff that the run recommends.
    pub recommended: bool,
    /// KV bytes after the last decode token, mean per prompt.
    pub kv_bytes: f64,
    /// The same of the full model.
    pub kv_bytes_full: f64,
    /// Share of the KV bytes saved.
    pub kv_saved: f64,
    /// Prediction: share of the time to first token saved.
    pub predicted_ttft_saved: f64,
    /// Prediction: share of the time per output token saved.
    pub predicted_tpot_saved: f64,
    /// Bytes of the weights that a decode step reads, where known.
    pub weight_bytes: Option<u64>,
    /// Measured time to first token of the full model while it was recorded, mean, seconds.
    pub full_ttft_s: f64,
    /// Seconds that recording the prompts took, without policies.
    pub record_s: f64,
    /// Version of layerscope that recorded.
    pub layerscope: String,
}

/// The rows of a cell's run: all prompts first, then each category; of each, cutoffs by anchor, then policies.
///
/// # Errors
/// [`layerscope_engine::Error::Input`] where the run is damaged, empty or has undefined figures.
pub fn rows_of_run(cell: &Cell, run: &Run, options: Options) -> Result<Vec<Row>> {
    let prompts = run.prompts().map(|prompt| prompt.map(PromptSummary::without_prompt_tokens));
    let prompts: Vec<PromptSummary> = prompts.collect::<Result<_>>()?;
    let evidence = Evidence { manifest: run.manifest(), prompts: &prompts };
    let recommendation = recommend(evidence, options)?;
    let policies = run.policies()?;
    let frontiers: Vec<FrontierSummary> =
        Anchor::ALL.into_iter().filter_map(|anchor| FrontierSummary::new(evidence, anchor)).collect();
    let of_cell = OfCell { cell, run, options, cost: evidence.cost(), unanswered: unanswered(cell, run)? };
    let mut rows = vec![];
    for category in groups(&prompts) {
        let members: Vec<&PromptSummary> =
            prompts.iter().filter(|prompt| category.is_none_or(|of| prompt.category == of)).collect();
        let group = Group { cell: &of_cell, category, members: &members };
        for frontier in &frontiers {
            let of_group = frontier.groups.iter().find(|of| of.category.as_deref() == category);
            let recommended = (frontier.anchor == options.anchor).then_some(recommendation.l_cut);
            rows.extend(of_group.into_iter().flat_map(|of| group.cutoffs(frontier, of, recommended)));
        }
        rows.extend(group.policies(&policies));
    }
    Ok(rows)
}

/// Categories of the prompts that expect an answer and could not be recorded: as good as answered wrongly.
fn unanswered(cell: &Cell, run: &Run) -> Result<Vec<String>> {
    let failed = &run.manifest().prompts.failed;
    if failed.is_empty() {
        return Ok(vec![]);
    }
    let prompts = read_prompts(&cell.prompts)?.prompts.into_iter();
    let is_one =
        |prompt: &Prompt| prompt.expected().is_some() && failed.iter().any(|failed| failed.id == prompt.id);
    Ok(prompts.filter(is_one).map(|prompt| prompt.category).collect())
}

/// All prompts, then each category by name.
fn groups(prompts: &[PromptSummary]) -> Vec<Option<&str>> {
    let mut categories: Vec<&str> = prompts.iter().map(|prompt| prompt.category.as_str()).collect();
    categories.sort_unstable();
    categories.dedup();
    std::iter::once(None).chain(categories.into_iter().map(Some)).collect()
}

struct OfCell<'a> {
    cell: &'a Cell,
    run: &'a Run,
    options: Options,
    cost: CostModel,
    unanswered: Vec<String>,
}

/// Prompts of a category, or all.
struct Group<'a> {
    cell: &'a OfCell<'a>,
    category: Option<&'a str>,
    members: &'a [&'a PromptSummary],
}

impl Group<'_> {
    /// The rows of cutoffs 1 … L.
    fn cutoffs(
        &self,
        frontier: &FrontierSummary,
        of: &FrontierGroup,
        recommended: Option<usize>,
    ) -> Vec<Row> {
        let layers = self.cell.run.manifest().model.layers;
        let bos = frontier.anchor == Anchor::Bos;
        (1..=layers)
            .map(|cutoff| {
                let policy = Policy::speed(cutoff, bos, layers).unwrap_or_else(|_| Policy::full(layers));
                let answered =
                    |prompt: &&&PromptSummary| prompt.text_at(frontier.anchor, cutoff).answered == Some(true);
                let passes = match self.category {
                    None => frontier.passes(cutoff, &self.cell.options),
                    Some(_) => cutoff == layers || of.passes(cutoff, &self.cell.options),
                };
                Row {
                    cutoff: Some(cutoff),
                    anchor: Some(frontier.anchor),
                    prompts: of.prompts,
                    kl_upper95: of.upper95_at(cutoff),
                    text_unchanged: of.kept.texts_at(cutoff).share(),
                    right: Some(self.members.iter().filter(answered).count()),
                    answers: Some(of.kept.answers_at(cutoff).of),
                    answers_kept: of.kept.answers_at(cutoff).share(),
                    passes: Some(passes),
                    recommended: recommended == Some(cutoff),
                    ..self.row(Kind::Cutoff, &policy.to_string(), Some(&policy), of.at(cutoff), self.members)
                }
            })
            .collect()
    }

    /// The rows of recorded policies, in the order in which they were recorded. Their texts are not generated.
    fn policies(&self, records: &[PolicyRecord]) -> Vec<Row> {
        let by_id: BTreeMap<&str, &PromptSummary> =
            self.members.iter().map(|prompt| (prompt.id.as_str(), *prompt)).collect();
        let mut names: Vec<&str> = vec![];
        for record in records {
            if !names.contains(&record.policy.as_str()) {
                names.push(&record.policy);
            }
        }
        let row = |name: &&str| {
            let of: Vec<(&PromptSummary, Divergence)> = records
                .iter()
                .filter(|record| record.policy == *name)
                .filter_map(|record| Some((*by_id.get(record.prompt_id.as_str())?, record.divergence)))
                .collect();
            let (members, divergences): (Vec<&PromptSummary>, Vec<Divergence>) = of.into_iter().unzip();
            if members.is_empty() {
                return None;
            }
            let policy = Policy::parse(name, self.cell.run.manifest().model.layers).ok();
            let kl: Vec<[f64; 1]> = divergences.iter().map(|divergence| [divergence.kl]).collect();
            let bound = mean_upper_bound95(&kl.iter().map(<[f64; 1]>::as_slice).collect::<Vec<_>>());
            let mean = Divergence::mean(&divergences);
            let upper =
                if mean.kl.is_finite() { bound.first().copied().unwrap_or(f64::NAN) } else { f64::NAN };
            Some(Row {
                prompts: members.len(),
                kl_upper95: upper,
                passes: self.passes(mean.kl, upper),
                ..self.row(Kind::Policy, name, policy.as_ref(), mean, &members)
            })
        };
        names.iter().filter_map(row).collect()
    }

    /// Prompts that expect an answer.
    fn expected(&self) -> usize {
        let of_category = |category: &&String| self.category.is_none_or(|of| *category == of);
        self.members.iter().filter(|prompt| prompt.expected.is_some()).count()
            + self.cell.unanswered.iter().filter(of_category).count()
    }

    /// Whether a policy passes, of which the divergence alone is known.
    fn passes(&self, kl: f64, upper: f64) -> Option<bool> {
        let Options { tolerance, criterion, .. } = self.cell.options;
        let within = kl <= tolerance && upper <= tolerance;
        let expects = self.members.iter().any(|prompt| prompt.expected.is_some());
        match criterion {
            _ if !within => Some(false),
            Criterion::Kl => Some(true),
            Criterion::Answers if !expects => Some(true),
            Criterion::Answers | Criterion::Text => None,
        }
    }

    /// A row with what every policy has.
    fn row(
        &self,
        kind: Kind,
        name: &str,
        policy: Option<&Policy>,
        divergence: Divergence,
        members: &[&PromptSummary],
    ) -> Row {
        let OfCell { cell, run, cost, .. } = self.cell;
        let manifest = run.manifest();
        let workloads: Vec<Workload> =
            members.iter().map(|prompt| Workload::new(prompt.p, prompt.steps)).collect();
        let costs = Costs::new(cost, &Policy::full(manifest.model.layers), &workloads);
        let under = policy.map_or(Costs::UNKNOWN, |policy| Costs::new(cost, policy, &workloads));
        let saved =
            |full: f64, under: f64| if under.is_finite() { saved_share(full, under) } else { f64::NAN };
        let seconds =
            |of: &dyn Fn(&PromptSummary) -> f64| members.iter().map(|prompt| of(prompt)).sum::<f64>();
        Row {
            run: cell.name.clone(),
            model: cell.model_name.clone(),
            model_sha256: manifest.model.sha256.clone(),
            layers: manifest.model.layers,
            adapter: cell.adapter_name.clone(),
            weights: manifest.weights.clone(),
            device: manifest.device.clone(),
            prompt_set: cell.prompts_name.clone(),
            prompts_sha256: manifest.settings.prompts_sha256.clone(),
            category: self.category.map(str::to_owned),
            kind,
            policy: name.to_owned(),
            cutoff: None,
            anchor: None,
            prompts: members.len(),
            prompts_failed: manifest.prompts.failed.len(),
            prompt_tokens: mean(members.iter().map(|prompt| prompt.p as f64)),
            max_new_tokens: manifest.settings.max_new_tokens,
            kl: divergence.kl,
            kl_upper95: f64::NAN,
            top1: divergence.top1,
            dnll: divergence.dnll,
            text_unchanged: f64::NAN,
            expected: self.expected(),
            right: None,
            answers: None,
            answers_kept: f64::NAN,
            passes: None,
            recommended: false,
            kv_bytes: under.kv_bytes / members.len() as f64,
            kv_bytes_full: costs.kv_bytes / members.len() as f64,
            kv_saved: saved(costs.kv_bytes, under.kv_bytes),
            predicted_ttft_saved: saved(costs.ttft_flops, under.ttft_flops),
            predicted_tpot_saved: saved(costs.step_bytes, under.step_bytes),
            weight_bytes: manifest.model.weight_bytes,
            full_ttft_s: mean(members.iter().map(|prompt| prompt.timings.prefill_s)),
            record_s: seconds(&|prompt| {
                let timings = prompt.timings;
                timings.prefill_s + timings.decode_s + timings.probe_s + timings.frontier_s
            }),
            layerscope: manifest.layerscope.clone(),
        }
    }
}

/// What some requests cost together under a policy.
struct Costs {
    kv_bytes: f64,
    ttft_flops: f64,
    step_bytes: f64,
}

impl Costs {
    const UNKNOWN: Self = Self { kv_bytes: f64::NAN, ttft_flops: f64::NAN, step_bytes: f64::NAN };

    fn new(cost: &CostModel, policy: &Policy, workloads: &[Workload]) -> Self {
        let costs: Vec<_> =
            workloads.iter().map(|workload| (cost.cost(policy, *workload), workload)).collect();
        Self {
            kv_bytes: costs.iter().map(|(cost, _)| cost.kv_bytes as f64).sum(),
            ttft_flops: costs.iter().map(|(cost, _)| cost.ttft_flops).sum(),
            step_bytes: costs
                .iter()
                .map(|(cost, workload)| cost.step_bytes * workload.decode_tokens as f64)
                .sum(),
        }
    }
}
