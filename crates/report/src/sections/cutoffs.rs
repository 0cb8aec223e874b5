//! The exact frontier: what each cutoff costs and saves.

use super::{Place, anchor_name, dashed};
use crate::data::Report;
use crate::document::{Cell, Drawing, Element, Figure, Inline, Table, column, plain};
use layerscope_cutoff::cost::Savings;
use layerscope_cutoff::recommend::{Criterion, Recommendation, Verdict};
use layerscope_diagnostics::record::{Anchor, Divergence};
use layerscope_figures::{Along, Chart, Curve, Ink};

/// A relative saving of a cutoff.
type ShareOf = fn(&Savings) -> f64;

pub(super) fn blocks(place: &Place<'_>, report: &Report) -> Vec<Element> {
    let recommendation = &place.run.recommendation;
    let mut blocks = vec![Element::Paragraph(vec![
        Inline::Plain(format!(
            "At cutoff c the prompt runs through and keeps KV in layers 0 … c−1 only; above, generated tokens see \
             each other{}. Every cutoff is computed exactly, from one recorded run of each prompt.",
            if recommendation.anchor == Anchor::Bos { " and position 0" } else { "" }
        )),
        Inline::Plain(format!(
            " A cutoff passes if it and every deeper one stays within the tolerance of {} nats, overall and in each category{}.",
            report.tolerance,
            asked_for(recommendation)
        )),
    ])];
    if recommendation.verdict == Verdict::KeepFullDepth && recommendation.exact_l_cut < recommendation.layers
    {
        blocks.push(Element::Paragraph(plain(format!(
            "The smallest cutoff that passes is {}, which saves too little to be worth it.",
            recommendation.exact_l_cut
        ))));
    }
    blocks.extend([
        Element::Figure(Box::new(by_category(place))),
        Element::Figure(Box::new(agreement(place))),
        Element::Figure(Box::new(kept(place))),
        Element::Figure(Box::new(likelihood(place))),
        Element::Figure(Box::new(savings(place))),
    ]);
    blocks
}

/// KL by cutoff for both anchors, with the tolerance and the recommended cutoff.
pub(super) fn divergence(place: &Place<'_>, report: &Report) -> Figure {
    let mut chart = Chart::new("Divergence by cutoff", "mean KL(full ‖ cut), nats per token", cutoffs(place));
    chart.logarithmic = true;
    chart.level = Some((report.tolerance, format!("tolerance {}", report.tolerance)))
        .filter(|(tolerance, _)| *tolerance > 0.0);
    for frontier in &place.run.frontiers {
        let group = frontier.overall();
        let chosen = frontier.anchor == report.anchor;
        let ink = if chosen { Ink::Prompt } else { Ink::WeakText };
        let curve = of(anchor_name(frontier.anchor), ink, &group.cutoffs, |d| d.kl);
        let curve = curve.with_band(group.kl(), group.kl_upper95.clone());
        chart.curves.push(if chosen { curve } else { dashed(curve) });
    }
    let chart = with_cutoff(place, chart);
    let recommendation = &place.run.recommendation;
    let edge = match place.cutoff() {
        Some(cutoff) => format!("the recommended cutoff {cutoff} is marked"),
        None => "no cutoff is recommended".into(),
    };
    let description = format!(
        "Mean KL divergence from the full model over {} prompts at cutoffs 1 to {}, logarithmic; bands reach to the \
         one-sided 95 % bootstrap bound; {edge}.",
        recommendation.prompts,
        place.layers()
    );
    let mut columns = vec![column("cutoff", "layers")];
    for frontier in &place.run.frontiers {
        let name = anchor_name(frontier.anchor);
        columns.push(column(format!("KL, {name}"), "nats"));
        columns.push(column(format!("95 % bound, {name}"), "nats"));
    }
    columns.push(column("passes", ""));
    let row = |index: usize| {
        let mut cells = vec![Cell::count(index + 1)];
        for frontier in &place.run.frontiers {
            let group = frontier.overall();
            cells.extend([Cell::figure(group.cutoffs[index].kl), Cell::figure(group.kl_upper95[index])]);
        }
        let within = place.run.recommendation.frontier.get(index).is_some_and(|cutoff| cutoff.within);
        cells.push(Cell::Text(if within { "yes" } else { "no" }.into()));
        cells
    };
    Figure {
        id: place.id("divergence"),
        table: Table {
            id: place.id("divergence-data"),
            caption: "Divergence by cutoff".into(),
            columns,
            rows: (0..place.layers()).map(row).collect(),
        },
        drawing: Drawing::Chart(Chart { description, ..chart }),
        wide: true,
    }
}

