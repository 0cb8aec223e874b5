//! The best policy for a budget of KV bytes: of all recorded cutoffs and all searched sets that fit, the one with least KL.
//!
//! Cutoffs and sets are compared on the prompts that the sets were judged on.

use crate::cost::{Cost, Workload, saved_share};
use crate::recommend::{Evidence, FrontierPoint, FrontierSummary};
use layerscope_diagnostics::record::{Anchor, PromptSummary};
use layerscope_diagnostics::run::{SearchOrder, SearchUnits, SetSearch, Sets};
use layerscope_engine::{Error, Policy, Result, readable_bytes};
use schemars::JsonSchema;
use serde::Serialize;
use std::str::FromStr;

/// How much KV there may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KvBudget {
    /// A share of what the full model takes, 0 … 1.
    Share(f64),
    /// Bytes.
    Bytes(f64),
}

impl FromStr for KvBudget {
    type Err = String;

    /// `50%`, or bytes such as `24GB`, `1.5GiB`, `800MiB`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong =
            || format!("`{text}` is no budget; give a share such as 50%, or bytes such as 800MiB or 24GB");
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..split].parse().map_err(|_| wrong())?;
        let unit = match text[split..].trim().to_ascii_lowercase().as_str() {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Self::Share(number / 100.0)),
            "b" => 1.0,
            "kib" => 1024.0,
            "mib" => 1024f64.powi(2),
            "gib" => 1024f64.powi(3),
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            _ => return Err(wrong()),
        };
        Some(number * unit).filter(|bytes| *bytes >= 1.0).map(Self::Bytes).ok_or_else(wrong)
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The budget of one sequence.
    pub kv: KvBudget,
    /// Prompt tokens; the mean of the run where none are given.
    pub context: Option<usize>,
    /// Which prompt tokens keep KV at every layer under a cutoff.
    pub anchor: Anchor,
}

/// Where a policy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Everything stays.
    Full,
    /// A cutoff of the frontier.
    Cutoff,
    /// A searched set.
    Set,
    /// A set behind a cutoff.
    CutoffAndSet,
}

/// A policy that fits. Undefined figures are NaN here and null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Its name.
    pub policy: String,
    /// Where it comes from.
    pub kind: Kind,
    /// KV bytes at the budget's lengths.
    pub kv_bytes: f64,
    /// Share of the full model's.
    pub kv_kept: f64,
    /// Mean KL over the prompts that it was judged on, nats.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound, nats.
    pub kl_upper95: f64,
    /// Share of steps with the same most likely token.
    pub top1: f64,
    /// Of those prompts, the ones whose answer is kept.
    pub answers_kept: usize,
    /// Of those prompts, the ones whose answer the full model gives.
    pub answers: usize,
    /// Prediction: share of the time to first token saved.
    pub predicted_ttft_saved: f64,
    /// Prediction: share of the time per output token saved.
    pub predicted_tpot_saved: f64,
    /// Longest prompt whose KV fits into the budget's bytes, tokens; at most the model's context.
    pub longest_prompt: usize,
}

/// What fits into a budget.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fitting {
    /// The budget in bytes.
    pub bytes: f64,
    /// Prompt tokens and decode steps that it is for.
    pub prompt_tokens: usize,
    /// Decode steps.
    pub steps: usize,
    /// Prompts that the policies are compared on.
    pub prompts: usize,
    /// The best policy of each kind, best first.
    pub choices: Vec<Choice>,
}

