//! How policies score at tasks, if the run folder says it.

use super::Place;
use crate::document::{Cell, Drawing, Element, Figure, Inline, Table, column};
use layerscope_diagnostics::summary::Pairing;
use layerscope_eval::{EvaluationSummary, Row, Source};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    place.run.evaluations.iter().flat_map(|evaluation| of_evaluation(place, evaluation)).collect()
}

fn of_evaluation(place: &Place<'_>, evaluation: &EvaluationSummary) -> Vec<Element> {
    let mut intro = vec![];
    let prefix = match &evaluation.source {
        Source::Layerscope(settings) => {
            intro.extend([
                Inline::Plain("Answers to the items of ".into()),
                Inline::Foreign(settings.tasks.clone()),
                Inline::Plain(format!(
                    " (layerscope eval, {} weights): means over the items that every policy has run.",
                    settings.weights
                )),
            ]);
            if settings.adapter_sha256.is_some() {
                intro.push(Inline::Plain(" The model ran with an adapter.".into()));
            }
            "evaluation"
        }
        Source::LmEval(harness) => {
            intro.push(Inline::Plain("Scores by lm-evaluation-harness ".into()));
            intro.push(Inline::Foreign(harness.lm_eval.clone()));
            intro.push(Inline::Plain(", from ".into()));
            for (index, run) in harness.runs.iter().enumerate() {
                if index > 0 {
                    intro.push(Inline::Plain(", ".into()));
                }
                intro.push(Inline::Foreign(run.file.clone()));
                intro.push(Inline::Plain(" (".into()));
                intro.push(Inline::Foreign(run.policy.clone()));
                if !run.model.is_empty() {
                    intro.push(Inline::Plain(" of ".into()));
                    intro.push(Inline::Foreign(run.model.clone()));
                }
                intro.push(Inline::Plain(")".into()));
            }
            intro.push(Inline::Plain(". Its files do not say which weights ran.".into()));
            "lm-eval"
        }
    };
    if evaluation.has_metric("acc") {
        intro.push(Inline::Plain(
            " acc: the likeliest choice is the right one; acc_norm: the likeliest by log-likelihood per character."
                .into(),
        ));
    }
    let mut blocks = vec![
        Element::Paragraph(intro),
        Element::Table(scores(place.id(&format!("{prefix}-scores")), evaluation)),
    ];
    if evaluation.policies.len() > 1 {
        blocks.push(Element::Figure(Box::new(Figure {
            id: place.id(&format!("{prefix}-figure")),
            drawing: Drawing::Scores(crate::scores(evaluation)),
            table: differences(place.id(&format!("{prefix}-differences")), evaluation),
            wide: true,
        })));
    }
    blocks
}

/// Category, metric and number of items of a row.
fn names(row: &Row) -> Vec<Cell> {
    let category = match &row.category {
        Some(category) => Cell::Foreign(category.clone()),
        None => Cell::Text("all".into()),
    };
    let metric = match row.pairing {
        Pairing::Paired => row.metric.clone(),
        Pairing::Unpaired => format!("{}*", row.metric),
    };
    vec![category, Cell::Foreign(metric), Cell::count(row.items)]
}

fn scores(id: String, evaluation: &EvaluationSummary) -> Table {
    let names_of_columns = [column("category", ""), column("metric", ""), column("items", "")];
    let of_policies = evaluation.policies.iter().map(|policy| column(policy.as_str(), "%"));
    let row = |row: &Row| {
        let of_policies = row.cells.iter().map(|cell| Cell::percent(cell.score));
        names(row).into_iter().chain(of_policies).collect()
    };
    Table {
        id,
        caption: "Scores by category and policy".into(),
        columns: names_of_columns.into_iter().chain(of_policies).collect(),
        rows: evaluation.rows.iter().map(row).collect(),
    }
}

fn differences(id: String, evaluation: &EvaluationSummary) -> Table {
    let of_row = |row: &Row| -> Vec<Vec<Cell>> {
        let differing = row.cells.iter().filter_map(|cell| Some((cell, cell.difference?)));
        let cells = differing.map(|(cell, found)| {
            let figures = [found.mean, found.lower95, found.upper95].map(Cell::percent);
            let policy = [Cell::Foreign(cell.policy.clone())];
            names(row).into_iter().chain(policy).chain(figures).collect()
        });
        cells.collect()
    };
    let unpaired = match evaluation.has_unpaired() {
        true => "; *: of means, with intervals from standard errors, since scores of items were not logged",
        false => "",
    };
    let first = evaluation.policies.first().map_or("", String::as_str);
    Table {
        id,
        caption: format!("Differences from {first}, item by item, with 95 % bootstrap intervals{unpaired}"),
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