fn cutoffs(place: &Place<'_>) -> Along {
    Along::Cutoffs(place.layers())
}

fn with_cutoff(place: &Place<'_>, chart: Chart) -> Chart {
    match place.cutoff() {
        Some(cutoff) => chart.with_cutoff(cutoff),
        None => chart,
    }
}

fn of(name: &str, ink: Ink, divergences: &[Divergence], figure: fn(&Divergence) -> f64) -> Curve {
    Curve::new(name, ink, divergences.iter().map(figure).collect())
}

fn by_category(place: &Place<'_>) -> Figure {
    let mut chart =
        Chart::new("Divergence by category", "mean KL(full ‖ cut), nats per token", cutoffs(place));
    chart.logarithmic = true;
    chart.description =
        "Mean KL divergence from the full model by cutoff, a line for each category of prompts, logarithmic."
            .into();
    let (mut columns, mut data) = (vec![column("cutoff", "layers")], vec![]);
    let anchor = place.run.recommendation.anchor;
    for frontier in place.run.frontiers.iter().filter(|frontier| frontier.anchor == anchor) {
        for (index, group) in frontier.categories().iter().enumerate() {
            let name = group.category.as_deref().unwrap_or("all");
            chart.curves.push(Curve::series(name, index, group.kl()));
            columns.push(column(name, "nats"));
            data.push(group);
        }
    }
    let row = |index: usize| {
        let figures = data.iter().map(|group| Cell::figure(group.cutoffs[index].kl));
        std::iter::once(Cell::count(index + 1)).chain(figures).collect()
    };
    let table = Table {
        id: place.id("divergence-by-category-data"),
        caption: "Divergence by cutoff and category".into(),
        columns,
        rows: (0..place.layers()).map(row).collect(),
    };
    figure(place, "divergence-by-category", with_cutoff(place, chart), table)
}

fn agreement(place: &Place<'_>) -> Figure {
    let mut chart = Chart::new("Same top token", "share of steps", cutoffs(place));
    chart.range = Some([0.0, 1.0]);
    chart.description =
        "Share of decode steps whose most likely token is that of the full model, by cutoff.".into();
    by_anchor(place, "top-token", chart, "share", |divergence| divergence.top1)
}

/// What a cutoff must keep besides, after the tolerance.
fn asked_for(recommendation: &Recommendation) -> String {
    let share = recommendation.kept_wanted * 100.0;
    match recommendation.criterion {
        Criterion::Answers => {
            format!(" and keeps at least {share} % of the answers that the full model gives")
        }
        Criterion::Text => format!(" and leaves at least {share} % of the texts unchanged"),
        Criterion::Kl => String::new(),
    }
}

/// Answers and texts that are kept, by cutoff.
fn kept(place: &Place<'_>) -> Figure {
    let mut chart = Chart::new("Answers and texts", "share of prompts", cutoffs(place));
    chart.range = Some([0.0, 1.0]);
    chart.description = "Share of the full model's answers that the greedy text still gives, and of prompts whose greedy text is the \
                         full model's token by token, by cutoff."
        .into();
    let anchor = place.run.recommendation.anchor;
    let (mut columns, mut data) = (vec![column("cutoff", "layers")], vec![]);
    for frontier in &place.run.frontiers {
        let chosen = frontier.anchor == anchor;
        let kept = &frontier.overall().kept;
        for (index, (what, all)) in
            [("answers kept", &kept.answers), ("text unchanged", &kept.texts)].into_iter().enumerate()
        {
            if all.last().is_none_or(|full| full.of == 0) {
                continue;
            }
            let name = format!("{what}, {}", anchor_name(frontier.anchor));
            // The other anchor is in the table alone: its two curves could not be told apart.
            if chosen {
                let shares = all.iter().map(|kept| kept.share()).collect();
                chart.curves.push(Curve::new(what, Ink::Series(index), shares));
            }
            columns.push(column(name, "prompts"));
            data.push(all);
        }
    }
    let row = |index: usize| {
        let cells = data.iter().map(|all| Cell::Text(format!("{} of {}", all[index].kept, all[index].of)));
        std::iter::once(Cell::count(index + 1)).chain(cells).collect()
    };
    let table = Table {
        id: place.id("kept-data"),
        caption: "Answers and texts kept by cutoff".into(),
        columns,
        rows: (0..place.layers()).map(row).collect(),
    };
    figure(place, "kept", with_cutoff(place, chart), table)
}

