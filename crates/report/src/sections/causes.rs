//! Attention knockout, compared with attention.

use super::{Place, spread, summary_cells, summary_columns};
use crate::document::{Cell, Drawing, Element, Figure, MapDrawing, Table, column, plain};
use layerscope_cutoff::recommend::RankedLayer;
use layerscope_diagnostics::summary::largest;
use layerscope_figures::{Along, Chart, Ink, Pyramid, ScaleKind};

/// KV heads in the ranking.
const RANKED_HEADS: usize = 12;

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let mut blocks = vec![
        Element::Paragraph(plain(
            "Attention shows what a layer looks at, not what the output needs. Here the prompt is hidden from the generating \
             tokens at one layer alone, all else untouched: what that moves is a cause. The rank correlations say how far the \
             figures of attention tell the same story.",
        )),
        Element::Figure(Box::new(knockout(place))),
    ];
    blocks.extend(heads(place).map(|figure| Element::Figure(Box::new(figure))));
    blocks.extend([Element::Table(correlations(place)), Element::Table(ranking(place))]);
    blocks
}

/// The map by KV head, beside what its query heads read; nothing where it was not measured.
fn heads(place: &Place<'_>) -> Option<Figure> {
    let rows = &place.run.knockout_by_kv_head;
    let heads = rows.first().map(Vec::len)?;
    let group = place.run.manifest.model.heads / heads;
    let flat: Vec<f32> = rows.iter().flatten().map(|kl| *kl as f32).collect();
    let row = |index: usize| {
        let (layer, head) = (index / heads, index % heads);
        let masses = place.run.prompt_mass_by_head.get(layer).map_or(&[][..], Vec::as_slice);
        let of_group = masses.iter().skip(head * group).take(group);
        let read = of_group.copied().fold(f64::NAN, f64::max);
        vec![Cell::count(layer), Cell::count(head), Cell::figure(rows[layer][head]), Cell::figure(read)]
    };
    Some(Figure {
        id: place.id("knockout-heads"),
        drawing: Drawing::Map(MapDrawing {
            title: "Attention knockout by KV head".into(),
            unit: "KL, nats, logarithmic".into(),
            description: format!(
                "Mean KL divergence when the prompt is hidden from the generating tokens at one KV head alone, for each of {} layers \
                 and {heads} KV heads.",
                rows.len()
            ),
            values: Pyramid::from_rows(&flat, rows.len(), heads),
            scale: ScaleKind::Log,
            without_first: false,
            column_name: "KV head".into(),
            column_texts: vec![],
            cutoff: place.cutoff(),
        }),
        table: Table {
            id: place.id("knockout-heads-data"),
            caption: format!("The {RANKED_HEADS} KV heads that cost most; all are in knockout.parquet"),
            columns: vec![
                column("layer", ""),
                column("KV head", ""),
                column("KL", "nats"),
                column("prompt mass of the query head of it that reads most", "share"),
            ],
            rows: largest(rows.iter().flatten().copied(), RANKED_HEADS).into_iter().map(row).collect(),
        },
        wide: false,
    })
}

fn knockout(place: &Place<'_>) -> Figure {
    let mut chart = Chart::new(
        "Attention knockout",
        "KL(full ‖ prompt hidden at this layer), nats",
        Along::Layers(place.layers()),
    );
    chart.logarithmic = true;
    chart.description = "Mean KL divergence when the prompt is hidden from the generating tokens at one layer alone, by layer, \
                         logarithmic; the band reaches from the 5 % to the 95 % quantile of the prompts."
        .into();
    chart.curves.push(spread("knockout", Ink::Cutoff, &place.run.knockout));
    let mut columns = vec![column("layer", "")];
    columns.extend(summary_columns("nats"));
    let rows = place.run.knockout.iter().enumerate();
    let rows = rows
        .map(|(layer, summary)| std::iter::once(Cell::count(layer)).chain(summary_cells(summary)).collect());
    let table = Table {
        id: place.id("knockout-data"),
        caption: "KL by layer at which alone the prompt is hidden, over prompts".into(),
        columns,
        rows: rows.collect(),
    };
    let chart = match place.cutoff() {
        Some(cutoff) => chart.with_cutoff(cutoff),
        None => chart,
    };
    Figure { id: place.id("knockout"), drawing: Drawing::Chart(chart), table, wide: true }
}

fn correlations(place: &Place<'_>) -> Table {
    let rows = place.run.correlations.iter().map(|correlation| {
        vec![Cell::Text(name(correlation.figure).into()), Cell::figure(correlation.spearman)]
    });
    Table {
        id: place.id("correlations"),
        caption: "Spearman’s rank correlation with the knockout KL, over layers".into(),
        columns: vec![column("figure", ""), column("correlation", "−1 … 1")],
        rows: rows.collect(),
    }
}

/// The displayed name of a figure.
fn name(figure: &str) -> &str {
    match figure {
        "prompt_mass" => "prompt mass",
        "selectivity" => "selectivity",
        "prompt_entropy" => "conditional prompt entropy",
        "lens_kl" => "logit lens KL",
        "straightening_prompt_deg" => "trajectory straightening",
        other => other,
    }
}

fn ranking(place: &Place<'_>) -> Table {
    let recommendation = &place.run.recommendation;
    let cells = |ranked: Option<&RankedLayer>| match ranked {
        Some(ranked) => [Cell::count(ranked.layer), Cell::figure(ranked.value)],
        None => [Cell::Text(String::new()), Cell::Text(String::new())],
    };
    let ranks = recommendation.causal_layers.len().max(recommendation.reading_layers.len());
    let row = |rank: usize| {
        let (cause, reading) =
            (cells(recommendation.causal_layers.get(rank)), cells(recommendation.reading_layers.get(rank)));
        std::iter::once(Cell::count(rank + 1)).chain(cause).chain(reading).collect()
    };
    Table {
        id: place.id("ranking"),
        caption: "Layers by cause and by attention".into(),
        columns: vec![
            column("rank", ""),
            column("hiding the prompt hurts most at layer", ""),
            column("KL", "nats"),
            column("most attention goes to it at layer", ""),
            column("prompt mass", "share"),
        ],
        rows: (0..ranks).map(row).collect(),
    }
}
