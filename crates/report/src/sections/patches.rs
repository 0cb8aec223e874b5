//! Activation patches: which layers, positions and heads carry the answer from one prompt to another.

use super::Place;
use crate::document::{Cell, Drawing, Element, Figure, Inline, Table, column, plain};
use crate::patching::PatchFigure;
use layerscope_diagnostics::patching::{
    PatchDirection, PatchMetric, PatchReport, PatchSite, StrongPatch, UnpatchedRun,
};
use layerscope_figures::token_label;

/// Most maps with a figure each; the table has all of them.
const FIGURES: usize = 12;

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let maps = &place.run.patches;
    let mut blocks = vec![Element::Paragraph(plain(
        "An activation of one prompt’s run takes the place of the same activation in the run of another prompt, and the next token after \
         the last position tells what it did. An effect of 0 is as in the corrupted run, 1 as in the clean run: clean into corrupted, an \
         effect near 1 says that this activation alone suffices for the answer; corrupted into clean, an effect near 0 that it is \
         needed. Colours show how far a patch moves the metric from the run that is patched.",
    ))];
    for (index, told) in maps.iter().enumerate().take(FIGURES) {
        blocks.push(Element::Heading(told.map.question(place.layers())));
        blocks.push(Element::Paragraph(about(told)));
        blocks.push(Element::Figure(Box::new(figure(place, index, told))));
        blocks.push(Element::Table(strongest(place, index, told)));
    }
    if maps.len() > 1 {
        blocks.push(Element::Table(overview(place)));
    }
    blocks
}

/// Both runs without a patch, and what is measured.
fn about(told: &PatchReport) -> Vec<Inline> {
    let unpatched = |name: &str, run: &UnpatchedRun| {
        let figures = run.figures;
        [
            Inline::Plain(format!("{name} run: most likely next token “")),
            Inline::Foreign(token_label(&run.next.text)),
            Inline::Plain(format!(
                "”, logit difference {}, KL {} nats. ",
                Cell::figure(figures.logit_diff).shown(),
                Cell::figure(figures.kl).shown()
            )),
        ]
    };
    let mut sentences: Vec<Inline> = unpatched("Clean", &told.clean).into();
    sentences.extend(unpatched("Corrupted", &told.corrupted));
    sentences.extend([
        Inline::Plain("Logit difference: “".into()),
        Inline::Foreign(token_label(&told.answer.text)),
        Inline::Plain("” less “".into()),
        Inline::Foreign(token_label(&told.wrong.text)),
        Inline::Plain("”. ".into()),
        Inline::Plain(match told.metric {
            PatchMetric::LogitDiff => "Effects are by the logit difference.".into(),
            PatchMetric::Kl => "Effects are by KL from the clean run.".into(),
        }),
    ]);
    if told.done < told.cells {
        let (done, cells) = (told.done, told.cells);
        sentences
            .push(Inline::Strong(format!(" {done} of {cells} cells are computed; the others are striped.")));
    }
    if told.strongest.is_empty() {
        sentences.push(Inline::Plain(" No effect is defined: both runs are equal by the metric.".into()));
    }
    sentences
}

fn id(place: &Place<'_>, index: usize) -> String {
    place.id(&format!("patches-{}", index + 1))
}

fn figure(place: &Place<'_>, index: usize, told: &PatchReport) -> Figure {
    let (id, map) = (id(place, index), &told.map);
    let strongest = map.strongest();
    let of_layers =
        (0..map.layers.len()).filter_map(|row| strongest.iter().copied().find(|(of, _)| *of == row));
    Figure {
        drawing: Drawing::Patches(PatchFigure::of(map, place.layers())),
        table: table(
            told.site,
            format!("{id}-data"),
            format!(
                "The strongest patch of each layer, {}; all are in patches.parquet",
                map.question(place.layers())
            ),
            of_layers.filter_map(|at| map.patch(at)).collect(),
        ),
        id,
        wide: true,
    }
}

fn strongest(place: &Place<'_>, index: usize, told: &PatchReport) -> Table {
    let caption = match told.direction {
        PatchDirection::Denoising => "The patches that restore or harm most",
        PatchDirection::Noising => "The patches that destroy or help most",
    };
    let caption = format!("{caption}, {}", told.map.question(place.layers()));
    table(told.site, format!("{}-strongest", id(place, index)), caption, told.strongest.clone())
}

fn table(site: PatchSite, id: String, caption: String, patches: Vec<StrongPatch>) -> Table {
    let is_head = site == PatchSite::Head;
    let mut columns = vec![column("layer", ""), column(site.column_name(), "")];
    if !is_head {
        columns.extend([column("clean token", ""), column("corrupted token", "")]);
    }
    columns.extend([column("effect", ""), column("logit difference", "logits"), column("KL", "nats")]);
    let row = |patch: StrongPatch| {
        let place = patch.position.or(patch.head).unwrap_or_default();
        let tokens = [patch.clean_token, patch.corrupted_token].into_iter().flatten();
        [Cell::count(patch.layer), Cell::count(place)]
            .into_iter()
            .chain(tokens.map(|token| Cell::Foreign(token_label(&token))))
            .chain([patch.effect, patch.figures.logit_diff, patch.figures.kl].map(Cell::figure))
            .collect()
    };
    Table { id, caption, columns, rows: patches.into_iter().map(row).collect() }
}

/// A row per map.
fn overview(place: &Place<'_>) -> Table {
    let names = [
        "clean",
        "corrupted",
        "patched",
        "direction",
        "metric",
        "computed",
        "cells",
        "layer",
        "column",
        "effect",
    ];
    let row = |told: &PatchReport| {
        let strongest = told.strongest.first();
        let count = |count: Option<usize>| count.map_or_else(|| Cell::Text("–".into()), Cell::count);
        vec![
            Cell::Foreign(told.clean.prompt_id.clone()),
            Cell::Foreign(told.corrupted.prompt_id.clone()),
            Cell::Text(told.map.what()),
            Cell::Text(told.direction.name().into()),
            Cell::Text(told.metric.name().into()),
            Cell::count(told.done),
            Cell::count(told.cells),
            count(strongest.map(|patch| patch.layer)),
            count(strongest.and_then(|patch| patch.position.or(patch.head))),
            Cell::figure(strongest.map_or(f64::NAN, |patch| patch.effect)),
        ]
    };
    Table {
        id: place.id("patches-overview"),
        caption: "All maps of patches, with the strongest patch of each (its layer, its position or head, and its effect)".into(),
        columns: names.map(|name| column(name, "")).to_vec(),
        rows: place.run.patches.iter().map(row).collect(),
    }
}