/// The best policy of each kind that fits into a budget, best first.
///
/// # Errors
/// [`Error::Input`] where the run has no prompt, or nothing that fits.
pub fn fitting(evidence: Evidence<'_>, sets: Option<&Sets>, budget: Budget) -> Result<Fitting> {
    let searches = sets.map_or(&[][..], |sets| &sets.searches);
    let judged = judged(evidence, sets);
    let compared = Evidence { prompts: &judged, ..evidence };
    let frontier = FrontierSummary::new(compared, budget.anchor).ok_or_else(|| {
        Error::input(
            "the run holds no recorded prompt to compare policies on; record some with layerscope record",
        )
    })?;
    let scale = Scale::new(evidence, budget)?;
    let mut choices: Vec<Choice> = vec![];
    let overall = frontier.overall();
    for cutoff in 1..=scale.layers {
        let point = FrontierPoint { cutoff, anchor: budget.anchor };
        let (at, kept) = (overall.at(cutoff), overall.kept.answers_at(cutoff));
        let kind = if cutoff == scale.layers { Kind::Full } else { Kind::Cutoff };
        let policy = point.policy(scale.layers)?;
        let figures = Figures {
            kl: at.kl,
            kl_upper95: overall.upper95_at(cutoff),
            top1: at.top1,
            answers: [kept.kept, kept.of],
        };
        choices.extend(scale.choice(&policy, kind, figures));
    }
    for search in searches {
        let kind = if search.cutoff < scale.layers { Kind::CutoffAndSet } else { Kind::Set };
        for set in &search.sets {
            let policy = Policy::parse(&set.policy, scale.layers)?;
            let figures = Figures {
                kl: set.judged.kl,
                kl_upper95: set.kl_upper95,
                top1: set.judged.top1,
                answers: [set.answers_kept, set.answers],
            };
            choices.extend(scale.choice(&policy, kind, figures));
        }
    }
    choices.retain(|choice| choice.kl.is_finite());
    // Of equals, the smaller.
    choices.sort_by(|a, b| a.kl.total_cmp(&b.kl).then(a.kv_bytes.total_cmp(&b.kv_bytes)));
    let mut kinds = vec![];
    choices.retain(|choice| {
        let is_first = !kinds.contains(&choice.kind);
        kinds.push(choice.kind);
        is_first
    });
    if choices.is_empty() {
        return Err(Error::input(format!(
            "no recorded cutoff and no searched set fits into {}; search further with layerscope search --worst-kl 2",
            readable_bytes(scale.bytes)
        )));
    }
    Ok(Fitting {
        bytes: scale.bytes,
        prompt_tokens: scale.prompt_tokens,
        steps: scale.steps,
        prompts: overall.prompts,
        choices,
    })
}

/// What policies of one kind cost, from the one that keeps most KV to the one that keeps least.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BudgetCurve {
    /// What is dropped: `cutoffs`, `KV heads`, `layers`, with what else is dropped or shown.
    pub name: String,
    /// Its policies.
    pub points: Vec<BudgetPoint>,
}

/// A policy. Undefined figures are NaN here and null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BudgetPoint {
    /// Its name.
    pub policy: String,
    /// Share of the KV bytes that it keeps at the run's lengths.
    pub kv_kept: f64,
    /// Mean KL over the prompts that it was judged on, nats.
    pub kl: f64,
    /// Its one-sided 95 % bootstrap upper bound, nats.
    pub kl_upper95: f64,
    /// Of those prompts, the ones whose answer is kept.
    pub answers_kept: usize,
    /// Of those prompts, the ones whose answer the full model gives.
    pub answers: usize,
}

/// The budget frontier: KL against KV bytes, of the cutoffs on the prompts that the last search was judged on, and of each search.
///
/// # Errors
/// [`Error::Input`] where a cutoff has no policy.
pub fn curves(evidence: Evidence<'_>, sets: &Sets, anchor: Anchor) -> Result<Vec<BudgetCurve>> {
    let judged = judged(evidence, Some(sets));
    let compared = Evidence { prompts: &judged, ..evidence };
    let mut curves = vec![];
    if let Some(frontier) = FrontierSummary::new(compared, anchor) {
        let (overall, layers, workloads) = (frontier.overall(), evidence.layers(), evidence.workloads());
        let cost = evidence.cost();
        let point = |cutoff: usize| {
            let kept = overall.kept.answers_at(cutoff);
            let policy = FrontierPoint { cutoff, anchor }.policy(layers)?;
            Ok(BudgetPoint {
                policy: policy.to_string(),
                kv_kept: 1.0 - cost.savings(cutoff, anchor == Anchor::Bos, &workloads).kv_saved,
                kl: overall.at(cutoff).kl,
                kl_upper95: overall.upper95_at(cutoff),
                answers_kept: kept.kept,
                answers: kept.of,
            })
        };
        let points = (1..=layers).rev().map(point).collect::<Result<_>>()?;
        curves.push(BudgetCurve { name: "cutoffs".into(), points });
    }
    curves.extend(sets.searches.iter().map(|search| {
        let points = search.sets.iter().map(|set| BudgetPoint {
            policy: set.policy.clone(),
            kv_kept: set.kv_kept,
            kl: set.judged.kl,
            kl_upper95: set.kl_upper95,
            answers_kept: set.answers_kept,
            answers: set.answers,
        });
        BudgetCurve { name: search_name(search, evidence.layers()), points: points.collect() }
    }));
    Ok(curves)
}

