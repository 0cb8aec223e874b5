//! The report as data: every number that any format shows.

use crate::compare::Comparison;
use layerscope_bench::BenchReport;
use layerscope_cutoff::budget::BudgetCurve;
use layerscope_cutoff::cost::Savings;
use layerscope_cutoff::recommend::{FrontierSummary, Recommendation};
use layerscope_diagnostics::patching::PatchReport;
use layerscope_diagnostics::policies::PolicySummary;
use layerscope_diagnostics::record::{Anchor, Divergence, TextUnderCutoff, Timings};
use layerscope_diagnostics::run::Manifest;
use layerscope_diagnostics::spans::SpanReport;
use layerscope_diagnostics::summary::{RunSummary, Summary};
use layerscope_eval::EvaluationSummary;
use layerscope_figures::{Cells, Pyramid};
use schemars::JsonSchema;
use serde::Serialize;

/// Version of the JSON's layout; see `docs/report.schema.json`.
pub const REPORT_SCHEMA: u32 = 1;

/// A report on one run or several. Undefined figures are NaN here and null in JSON.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// [`REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of layerscope that wrote it.
    pub layerscope: String,
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// The runs, in the order they were given.
    pub runs: Vec<RunReport>,
    /// Every further run against the first.
    pub comparisons: Vec<RunComparison>,
}

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunReport {
    /// Name of its folder.
    pub name: String,
    /// Its manifest: model, settings, what is done.
    pub manifest: Manifest,
    /// The recommended cutoff, with reasons.
    pub recommendation: Recommendation,
    /// What each cutoff costs, by anchor.
    pub frontiers: Vec<FrontierSummary>,
    /// What each cutoff 1 … L saves with the report's anchor at the run's own lengths.
    pub savings: Vec<Savings>,
    /// Figures by layer, overall and per category.
    pub layers: RunSummary,
    /// Attention knockout: KL by layer, nats, over all prompts.
    pub knockout: Vec<Summary>,
    /// The same by layer and KV head, means over prompts; empty where it was not measured.
    pub knockout_by_kv_head: Vec<Vec<f64>>,
    /// How attention knockout goes with the figures of attention, over layers.
    pub correlations: Vec<Correlation>,
    /// Prompt mass per layer and head, mean over prompts: L lists of length H.
    pub prompt_mass_by_head: Vec<Vec<f64>>,
    /// Prompts that stand for their categories, with what they read.
    pub readings: Vec<Reading>,
    /// From which layer on spans of prompts may vanish, where that was asked (`layerscope span-ablation`).
    pub spans: Vec<SpanReport>,
    /// Maps of activation patches between prompts, where there are some (`layerscope patch`).
    pub patches: Vec<PatchReport>,
    /// Attention under policies, where that was recorded (`layerscope record --policy`).
    pub policies: Vec<PolicySummary>,
    /// KL against KV bytes, where sets of KV heads were searched (`layerscope search`).
    pub budgets: Vec<BudgetCurve>,
    /// Every recorded prompt.
    pub prompts: Vec<PromptFigures>,
    /// The prompts that diverge most at the recommended cutoff, worst first.
    pub failure_cases: Vec<FailureCase>,
    /// Scores of policies at tasks, where the run folder holds them (`layerscope eval --out RUN`, `layerscope lm-eval --out RUN`).
    pub evaluations: Vec<EvaluationSummary>,
    /// Measured times and memory, where the run folder holds them (`layerscope bench --out RUN`).
    pub bench: Option<BenchReport>,
}

/// Spearman's rank correlation over layers of the knockout KL with a figure of attention.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Correlation {
    /// The figure.
    pub figure: &'static str,
    /// The correlation, −1 … 1; null where it is undefined.
    pub spearman: f64,
}

