//! The diagnostics by layer: means and spread over prompts, and category by category.

use super::{Place, spread, summary_cells, summary_columns};
use crate::document::{Cell, Column, Drawing, Element, Figure, Table, column, plain};
use layerscope_diagnostics::summary::{GroupSummary, Summary};
use layerscope_figures::{Along, Chart, Curve, Ink};

/// A chart of one or more figures.
struct ChartPlan {
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    /// Columns of `layers.parquet`, their names and colours.
    figures: &'static [(&'static str, &'static str, Ink)],
    logarithmic: bool,
    range: Option<[f64; 2]>,
    description: &'static str,
}

const PLANS: [ChartPlan; 6] = [
    ChartPlan {
        id: "masses",
        title: "Where attention goes",
        unit: "share of attention",
        figures: &[
            ("prompt_mass", "prompt", Ink::Prompt),
            ("bos_mass", "position 0", Ink::Bos),
            ("decode_mass", "decode tokens", Ink::Decode),
        ],
        logarithmic: false,
        range: Some([0.0, 1.0]),
        description: "Share of the generating tokens' attention on the prompt, on position 0 and on decode tokens, by layer; \
                      the three sum to 1.",
    },
    ChartPlan {
        id: "entropy",
        title: "Conditional prompt entropy",
        unit: "share of ln(p−2)",
        figures: &[("prompt_entropy", "prompt entropy", Ink::Prompt)],
        logarithmic: false,
        range: Some([0.0, 1.0]),
        description: "How evenly attention within the prompt is spread, by layer: 0 on one token, 1 evenly.",
    },
    ChartPlan {
        id: "selectivity",
        title: "Selectivity",
        unit: "prompt mass · (1 − entropy)",
        figures: &[("selectivity", "selectivity", Ink::Prompt)],
        logarithmic: false,
        range: Some([0.0, 0.1]),
        description: "Prompt mass times one less prompt entropy, by layer: how much of the attention picks tokens out of the \
                      prompt.",
    },
    ChartPlan {
        id: "straightening",
        title: "Trajectory straightening",
        unit: "degrees; negative is straighter",
        figures: &[
            ("straightening_prompt_deg", "prompt positions", Ink::Prompt),
            ("straightening_decode_deg", "decode positions", Ink::Decode),
        ],
        logarithmic: false,
        range: None,
        description: "Curvature of the residual stream's trajectory over positions, less that after the first block, by layer.",
    },
    ChartPlan {
        id: "lens",
        title: "Logit lens",
        unit: "KL(final ‖ lens), nats",
        figures: &[("lens_kl", "lens KL", Ink::Prompt)],
        logarithmic: true,
        range: None,
        description: "How far the next-token distribution read off the residual stream after each block is from the final one, \
                      logarithmic.",
    },
    ChartPlan {
        id: "lens-top1",
        title: "Logit lens, top token",
        unit: "share of steps",
        figures: &[("lens_top1_agreement", "same top token", Ink::Prompt)],
        logarithmic: false,
        range: Some([0.0, 1.0]),
        description: "Share of decode steps whose most likely token by the logit lens is already the final one, by layer.",
    },
];

/// The figures that are shown by category, like the paper's diagnostics.
const BY_CATEGORY: [usize; 4] = [0, 1, 3, 4];

pub(super) fn blocks(place: &Place<'_>) -> Vec<Element> {
    let layers = &place.run.layers;
    let mut blocks = vec![Element::Paragraph(plain(format!(
        "Means over heads and decode steps, then over {} prompts; bands reach from the 5 % to the 95 % quantile of the prompts. \
         The line marks the recommended cutoff.",
        layers.overall.prompts
    )))];
    blocks.extend(PLANS.iter().map(|plan| Element::Figure(Box::new(overall(place, plan)))));
    if layers.categories.len() > 1 {
        blocks.push(Element::Heading("By category".into()));
        let plans = BY_CATEGORY.iter().map(|index| &PLANS[*index]);
        blocks.extend(plans.map(|plan| Element::Figure(Box::new(by_category(place, plan)))));
    }
    blocks
}

