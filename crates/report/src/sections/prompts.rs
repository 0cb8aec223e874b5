//! The table of recorded prompts.

use super::Place;
use crate::data::PromptFigures;
use crate::document::{Cell, Element, Table, column};
use layerscope_diagnostics::record::TextUnderCutoff;

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let columns = vec![
        column("prompt", ""),
        column("category", ""),
        column("prompt tokens", ""),
        column("decode steps", ""),
        column("continuation", ""),
        column("text departs", "step"),
        column("answer", ""),
        column("KL at the cutoff", "nats"),
        column("same top token", "%"),
        column("ΔNLL", "nats"),
        column("prefill", "s"),
    ];
    let row = |prompt: &PromptFigures| {
        vec![
            Cell::Foreign(prompt.prompt_id.clone()),
            Cell::Foreign(prompt.category.clone()),
            Cell::count(prompt.p),
            Cell::count(prompt.steps),
            Cell::Text(if prompt.answer_given { "given" } else { "greedy" }.into()),
            Cell::Text(departs(&prompt.text)),
            Cell::Text(answer(prompt)),
            Cell::figure(prompt.at_cutoff.kl),
            Cell::percent(prompt.at_cutoff.top1),
            Cell::figure(prompt.at_cutoff.dnll),
            Cell::figure(prompt.timings.prefill_s),
        ]
    };
    vec![Element::Table(Table {
        id: place.id("prompts-table"),
        caption: "Every recorded prompt, with what the recommended cutoff costs it".into(),
        columns,
        rows: place.run.prompts.iter().map(row).collect(),
    })]
}

/// The step at which the text departs from the full model's.
fn departs(text: &TextUnderCutoff) -> String {
    match (text.unchanged, text.departs) {
        (_, Some(step)) => step.to_string(),
        (Some(true), None) => "never".into(),
        _ => "–".into(),
    }
}

/// What becomes of the answer.
fn answer(prompt: &PromptFigures) -> String {
    let text = match (prompt.expects_answer, prompt.text.answered) {
        (false, _) => "–",
        (true, Some(true)) => "kept",
        (true, Some(false)) if prompt.answered_by_full => "lost",
        (true, _) => "not given by the full model",
    };
    text.into()
}
