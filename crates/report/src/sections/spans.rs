//! Spans: from which layer on parts of prompts can be removed.

use super::Place;
use crate::data::Report;
use crate::document::{Cell, Drawing, Element, Figure, Inline, Table, column, plain};
use crate::spans;
use layerscope_diagnostics::record::{SpanRecord, SpanRow};
use layerscope_figures::Chart;

/// Most spans with a sentence each; the table has all of them.
const SENTENCES: usize = 12;

pub(super) fn blocks(place: &Place<'_>, report: &Report) -> Vec<Element> {
    let records: Vec<&SpanRecord> = place.run.spans.iter().map(|told| &told.record).collect();
    let sentence = |record: &SpanRecord| {
        vec![
            Inline::Plain("Prompt ".into()),
            Inline::Foreign(record.prompt_id.clone()),
            Inline::Plain(": ".into()),
            Inline::Foreign(record.name()),
            Inline::Plain(format!(" {}.", record.verdict(report.tolerance, place.layers()))),
        ]
    };
    vec![
        Element::Paragraph(plain(
            "A part of a prompt is removed from one layer up: there no later token reads it any more. What it means has by then \
             passed into later tokens, and then removing it costs nothing, or it has not. Attention on it, beside, shows where it \
             is looked at, which is not the same.",
        )),
        Element::List(records.iter().take(SENTENCES).map(|record| sentence(record)).collect()),
        Element::Figure(Box::new(figure(
            place,
            "spans-divergence",
            spans::divergence(&records, report.tolerance, place.layers()),
            table(place, &records),
        ))),
        Element::Figure(Box::new(figure(
            place,
            "spans-mass",
            spans::decode_mass(&records, place.layers()),
            masses(place, &records),
        ))),
        Element::Figure(Box::new(figure(
            place,
            "spans-follow",
            spans::masses_that_follow(&records, place.layers()),
            masses_that_follow(place, &records),
        ))),
        Element::Table(overview(place, report)),
    ]
}

fn figure(place: &Place<'_>, id: &str, chart: Chart, table: Table) -> Figure {
    Figure { id: place.id(id), drawing: Drawing::Chart(chart), table, wide: true }
}

/// A row per span and layer for which a condition holds.
fn rows(
    records: &[&SpanRecord],
    shown: impl Fn(&SpanRow) -> bool,
    figures: impl Fn(&SpanRow) -> Vec<Cell>,
) -> Vec<Vec<Cell>> {
    let of = |record: &SpanRecord| -> Vec<Vec<Cell>> {
        let row = |row: &SpanRow| {
            let at = [Cell::count(record.first), Cell::count(record.end - 1), Cell::count(row.layer)];
            std::iter::once(Cell::Foreign(record.prompt_id.clone())).chain(at).chain(figures(row)).collect()
        };
        record.layers.iter().filter(|row| shown(row)).map(row).collect()
    };
    records.iter().flat_map(|record| of(record)).collect()
}

fn table(place: &Place<'_>, records: &[&SpanRecord]) -> Table {
    let names = [("prompt", ""), ("first token", ""), ("last token", ""), ("removed from layer", "")];
    let figures = [("KL", "nats"), ("same top token", "%"), ("ΔNLL", "nats"), ("answer found", "")];
    Table {
        id: place.id("spans-divergence-data"),
        caption: "What removing spans costs, by the layer from which they are removed; the last layer removes nothing".into(),
        columns: names.into_iter().chain(figures).map(|(name, unit)| column(name, unit)).collect(),
        rows: rows(records, |_| true, |row| {
            let found = match row.found {
                Some(true) => "yes",
                Some(false) => "no",
                None => "–",
            };
            let cost = row.divergence;
            vec![
                Cell::figure(cost.kl),
                Cell::percent(cost.top1),
                Cell::figure(cost.dnll),
                Cell::Text(found.into()),
            ]
        }),
    }
}

fn masses(place: &Place<'_>, records: &[&SpanRecord]) -> Table {
    let names = [("prompt", ""), ("first token", ""), ("last token", ""), ("layer", ""), ("mass", "share")];
    Table {
        id: place.id("spans-mass-data"),
        caption: "Attention of the generating tokens on spans, by layer of the full model".into(),
        columns: names.into_iter().map(|(name, unit)| column(name, unit)).collect(),
        rows: rows(records, |row| row.layer < place.layers(), |row| vec![Cell::figure(row.decode_mass)]),
    }
}

fn masses_that_follow(place: &Place<'_>, records: &[&SpanRecord]) -> Table {
    let names = [("prompt", ""), ("first token", ""), ("last token", ""), ("removed from layer", "")];
    let figures = [
        ("span, full model", "share"),
        ("rest of the prompt, full model", "share"),
        ("position 0, without", "share"),
        ("rest of the prompt, without", "share"),
        ("decode tokens, without", "share"),
    ];
    Table {
        id: place.id("spans-follow-data"),
        caption: "Attention of the generating tokens at the layers from which spans are removed, means over these layers".into(),
        columns: names.into_iter().chain(figures).map(|(name, unit)| column(name, unit)).collect(),
        rows: rows(
            records,
            |row| row.layer < place.layers(),
            |row| {
                let masses = row.masses;
                let all = [masses.span_full, masses.rest_full, masses.bos_after, masses.rest_after, masses.decode_after];
                all.map(Cell::figure).into()
            },
        ),
    }
}

/// A row per span.
fn overview(place: &Place<'_>, report: &Report) -> Table {
    let names = [
        ("prompt", ""),
        ("first token", ""),
        ("last token", ""),
        ("text", ""),
        ("may vanish from layer", ""),
        ("layers looked at", ""),
    ];
    let rows = place.run.spans.iter().map(|told| {
        let record = &told.record;
        let from = match told.vanishes_from {
            from if from < place.layers() => Cell::count(from),
            _ => Cell::Text("none".into()),
        };
        let looked_at = record.layers.iter().filter(|row| row.layer < place.layers()).count();
        vec![
            Cell::Foreign(told.prompt_id.clone()),
            Cell::count(record.first),
            Cell::count(record.end - 1),
            Cell::Foreign(record.text.clone()),
            from,
            Cell::count(looked_at),
        ]
    });
    Table {
        id: place.id("spans"),
        caption: format!(
            "From which layer on spans may vanish (KL ≤ {} nats from there up)",
            report.tolerance
        ),
        columns: names.into_iter().map(|(name, unit)| column(name, unit)).collect(),
        rows: rows.collect(),
    }
}
