//! Scores by category and policy, and how they differ from the first policy's.

use crate::results::{Evaluation, ItemResult, Settings};
use layerscope_diagnostics::summary::{Difference, Pairing, differences, mean};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// A category, or all items, by one metric.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The category; all items where there is none.
    pub category: Option<String>,
    /// The metric.
    pub metric: String,
    /// Items that all policies have run.
    pub items: usize,
    /// One for each policy, in their order.
    pub cells: Vec<Cell>,
}

/// A policy in a row.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Cell {
    /// The policy's name.
    pub policy: String,
    /// Mean score, 0 to 1.
    pub score: f64,
    /// Its difference from the first policy's, item by item; `None` for that one itself.
    pub difference: Option<Difference>,
}

/// An evaluation in short.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EvaluationSummary {
    /// What it depends on.
    #[serde(flatten)]
    pub settings: Settings,
    /// The policies, in the order in which they ran.
    pub policies: Vec<String>,
    /// Scores by metric and category.
    pub rows: Vec<Row>,
}

impl From<Evaluation> for EvaluationSummary {
    fn from(evaluation: Evaluation) -> Self {
        let mut policies: Vec<String> = vec![];
        for result in &evaluation.results {
            if !policies.contains(&result.policy) {
                policies.push(result.policy.clone());
            }
        }
        Self { rows: summarise(&evaluation, &policies), policies, settings: evaluation.settings }
    }
}

/// Rows by metric, all items first, then categories by name. Items count that every policy has run.
pub fn summarise(evaluation: &Evaluation, policies: &[String]) -> Vec<Row> {
    let Some(first) = policies.first() else { return vec![] };
    let mut by_name: HashMap<(&str, &str), &ItemResult> = HashMap::new();
    for result in &evaluation.results {
        by_name.entry((&result.policy, &result.id)).or_insert(result);
    }
    let of_all = |result: &ItemResult| -> Option<Vec<&ItemResult>> {
        policies.iter().map(|policy| by_name.get(&(&policy[..], &result.id[..])).copied()).collect()
    };
    let of_first = evaluation.results.iter().filter(|result| result.policy == *first);
    let done: Vec<Vec<&ItemResult>> = of_first.filter_map(of_all).collect();
    let metrics: BTreeSet<&String> = done.iter().flat_map(|items| items[0].scores.keys()).collect();
    let categories: BTreeSet<&String> = done.iter().map(|items| &items[0].category).collect();
    let mut rows = vec![];
    for metric in metrics {
        let several = categories.len() > 1;
        let groups = std::iter::once(None).chain(categories.iter().copied().map(Some).filter(|_| several));
        for category in groups {
            let scores = done.iter().filter(|items| category.is_none_or(|name| items[0].category == *name));
            let scores: Vec<Vec<f64>> = scores
                .filter_map(|items| items.iter().map(|item| item.scores.get(metric).copied()).collect())
                .collect();
            if scores.is_empty() {
                continue;
            }
            rows.push(Row {
                category: category.cloned(),
                metric: metric.clone(),
                items: scores.len(),
                cells: cells(policies, &scores),
            });
        }
    }
    rows
}

/// `scores[item][policy]`.
fn cells(policies: &[String], scores: &[Vec<f64>]) -> Vec<Cell> {
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