fn chart(place: &Place<'_>, plan: &ChartPlan, title: String, unit: String) -> Chart {
    let mut chart = Chart::new(title, unit, Along::Layers(place.layers()));
    chart.logarithmic = plan.logarithmic;
    chart.range = plan.range;
    chart.description = plan.description.into();
    match place.cutoff() {
        Some(cutoff) => chart.with_cutoff(cutoff),
        None => chart,
    }
}

fn figures<'a>(group: &'a GroupSummary, figure: &str) -> &'a [Summary] {
    group.figures.get(figure).map_or(&[], Vec::as_slice)
}

fn overall(place: &Place<'_>, plan: &ChartPlan) -> Figure {
    let group = &place.run.layers.overall;
    let mut chart = chart(place, plan, plan.title.into(), plan.unit.into());
    let (mut columns, mut data) = (vec![column("layer", "")], vec![]);
    for (figure, name, ink) in plan.figures {
        let values = figures(group, figure);
        chart.curves.push(spread(name, *ink, values));
        let named = |of: Column| column(format!("{name}, {}", of.name), of.unit);
        columns.extend(summary_columns(unit(figure)).into_iter().map(named));
        data.push(values);
    }
    let cells = |row: usize| {
        let cells = data.iter().flat_map(move |values| match values.get(row) {
            Some(summary) => summary_cells(summary),
            None => vec![],
        });
        std::iter::once(layer(row, data[0].len(), place.layers())).chain(cells).collect()
    };
    let rows = (0..data[0].len()).map(cells).collect();
    let caption = format!("{} by layer, over prompts", plan.title);
    let table = Table { id: format!("{}-data", place.id(plan.id)), caption, columns, rows };
    Figure { id: place.id(plan.id), drawing: Drawing::Chart(chart), table, wide: false }
}

/// Only the first of several figures: a line per figure and category would be unreadable.
fn by_category(place: &Place<'_>, plan: &ChartPlan) -> Figure {
    let (figure, name, _) = plan.figures[0];
    let title = match plan.figures.len() {
        1 => format!("{} by category", plan.title),
        _ => format!("{}: {name}, by category", plan.title),
    };
    let mut chart = chart(place, plan, title.clone(), plan.unit.into());
    chart.description = format!("{} A line for each category of prompts.", plan.description);
    let (mut columns, mut data) = (vec![column("layer", "")], vec![]);
    for (index, group) in place.run.layers.categories.iter().enumerate() {
        let name = group.category.as_deref().unwrap_or_default();
        let values = figures(group, figure);
        let means = values.iter().map(|summary| summary.mean).collect();
        chart.curves.push(Curve::series(name, index, means));
        columns.push(column(name, unit(figure)));
        data.push(values);
    }
    let cells = |row: usize| {
        let means = data.iter().map(|values| Cell::figure(values.get(row).map_or(f64::NAN, |s| s.mean)));
        std::iter::once(layer(row, data[0].len(), place.layers())).chain(means).collect()
    };
    let rows = (0..data[0].len()).map(cells).collect();
    let id = place.id(&format!("{}-by-category", plan.id));
    let table =
        Table { id: format!("{id}-data"), caption: format!("{title}, means over prompts"), columns, rows };
    Figure { id, drawing: Drawing::Chart(chart), table, wide: false }
}

/// The name of a row. Figures of L+1 values begin with the embedding.
fn layer(row: usize, rows: usize, layers: usize) -> Cell {
    match (rows > layers, row) {
        (true, 0) => Cell::Text("embedding".into()),
        (true, row) => Cell::count(row - 1),
        (false, row) => Cell::count(row),
    }
}

fn unit(figure: &str) -> &'static str {
    match figure {
        _ if figure.ends_with("_deg") => "degrees",
        "lens_kl" => "nats",
        _ => "share",
    }
}
