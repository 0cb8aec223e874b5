//! Scores by category and policy, and how they differ from the first policy's.

use crate::harness::{HARNESS, Harness, HarnessScores};
use crate::results::{EVAL, Evaluation, Settings};
use layerscope_diagnostics::summary::{Difference, Pairing, differences, mean};
use layerscope_engine::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// A category, or all items, by one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The category; all items where there is none.
    pub category: Option<String>,
    /// The metric.
    pub metric: String,
    /// Items that all policies have run.
    pub items: usize,
    /// Whether differences are taken item by item, or from means and their standard errors.
    pub pairing: Pairing,
    /// One for each policy, in their order.
    pub cells: Vec<Cell>,
}

/// A policy in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cell {
    /// The policy's name.
    pub policy: String,
    /// Mean score, 0 to 1.
    pub score: f64,
    /// Its difference from the first policy's; `None` for that one itself.
    pub difference: Option<Difference>,
}

/// Scores in short.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EvaluationSummary {
    /// Where they come from.
    pub source: Source,
    /// The policies, in the order in which they ran; all are compared with the first.
    pub policies: Vec<String>,
    /// Scores by metric and category.
    pub rows: Vec<Row>,
}

/// Where scores come from.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// `layerscope eval`.
    Layerscope(Settings),
    /// Result files of lm-evaluation-harness.
    LmEval(Harness),
}

impl EvaluationSummary {
    /// What a run folder holds: of `layerscope eval`, and of lm-evaluation-harness; without those that have no item in common to all policies.
    ///
    /// # Errors
    /// As [`Evaluation::read`]; [`Error::Input`] where the scores are of another model than `model_sha256`.
    pub fn of_run(folder: &Path, model_sha256: &str) -> Result<Vec<Self>> {
        let own = Evaluation::read_of_run(folder)?;
        if own.as_ref().is_some_and(|own| own.settings.model_sha256 != model_sha256) {
            let path = folder.join(EVAL);
            return Err(Error::input(format!(
                "{} is of another model than the run; move it out of the folder",
                path.display()
            )));
        }
        let path = folder.join(HARNESS);
        let harness = if layerscope_files::exists(&path) { Some(HarnessScores::read(&path)?) } else { None };
        let all = own.map(Self::from).into_iter().chain(harness.map(Self::from));
        Ok(all.filter(|summary| !summary.rows.is_empty()).collect())
    }

    /// Whether some differences are not taken item by item.
    pub fn has_unpaired(&self) -> bool {
        self.rows.iter().any(|row| row.pairing == Pairing::Unpaired)
    }

    /// Whether a metric is among the rows'.
    pub fn has_metric(&self, metric: &str) -> bool {
        self.rows.iter().any(|row| row.metric == metric)
    }
}

impl From<Evaluation> for EvaluationSummary {
    fn from(evaluation: Evaluation) -> Self {
        let mut policies: Vec<String> = vec![];
        for result in &evaluation.results {
            if !policies.contains(&result.policy) {
                policies.push(result.policy.clone());
            }
        }
        let rows = summarise(evaluation.scored(), &policies);
        Self { source: Source::Layerscope(evaluation.settings), policies, rows }
    }
}

impl From<HarnessScores> for EvaluationSummary {
    fn from(scores: HarnessScores) -> Self {
        Self { source: Source::LmEval(scores.harness), policies: scores.policies, rows: scores.rows }
    }
}

/// An item's scores under a policy.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// The item.
    pub id: &'a str,
    /// Its category.
    pub category: &'a str,
    /// By metric, 0 to 1.
    pub scores: &'a BTreeMap<String, f64>,
}

/// Rows by metric, all items first, then categories by name. Items count that every policy has run.
pub fn summarise<'a>(results: impl Iterator<Item = Scored<'a>>, policies: &[String]) -> Vec<Row> {
    let Some(first) = policies.first() else { return vec![] };
    let mut by_name: HashMap<(&str, &str), Scored<'_>> = HashMap::new();
    let mut of_first = vec![];
    for result in results {
        by_name.entry((result.policy, result.id)).or_insert(result);
        if result.policy == first {
            of_first.push(result.id);
        }
    }
    let of_all = |id: &str| -> Option<Vec<Scored<'_>>> {
        policies.iter().map(|policy| by_name.get(&(policy.as_str(), id)).copied()).collect()
    };
    let done: Vec<Vec<Scored<'_>>> = of_first.into_iter().filter_map(of_all).collect();
    let metrics: BTreeSet<&String> = done.iter().flat_map(|items| items[0].scores.keys()).collect();
    let several = done.iter().any(|items| items[0].category != done[0][0].category);
    let mut rows = vec![];
    for metric in metrics {
        let scores_of = |items: &Vec<Scored<'_>>| -> Option<Vec<f64>> {
            items.iter().map(|item| item.scores.get(metric).copied()).collect()
        };
        let scored = done.iter().filter_map(|items| Some((items[0].category, scores_of(items)?)));
        let scored: Vec<(&str, Vec<f64>)> = scored.collect();
        let categories: BTreeSet<&str> = scored.iter().map(|(category, _)| *category).collect();
        // A metric of one category has no row of all items, but where there is no other category.
        let all = (categories.len() > 1 || !several).then_some(None);
        let groups = all.into_iter().chain(categories.into_iter().map(Some).filter(|_| several));
        for category in groups {
            let scores = scored.iter().filter(|(own, _)| category.is_none_or(|name| *own == name));
            let scores: Vec<&Vec<f64>> = scores.map(|(_, scores)| scores).collect();
            if scores.is_empty() {
                continue;
            }
            rows.push(Row {
                category: category.map(str::to_owned),
                metric: metric.clone(),
                items: scores.len(),
                pairing: Pairing::Paired,
                cells: cells(policies, &scores),
            });
        }
    }
    rows
}

/// `scores[item][policy]`.
fn cells(policies: &[String], scores: &[&Vec<f64>]) -> Vec<Cell> {
    let of_policy = |index: usize| -> Vec<[f64; 1]> { scores.iter().map(|of| [of[index]]).collect() };
    let first = of_policy(0);
    let first: Vec<&[f64]> = first.iter().map(|score| &score[..]).collect();
    let cell = |(index, policy): (usize, &String)| {
        let own = of_policy(index);
        let rows: Vec<&[f64]> = own.iter().map(|score| &score[..]).collect();
        let difference = (index > 0).then(|| differences(&first, &rows, Pairing::Paired));
        Cell {
            policy: policy.clone(),
            score: mean(own.iter().map(|score| score[0])),
            difference: difference.and_then(|found| found.first().copied()),
        }
    };
    policies.iter().enumerate().map(cell).collect()
}
