//! The figure of policies' scores at tasks.

use layerscope_diagnostics::summary::Pairing;
use layerscope_eval::{Cell, EvaluationSummary, Source};
use layerscope_figures::{ScoreMark, ScoreRow, Scores};

/// Scores by metric and category, and their differences from the first policy's.
pub fn scores(evaluation: &EvaluationSummary) -> Scores {
    let mark = |cell: &Cell| ScoreMark {
        score: 100.0 * cell.score,
        difference: cell
            .difference
            .map(|found| [found.mean, found.lower95, found.upper95].map(|share| 100.0 * share)),
    };
    let rows = evaluation.rows.iter().map(|row| ScoreRow {
        metric: match row.pairing {
            Pairing::Paired => row.metric.clone(),
            Pairing::Unpaired => format!("{} (of means)", row.metric),
        },
        category: row.category.clone().unwrap_or_else(|| "all".into()),
        items: row.items,
        marks: row.cells.iter().map(mark).collect(),
    });
    let differences = match evaluation.policies.as_slice() {
        [] | [_] => String::new(),
        [first, ..] => format!(" On the right the differences from {first} with 95 % intervals."),
    };
    Scores {
        title: match &evaluation.source {
            Source::Layerscope(settings) => format!("Scores at {}", settings.tasks),
            Source::LmEval(_) => "Scores by lm-evaluation-harness".into(),
        },
        description: format!(
            "Mean score of each policy by metric and category, with the number of items.{differences}"
        ),
        policies: evaluation.policies.clone(),
        rows: rows.collect(),
    }
}
