//! How policies score at tasks, if the run folder says it.

use super::Place;
use crate::document::{Cell, Element, Inline, Table, column};
use layerscope_eval::{EvaluationSummary, Row};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let Some(evaluation) = &place.run.evaluation else { return vec![] };
    let settings = &evaluation.settings;
    let mut intro = vec![
        Inline::Plain("Answers to the items of ".into()),
        Inline::Foreign(settings.tasks.clone()),
        Inline::Plain(format!(
            " (layerscope eval, {} weights): means over the items that every policy has run.",
            settings.weights
        )),
    ];
    if evaluation.rows.iter().any(|row| row.metric == "acc") {
        intro.push(Inline::Plain(
            " acc: the likeliest choice is the right one; acc_norm: the likeliest by log-likelihood per character."
                .into(),
        ));
    }
    if settings.adapter_sha256.is_some() {
        intro.push(Inline::Plain(" The model ran with an adapter.".into()));
    }
    let mut blocks = vec![Element::Paragraph(intro), Element::Table(scores(place, evaluation))];
    if evaluation.policies.len() > 1 {
        blocks.push(Element::Table(differences(place, evaluation)));
    }
    blocks
}

/// Category, metric and number of items of a row.
fn names(row: &Row) -> Vec<Cell> {
    let category = match &row.category {
        Some(category) => Cell::Foreign(category.clone()),
        None => Cell::Text("all".into()),
    };
    vec![category, Cell::Foreign(row.metric.clone()), Cell::count(row.items)]
}

fn scores(place: &Place<'_>, evaluation: &EvaluationSummary) -> Table {
    let names_of_columns = [column("category", ""), column("metric", ""), column("items", "")];
    let of_policies = evaluation.policies.iter().map(|policy| column(policy.as_str(), "%"));
    let row = |row: &Row| {
        let of_policies = row.cells.iter().map(|cell| Cell::percent(cell.score));
        names(row).into_iter().chain(of_policies).collect()
    };
    Table {
        id: place.id("evaluation-scores"),
        caption: "Scores by category and policy".into(),
        columns: names_of_columns.into_iter().chain(of_policies).collect(),
        rows: evaluation.rows.iter().map(row).collect(),
    }
}

fn differences(place: &Place<'_>, evaluation: &EvaluationSummary) -> Table {
    let of_row = |row: &Row| -> Vec<Vec<Cell>> {
        let differing = row.cells.iter().filter_map(|cell| Some((cell, cell.difference?)));
        let cells = differing.map(|(cell, found)| {
            let figures = [found.mean, found.lower95, found.upper95].map(Cell::percent);
            names(row).into_iter().chain([Cell::Foreign(cell.policy.clone())]).chain(figures).collect()
        });
        cells.collect()
    };
    let first = evaluation.policies.first().map_or("", String::as_str);
    Table {
        id: place.id("evaluation-differences"),
        caption: format!("Differences from {first}, item by item, with 95 % bootstrap intervals"),
        columns: vec![
            column("category", ""),
            column("metric", ""),
            column("items", ""),
            column("policy", ""),
            column("difference", "points"),
            column("95 % lower", "points"),
            column("95 % upper", "points"),
        ],
        rows: evaluation.rows.iter().flat_map(of_row).collect(),
    }
}