/// What a search drops and shows.
pub fn search_name(search: &SetSearch, layers: usize) -> String {
    let units = match search.units {
        SearchUnits::Heads => "KV heads",
        SearchUnits::Layers => "layers",
    };
    let below = if search.cutoff < layers { format!(" below {}", search.cutoff) } else { String::new() };
    let shown = match (search.first, search.last) {
        (1, 0) => String::new(),
        (first, 0) => format!(", first {first} tokens shown"),
        (first, last) => format!(", first {first} and last {last} tokens shown"),
    };
    let by = match search.order {
        SearchOrder::Joint => "",
        SearchOrder::Knockout => ", by what each costs alone",
        SearchOrder::Mass => ", by attention mass",
    };
    format!("{units}{below}{shown}{by}")
}

/// The prompts that policies are compared on.
fn judged(evidence: Evidence<'_>, sets: Option<&Sets>) -> Vec<PromptSummary> {
    match sets.and_then(|sets| sets.searches.last()) {
        Some(search) => {
            evidence.prompts.iter().filter(|prompt| search.judged.contains(&prompt.id)).cloned().collect()
        }
        None => evidence.prompts.to_vec(),
    }
}

/// What a policy costs on the prompts that it was judged on.
struct Figures {
    kl: f64,
    kl_upper95: f64,
    top1: f64,
    answers: [usize; 2],
}

/// What policies are weighed with.
struct Scale<'a> {
    evidence: Evidence<'a>,
    layers: usize,
    prompt_tokens: usize,
    steps: usize,
    bytes: f64,
    full: Cost,
}

impl<'a> Scale<'a> {
    fn new(evidence: Evidence<'a>, budget: Budget) -> Result<Self> {
        let prompts = evidence.prompts.len().max(1);
        let mean = |of: fn(&PromptSummary) -> usize| {
            evidence.prompts.iter().map(of).sum::<usize>().div_ceil(prompts)
        };
        let (prompt_tokens, steps) =
            (budget.context.unwrap_or(mean(|prompt| prompt.p)), mean(|prompt| prompt.steps));
        let layers = evidence.layers();
        let full = evidence.cost().cost(&Policy::full(layers), Workload::new(prompt_tokens, steps));
        let bytes = match budget.kv {
            KvBudget::Share(share) => share * full.kv_bytes as f64,
            KvBudget::Bytes(bytes) => bytes,
        };
        Ok(Self { evidence, layers, prompt_tokens, steps, bytes, full })
    }

    /// The policy, if it fits.
    fn choice(&self, policy: &Policy, kind: Kind, figures: Figures) -> Option<Choice> {
        let cost = self.cost(policy, self.prompt_tokens);
        let [answers_kept, answers] = figures.answers;
        (cost.kv_bytes as f64 <= self.bytes).then(|| Choice {
            policy: policy.to_string(),
            kind,
            kv_bytes: cost.kv_bytes as f64,
            kv_kept: cost.kv_bytes as f64 / self.full.kv_bytes as f64,
            kl: figures.kl,
            kl_upper95: figures.kl_upper95,
            top1: figures.top1,
            answers_kept,
            answers,
            predicted_ttft_saved: saved_share(self.full.ttft_flops, cost.ttft_flops),
            predicted_tpot_saved: saved_share(self.full.step_bytes, cost.step_bytes),
            longest_prompt: self.longest_prompt(policy),
        })
    }

    fn cost(&self, policy: &Policy, prompt_tokens: usize) -> Cost {
        self.evidence.cost().cost(policy, Workload::new(prompt_tokens, self.steps))
    }

    /// The longest prompt whose KV fits, by bisection.
    fn longest_prompt(&self, policy: &Policy) -> usize {
        let fits = |tokens: usize| self.cost(policy, tokens).kv_bytes as f64 <= self.bytes;
        let (mut fitting, mut beyond) = (0, self.evidence.model().context + 1);
        while fitting + 1 < beyond {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) { fitting = middle } else { beyond = middle }
        }
        fitting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read() {
        let read = |text: &str| text.parse::<KvBudget>();
        assert_eq!(read("50%"), Ok(KvBudget::Share(0.5)));
        assert_eq!(read("24GB"), Ok(KvBudget::Bytes(24e9)));
        assert_eq!(read("1.5 GiB"), Ok(KvBudget::Bytes(1.5 * 1024f64.powi(3))));
        for wrong in ["", "50", "0%", "101%", "x", "-1GB", "1.2.3GB", "1TB", "0MiB", "NaN%", "%"] {
            assert!(read(wrong).is_err_and(|sentence| sentence.contains("no budget")), "{wrong}");
        }
    }
}
