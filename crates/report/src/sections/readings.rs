//! Heat maps: which heads read the prompt, which tokens they read, and how this changes by step.

use super::Place;
use crate::data::{Chosen, ReadPattern, ReadToken, Reading, StrongRead};
use crate::document::{
    Cell, Drawing, Element, Figure, Inline, MapDrawing, PatternDrawing, Table, column, plain,
};
use layerscope_diagnostics::reads::OF_MEAN;
use layerscope_diagnostics::summary::largest;
use layerscope_figures::{Pyramid, ScaleKind};

/// Heads in the ranking.
const RANKED_HEADS: usize = 12;

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let mut blocks = vec![
        Element::Paragraph(plain(
            "Layers run downwards; the line is the recommended cutoff. Each pixel shows the largest of the values beneath it, so \
             a single token that is read stays visible in a prompt of any length.",
        )),
        Element::Figure(Box::new(heads(place))),
    ];
    for (index, reading) in place.run.readings.iter().enumerate() {
        let why = match reading.chosen {
            Chosen::Typical => "typical of its category",
            Chosen::Longest => "the longest of the run",
        };
        blocks.push(Element::Heading(format!("Prompt {}, {why}", reading.prompt_id)));
        blocks.push(Element::Paragraph(vec![
            Inline::Plain("Category ".into()),
            Inline::Foreign(reading.category.clone()),
            Inline::Plain(format!(", {} tokens, {} decode steps.", reading.p, reading.steps)),
        ]));
        blocks.push(Element::Figure(Box::new(tokens(place, index, reading))));
        blocks.push(Element::Figure(Box::new(steps(place, index, reading))));
        blocks.extend(
            reading
                .pattern
                .as_ref()
                .map(|read| Element::Figure(Box::new(pattern(place, index, reading, read)))),
        );
    }
    blocks
}

fn heads(place: &Place<'_>) -> Figure {
    let rows = &place.run.prompt_mass_by_head;
    let heads = rows.first().map_or(0, Vec::len);
    let flat: Vec<f32> = rows.iter().flatten().map(|mass| *mass as f32).collect();
    let ranked = largest(rows.iter().flatten().copied(), RANKED_HEADS).into_iter();
    let row = |index: usize| {
        let (layer, head) = (index / heads, index % heads);
        vec![Cell::count(layer), Cell::count(head), Cell::figure(rows[layer][head])]
    };
    Figure {
        id: place.id("heads"),
        drawing: Drawing::Map(MapDrawing {
            title: "Prompt mass by head".into(),
            unit: "share of attention".into(),
            description: format!(
                "Share of attention on the prompt for each of {} layers and {heads} query heads, mean over decode steps and \
                 prompts.",
                rows.len()
            ),
            values: Pyramid::from_rows(&flat, rows.len(), heads),
            scale: ScaleKind::Linear,
            without_first: false,
            column_name: "query head".into(),
            column_texts: vec![],
            cutoff: place.cutoff(),
        }),
        table: Table {
            id: place.id("heads-data"),
            caption: format!(
                "The {RANKED_HEADS} heads with the largest prompt mass; all are in heads.parquet"
            ),
            columns: vec![column("layer", ""), column("head", ""), column("prompt mass", "share")],
            rows: ranked.map(row).collect(),
        },
        wide: false,
    }
}

fn tokens(place: &Place<'_>, index: usize, reading: &Reading) -> Figure {
    let id = place.id(&format!("tokens-{}", index + 1));
    let row = |read: &ReadToken| {
        vec![
            Cell::count(read.position),
            Cell::Foreign(layerscope_figures::token_label(&read.token)),
            Cell::figure(read.received),
            Cell::count(read.layer),
            Cell::figure(read.received_there),
        ]
    };
    let model = &place.run.manifest.model;
    let striped = match model.window.filter(|window| *window < reading.p) {
        Some(window) => format!(" Striped is what a layer's window of {window} tokens never reaches."),
        None => String::new(),
    };
    Figure {
        drawing: Drawing::Map(MapDrawing {
            title: format!("Attention received by the tokens of prompt {}", reading.prompt_id),
            unit: "share of attention, logarithmic; position 0 left out of the scale".into(),
            description: format!(
                "Share of the generating tokens' attention that each of {} prompt tokens receives at each of {} layers, mean over \
                 heads and decode steps.{striped}",
                reading.p,
                place.layers()
            ),
            values: reading.received.clone(),
            scale: ScaleKind::Log,
            without_first: true,
            column_name: "prompt token (position)".into(),
            column_texts: reading.tokens.clone(),
            cutoff: place.cutoff(),
        }),
        table: Table {
            id: format!("{id}-data"),
            caption: format!(
                "The positions of prompt {} that are read most, after position 0; all are in tokens.parquet",
                reading.prompt_id
            ),
            columns: vec![
                column("position", ""),
                column("token", ""),
                column("received, mean over layers", "share"),
                column("most at layer", ""),
                column("received there", "share"),
            ],
            rows: reading.most_read.iter().map(row).collect(),
        },
        id,
        wide: true,
    }
}

