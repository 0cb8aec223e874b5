//! The table of recorded prompts.

use super::Place;
use crate::data::PromptFigures;
use crate::document::{Cell, Element, Table, column};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let columns = vec![
        column("prompt", ""),
        column("category", ""),
        column("prompt tokens", ""),
        column("decode steps", ""),
        column("continuation", ""),
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