fn likelihood(place: &Place<'_>) -> Figure {
    let mut chart = Chart::new("Likelihood of the continuation", "ΔNLL, nats per token", cutoffs(place));
    chart.description =
        "Mean change of the negative log-likelihood of the full model's continuation, by cutoff; 0 is no change.".into();
    by_anchor(place, "likelihood", chart, "nats", |divergence| divergence.dnll)
}

fn by_anchor(
    place: &Place<'_>,
    id: &str,
    mut chart: Chart,
    unit: &str,
    figure_of: fn(&Divergence) -> f64,
) -> Figure {
    let anchor = place.run.recommendation.anchor;
    let mut columns = vec![column("cutoff", "layers")];
    for frontier in &place.run.frontiers {
        let (chosen, name) = (frontier.anchor == anchor, anchor_name(frontier.anchor));
        let ink = if chosen { Ink::Prompt } else { Ink::WeakText };
        let curve = of(name, ink, &frontier.overall().cutoffs, figure_of);
        chart.curves.push(if chosen { curve } else { dashed(curve) });
        columns.push(column(name, unit));
    }
    let row = |index: usize| {
        let all = place.run.frontiers.iter();
        let figures = all.map(|frontier| Cell::figure(figure_of(&frontier.overall().cutoffs[index])));
        std::iter::once(Cell::count(index + 1)).chain(figures).collect()
    };
    let table = Table {
        id: format!("{}-data", place.id(id)),
        caption: format!("{} by cutoff", chart.title),
        columns,
        rows: (0..place.layers()).map(row).collect(),
    };
    figure(place, id, with_cutoff(place, chart), table)
}

fn savings(place: &Place<'_>) -> Figure {
    let figures: [(&str, ShareOf); 4] = [
        ("KV bytes", |s| s.kv_saved),
        ("prefill FLOPs", |s| s.flops_saved),
        ("TTFT, predicted", |s| s.predicted_ttft_saved),
        ("TPOT, predicted", |s| s.predicted_tpot_saved),
    ];
    let mut chart = Chart::new("Saved", "share, at this run’s prompt lengths", cutoffs(place));
    chart.range = Some([0.0, 1.0]);
    chart.description =
        "Share of KV bytes, of the prefill's FLOPs, and of the predicted times to the first and to \
                         each further token that each cutoff saves, by the cost model."
            .into();
    let mut columns = vec![column("cutoff", "layers")];
    for (index, (name, figure)) in figures.into_iter().enumerate() {
        let values = place.run.savings.iter().map(figure).collect();
        let curve = Curve::new(name, Ink::Series(index), values);
        // Predicted TTFT is close to the FLOPs, so it is dashed to show the line below.
        chart.curves.push(if index > 1 { dashed(curve) } else { curve });
        columns.push(column(name, "%"));
    }
    let row = |(index, savings): (usize, &Savings)| {
        let shares = figures.iter().map(|(_, figure)| Cell::percent(figure(savings)));
        std::iter::once(Cell::count(index + 1)).chain(shares).collect()
    };
    let table = Table {
        id: place.id("savings-data"),
        caption: "Saved by cutoff".into(),
        columns,
        rows: place.run.savings.iter().enumerate().map(row).collect(),
    };
    figure(place, "savings", with_cutoff(place, chart), table)
}

fn figure(place: &Place<'_>, id: &str, chart: Chart, table: Table) -> Figure {
    Figure { id: place.id(id), drawing: Drawing::Chart(chart), table, wide: false }
}

/// What the recommended cutoff costs each category.
pub(super) fn categories(place: &Place<'_>) -> Table {
    let columns = vec![
        column("category", ""),
        column("prompts", ""),
        column("KL", "nats"),
        column("95 % bound", "nats"),
        column("KL one layer below", "nats"),
        column("same top token", "%"),
        column("texts unchanged", "%"),
        column("answers", ""),
        column("answers kept", "%"),
        column("its own L_cut", "layers"),
    ];
    let rows = place.run.recommendation.categories.iter().map(|category| {
        vec![
            Cell::Foreign(category.category.clone()),
            Cell::count(category.prompts),
            Cell::figure(category.kl),
            Cell::figure(category.kl_upper95),
            Cell::figure(category.kl_below),
            Cell::percent(category.top1),
            Cell::percent(category.text_unchanged),
            Cell::count(category.answers),
            Cell::percent(category.answers_kept),
            Cell::count(category.exact_l_cut),
        ]
    });
    Table {
        id: place.id("categories"),
        caption:
            "Each category at the recommended cutoff; categories of fewer than three prompts have no bound"
                .into(),
        columns,
        rows: rows.collect(),
    }
}