fn pattern(place: &Place<'_>, index: usize, reading: &Reading, read: &ReadPattern) -> Figure {
    let id = place.id(&format!("pattern-{}", index + 1));
    let ReadPattern { layer, cells, strongest } = read;
    let token = |texts: &[String], index: usize| {
        Cell::Foreign(layerscope_figures::token_label(texts.get(index).map_or("", String::as_str)))
    };
    let row = |read: &StrongRead| {
        vec![
            Cell::count(read.step),
            token(&reading.generated, read.step),
            Cell::count(read.position),
            token(&reading.tokens, read.position),
            Cell::figure(read.attention),
        ]
    };
    let groups = match cells.cell[1] {
        1 => String::new(),
        wide => format!(" A cell is the largest of {wide} positions."),
    };
    Figure {
        drawing: Drawing::Pattern(PatternDrawing {
            title: format!("What prompt {} reads at layer {layer}, token by token", reading.prompt_id),
            unit: "share of attention, logarithmic; position 0 left out of the scale".into(),
            description: format!(
                "Share of attention of each of {} decode steps on each prompt token at layer {layer}, where hiding the prompt costs \
                 most, mean over heads; strongest positions only, at most {OF_MEAN} of a step.{groups}",
                reading.steps
            ),
            cells: cells.clone(),
            texts: reading.tokens.iter().chain(&reading.generated).cloned().collect(),
        }),
        table: Table {
            id: format!("{id}-data"),
            caption: format!(
                "The strongest reads of prompt {} at layer {layer}, behind position 0, mean over heads; those of all layers and heads \
                 are in steps.parquet",
                reading.prompt_id
            ),
            columns: vec![
                column("step", ""),
                column("yields", ""),
                column("position", ""),
                column("token", ""),
                column("attention", "share"),
            ],
            rows: strongest.iter().map(row).collect(),
        },
        id,
        wide: true,
    }
}

/// Prompt mass by layer and decode step. `under` is nothing, or ` under` and a policy.
pub(super) fn steps_map(
    place: &Place<'_>,
    reading: &Reading,
    (title, under): (String, &str),
    values: &Pyramid,
) -> Drawing {
    Drawing::Map(MapDrawing {
        title,
        unit: "share of attention".into(),
        description: format!(
            "Share of attention on the prompt{under} at each of {} decode steps and {} layers, mean over heads.",
            reading.steps,
            place.layers()
        ),
        values: values.clone(),
        scale: ScaleKind::Linear,
        without_first: false,
        column_name: "decode step".into(),
        column_texts: reading.generated.clone(),
        cutoff: place.cutoff(),
    })
}

/// The mean over layers at a decode step.
pub(super) fn mean_of_step(values: &Pyramid, step: usize) -> f64 {
    let column = values.column(step);
    column.iter().map(|mass| f64::from(*mass)).sum::<f64>() / column.len().max(1) as f64
}

fn steps(place: &Place<'_>, index: usize, reading: &Reading) -> Figure {
    let id = place.id(&format!("steps-{}", index + 1));
    let steps = &reading.prompt_mass_by_step;
    let row = |step: usize| {
        let token = layerscope_figures::token_label(reading.generated.get(step).map_or("", String::as_str));
        vec![Cell::count(step), Cell::Foreign(token), Cell::figure(mean_of_step(steps, step))]
    };
    let title = format!("Prompt mass by decode step of prompt {}", reading.prompt_id);
    Figure {
        drawing: steps_map(place, reading, (title, ""), steps),
        table: Table {
            id: format!("{id}-data"),
            caption: format!(
                "Prompt mass by decode step of prompt {}, mean over layers and heads; all layers are in steps.parquet",
                reading.prompt_id
            ),
            columns: vec![column("step", ""), column("yields", ""), column("prompt mass", "share")],
            rows: (0..reading.steps).map(row).collect(),
        },
        id,
        wide: true,
    }
}
