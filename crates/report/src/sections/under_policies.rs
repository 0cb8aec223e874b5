//! Attention under policies beside the full model's.

use super::Place;
use super::readings::{mean_of_step, steps_map};
use crate::document::{Cell, Column, Drawing, Element, Figure, Inline, Table, column, plain};
use crate::under_policies::{FIGURES, PolicyFigure};

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let mut blocks = vec![
        Element::Paragraph(plain(
            "Each prompt ran again under these policies, and its decode tokens are those of the full model's text: so the lines \
             differ by what the policy takes away, not by the text.",
        )),
        Element::Table(costs(place)),
    ];
    blocks.extend(FIGURES.iter().map(|figure| Element::Figure(Box::new(chart(place, figure)))));
    for (index, reading) in
        place.run.readings.iter().enumerate().filter(|(_, reading)| !reading.under.is_empty())
    {
        blocks.push(Element::Paragraph(vec![
            Inline::Plain("Prompt mass by decode step of prompt ".into()),
            Inline::Foreign(reading.prompt_id.clone()),
            Inline::Plain(", under the full model and under each policy.".into()),
        ]));
        let full = ("full".to_owned(), reading.prompt_mass_by_step.clone());
        for (number, (policy, values)) in std::iter::once(&full).chain(&reading.under).enumerate() {
            let id = place.id(&format!("policy-steps-{}-{number}", index + 1));
            let row = |step: usize| vec![Cell::count(step), Cell::figure(mean_of_step(values, step))];
            let title = format!("Prompt mass under {policy}");
            blocks.push(Element::Figure(Box::new(Figure {
                drawing: steps_map(place, reading, (title, &format!(" under {policy}")), values),
                table: Table {
                    id: format!("{id}-data"),
                    caption: format!(
                        "Prompt mass by decode step under {policy}, mean over layers and heads; all layers are in policies.parquet"
                    ),
                    columns: vec![column("step", ""), column("prompt mass", "share")],
                    rows: (0..reading.steps).map(row).collect(),
                },
                id,
                wide: false,
            })));
        }
    }
    blocks
}

fn costs(place: &Place<'_>) -> Table {
    let row = |summary: &layerscope_diagnostics::policies::PolicySummary| {
        vec![
            Cell::Foreign(summary.policy.clone()),
            Cell::count(summary.prompts),
            Cell::figure(summary.divergence.kl),
            Cell::percent(summary.divergence.top1),
            Cell::figure(summary.divergence.dnll),
        ]
    };
    Table {
        id: place.id("policy-costs"),
        caption: "What each policy costs along the recorded texts".into(),
        columns: vec![
            column("policy", ""),
            column("prompts", ""),
            column("KL", "nats"),
            column("same top token", "%"),
            column("ΔNLL", "nats"),
        ],
        rows: place.run.policies.iter().map(row).collect(),
    }
}

fn chart(place: &Place<'_>, figure: &PolicyFigure) -> Figure {
    let (run, policies) = (&place.run.layers, &place.run.policies);
    let drawn = figure.chart(run, policies, place.layers());
    let drawn = match place.cutoff() {
        Some(cutoff) => drawn.with_cutoff(cutoff),
        None => drawn,
    };
    let full = figure.of_full(run);
    let columns: Vec<Column> = std::iter::once(column("layer", ""))
        .chain([column("full", figure.unit)])
        .chain(policies.iter().map(|summary| column(&summary.policy, figure.unit)))
        .collect();
    let row = |layer: usize| {
        let of_policies =
            policies.iter().map(|summary| figure.of_policy(summary).get(layer).copied().unwrap_or(f64::NAN));
        let figures = [full.get(layer).copied().unwrap_or(f64::NAN)].into_iter().chain(of_policies);
        std::iter::once(Cell::count(layer)).chain(figures.map(Cell::figure)).collect()
    };
    let id = place.id(&format!("policies-{}", figure.name));
    Figure {
        drawing: Drawing::Chart(drawn),
        table: Table {
            id: format!("{id}-data"),
            caption: format!("{}, means over prompts", figure.title),
            columns,
            rows: (0..place.layers()).map(row).collect(),
        },
        id,
        wide: false,
    }
}