/// A prompt and what its continuation reads of it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Reading {
    /// Unique name of the prompt within the run.
    pub prompt_id: String,
    /// Its category.
    pub category: String,
    /// Why it was chosen.
    pub chosen: Chosen,
    /// Prompt tokens p.
    pub p: usize,
    /// Decode steps N.
    pub steps: usize,
    /// Attention received, mean over heads and steps, `[L, p]`; whole in the run's `tokens.parquet`.
    #[serde(skip)]
    pub received: Pyramid,
    /// Prompt mass, mean over heads, `[L, N]`; whole in the run's `steps.parquet`.
    #[serde(skip)]
    pub prompt_mass_by_step: Pyramid,
    /// The same under policies, by name; whole in the run's `policies.parquet`.
    #[serde(skip)]
    pub under: Vec<(String, Pyramid)>,
    /// The strongest prompt positions of each decode step, at one layer; null where the run was recorded before they were kept. Whole in
    /// the run's `steps.parquet`.
    pub pattern: Option<ReadPattern>,
    /// How each prompt token is shown, length p.
    #[serde(skip)]
    pub tokens: Vec<String>,
    /// How each token of the continuation is shown, length N.
    #[serde(skip)]
    pub generated: Vec<String>,
    /// The positions that receive most attention after position 0, most first.
    pub most_read: Vec<ReadToken>,
}

/// Decode steps × prompt positions at one layer, means over heads.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReadPattern {
    /// The layer at which hiding the prompt costs most.
    pub layer: usize,
    /// The cells; 0 where a position is weaker than what is recorded.
    #[serde(skip)]
    pub cells: Cells,
    /// The strongest pairs behind position 0.
    pub strongest: Vec<StrongRead>,
}

/// A decode step and a prompt position that it reads.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StrongRead {
    /// The decode step.
    pub step: usize,
    /// The position.
    pub position: usize,
    /// Attention on it, mean over heads.
    pub attention: f64,
}

/// Why a prompt is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Chosen {
    /// Its prompt masses are nearest to its category's means.
    Typical,
    /// It is the longest of the run.
    Longest,
}

/// A prompt token and the attention it receives.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReadToken {
    /// Its position in the prompt.
    pub position: usize,
    /// How it is shown.
    pub token: String,
    /// Attention received, mean over layers, heads and steps.
    pub received: f64,
    /// The layer that reads it most.
    pub layer: usize,
    /// Attention received there, mean over heads and steps.
    pub received_there: f64,
}

/// A prompt in one row.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PromptFigures {
    /// Unique name of the prompt within the run.
    pub prompt_id: String,
    /// Its category.
    pub category: String,
    /// Prompt tokens p.
    pub p: usize,
    /// Decode steps N.
    pub steps: usize,
    /// Whether the continuation was given.
    pub answer_given: bool,
    /// What the recommended cutoff costs it.
    pub at_cutoff: Divergence,
    /// What becomes of its text there.
    pub text: TextUnderCutoff,
    /// Whether an answer is expected.
    pub expects_answer: bool,
    /// Whether the full model gives it.
    pub answered_by_full: bool,
    /// Wall-clock times of its recording.
    pub timings: Timings,
}

/// A prompt that diverges at the recommended cutoff.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FailureCase {
    /// Unique name of the prompt within the run.
    pub prompt_id: String,
    /// Its category.
    pub category: String,
    /// The prompt as the user wrote it, or its beginning and end.
    pub prompt: String,
    /// What the cutoff costs it.
    pub at_cutoff: Divergence,
    /// The full model's continuation, token by token.
    pub full: Vec<String>,
    /// Whether that was given instead of generated, so that there is no text to compare it with.
    pub answer_given: bool,
    /// The continuation under the recommended policy, token by token; null where it was not generated.
    pub cut: Option<Vec<String>>,
    /// Whether the text under the policy ends in a loop; null where it was not generated.
    pub loops: Option<bool>,
    /// Step at which the two first differ; null where they do not, or where it was not generated.
    pub first_difference: Option<usize>,
}

/// A run against the first one.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunComparison {
    /// Name of the first run.
    pub first: String,
    /// Name of the run that is compared with it.
    pub second: String,
    /// How they differ.
    #[serde(flatten)]
    pub comparison: Comparison,
}
