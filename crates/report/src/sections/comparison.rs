//! Comparison with the first run: figures, differences with intervals, frontiers and recommendations.

use super::{adapter, run_ink, run_style, spread};
use crate::compare::FigureDifference;
use crate::data::{Report, RunComparison, RunReport};
use crate::document::{Cell, Column, Drawing, Element, Figure, Inline, Section, Table, column, plain};
use layerscope_cutoff::recommend::FrontierSummary;
use layerscope_diagnostics::record::KNOCKOUT_KL;
use layerscope_diagnostics::summary::{Difference, Pairing, Summary};
use layerscope_figures::{Along, Chart, Curve, Ink};

pub(super) fn section(report: &Report) -> Section {
    let mut blocks = vec![Element::Table(recommendations(report))];
    blocks.extend(compared().map(|(figure, title, unit, logarithmic)| {
        Element::Figure(Box::new(side_by_side(report, figure, title, unit, logarithmic)))
    }));
    blocks.push(Element::Figure(Box::new(frontiers(report))));
    for (index, comparison) in report.comparisons.iter().enumerate() {
        blocks.push(Element::Heading(format!("{} against {}", comparison.second, comparison.first)));
        blocks.push(Element::Paragraph(verdict(comparison)));
        blocks.extend(adapter::before_and_after(report, index + 1));
        blocks.push(Element::Paragraph(plain(how(comparison))));
        for (figure, title, unit, _) in compared() {
            let of_figure = comparison.comparison.figures.iter().find(|of| of.figure == figure);
            if let Some(of) = of_figure {
                blocks.push(Element::Figure(Box::new(difference(comparison, index, of, title, unit))));
            }
        }
        blocks.push(Element::Figure(Box::new(frontier_difference(comparison, index))));
    }
    Section { id: "comparison".into(), title: "Comparison".into(), blocks }
}

/// The compared figures: name, title, unit, and whether the axis is logarithmic.
fn compared() -> impl Iterator<Item = (&'static str, &'static str, &'static str, bool)> {
    [
        ("prompt_mass", "Prompt mass", "share of attention", false),
        ("prompt_entropy", "Conditional prompt entropy", "share of ln(p−2)", false),
        ("selectivity", "Selectivity", "prompt mass · (1 − entropy)", false),
        ("straightening_prompt_deg", "Trajectory straightening", "degrees", false),
        ("lens_kl", "Logit lens", "KL(final ‖ lens), nats", true),
        (KNOCKOUT_KL, "Attention knockout", "KL, prompt hidden, nats", true),
    ]
    .into_iter()
}

fn recommendations(report: &Report) -> Table {
    let row = |run: &RunReport| {
        let recommendation = &run.recommendation;
        vec![
            Cell::Foreign(run.name.clone()),
            Cell::Foreign(run.manifest.model.name.clone()),
            Cell::Foreign(run.manifest.weights.clone()),
            Cell::count(recommendation.l_cut),
            Cell::count(recommendation.layers),
            Cell::percent(recommendation.l_cut as f64 / recommendation.layers as f64),
            Cell::figure(recommendation.kl),
            Cell::figure(recommendation.kl_upper95),
            Cell::figure(recommendation.kl_below),
            Cell::percent(recommendation.kv_saved),
            Cell::count(recommendation.prompts),
        ]
    };
    Table {
        id: "comparison-recommendations".into(),
        caption: "The recommendations side by side".into(),
        columns: vec![
            column("run", ""),
            column("model", ""),
            column("weights", ""),
            column("L_cut", "layers"),
            column("L", "layers"),
            column("depth", "%"),
            column("KL", "nats"),
            column("95 % bound", "nats"),
            column("KL one layer below", "nats"),
            column("KV saved", "%"),
            column("prompts", ""),
        ],
        rows: report.runs.iter().map(row).collect(),
    }
}

fn verdict(comparison: &RunComparison) -> Vec<Inline> {
    let agreement = &comparison.comparison.agreement;
    let words = match agreement.agree {
        true => "The recommendations agree: they differ by at most one layer of the shallower model. ",
        false => "The recommendations disagree. ",
    };
    let cost = |from: usize, to: usize| {
        format!(
            "the cutoff {} of {} would be {} of {} there and cost {} nats",
            agreement.l_cut[from],
            agreement.layers[from],
            agreement.transferred[from],
            agreement.layers[to],
            Cell::figure(agreement.transferred_kl[from]).shown()
        )
    };
    vec![
        Inline::Strong(words.into()),
        Inline::Plain("Carried from ".into()),
        Inline::Foreign(comparison.first.clone()),
        Inline::Plain(" to ".into()),
        Inline::Foreign(comparison.second.clone()),
        Inline::Plain(format!(", {}; the other way, {}.", cost(0, 1), cost(1, 0))),
    ]
}

fn how(comparison: &RunComparison) -> String {
    let [first, second] = comparison.comparison.prompts;
    let mut words = match comparison.comparison.pairing {
        Pairing::Paired => format!(
            "Differences are second less first, prompt by prompt over the {first} prompts that both runs have, with 95 % \
             bootstrap intervals of their mean."
        ),
        Pairing::Unpaired => format!(
            "The runs have different prompts, so means over {first} and {second} prompts are compared, second less first, with \
             95 % bootstrap intervals that resample each run apart."
        ),
    };
    if comparison.comparison.relative_depth {
        words.push_str(&format!(
            " The models differ in depth: layers are compared at relative depth, interpolated to the {} layers of the shallower.",
            comparison.comparison.layers
        ));
    }
    words
}

/// Means and spreads of all runs; by relative depth if the numbers of layers differ.
fn side_by_side(report: &Report, figure: &str, title: &str, unit: &str, logarithmic: bool) -> Figure {
    let along = along(report);
    let mut chart = Chart::new(title, unit, along.clone());
    chart.logarithmic = logarithmic;
    chart.description = format!(
        "{title} by layer, a line for each run: means over prompts, with bands from their 5 % to their 95 % quantile."
    );
    let (mut columns, mut data) = (vec![column("layer", "")], vec![]);
    for (index, run) in report.runs.iter().enumerate() {
        let summaries = of_layers(run, figure);
        let mut curve = spread(&run.name, run_ink(index), summaries).styled(run_style(index));
        if matches!(along, Along::Values { .. }) {
            let layers = summaries.len().max(1) as f64;
            let depth = (0..summaries.len()).map(|layer| (layer as f64 + 0.5) / layers * 100.0);
            curve = curve.placed(depth.collect());
        }
        chart.curves.push(curve);
        columns.push(column(&run.name, unit));
        data.push(summaries);
    }
    let most = data.iter().map(|values| values.len()).max().unwrap_or(0);
    let row = |layer: usize| {
        let means = data.iter().map(|values| match values.get(layer) {
            Some(summary) => Cell::figure(summary.mean),
            None => Cell::Text(String::new()),
        });
        std::iter::once(Cell::count(layer)).chain(means).collect()
    };
    let id = format!("comparison-{}", figure.replace('_', "-"));
    let table = Table {
        id: format!("{id}-data"),
        caption: format!("{title} by layer, means over prompts"),
        columns,
        rows: (0..most).map(row).collect(),
    };
    Figure { id, drawing: Drawing::Chart(chart), table, wide: false }
}

/// A figure at layers 0 … L−1, without the embedding's value.
fn of_layers<'a>(run: &'a RunReport, figure: &str) -> &'a [Summary] {
    let all = match figure {
        KNOCKOUT_KL => &run.knockout[..],
        _ => run.layers.overall.figures.get(figure).map_or(&[][..], Vec::as_slice),
    };
    &all[all.len().saturating_sub(run.manifest.model.layers)..]
}

fn along(report: &Report) -> Along {
    let layers = report.runs[0].manifest.model.layers;
    match report.runs.iter().all(|run| run.manifest.model.layers == layers) {
        true => Along::Layers(layers),
        false => relative("depth, % of layers"),
    }
}

fn relative(name: &str) -> Along {
    Along::Values { name: name.into(), range: [0.0, 100.0] }
}

fn frontiers(report: &Report) -> Figure {
    let same = matches!(along(report), Along::Layers(_));
    let layers = report.runs.iter().map(|run| run.manifest.model.layers).max().unwrap_or(0);
    let along = if same { Along::Cutoffs(layers) } else { relative("cutoff, % of layers") };
    let mut chart = Chart::new("Frontiers", "mean KL(full ‖ cut), nats per token", along);
    chart.logarithmic = true;
    chart.level = Some((report.tolerance, format!("tolerance {}", report.tolerance)))
        .filter(|(tolerance, _)| *tolerance > 0.0);
    chart.description = "Mean KL divergence from the full model by cutoff, a line for each run, logarithmic; bands reach to the \
                         one-sided 95 % bootstrap bound."
        .into();
    let (mut columns, mut data) = (vec![column("cutoff", "layers")], vec![]);
    for (index, run) in report.runs.iter().enumerate() {
        let chosen = run.frontiers.iter().find(|frontier| frontier.anchor == report.anchor);
        let Some(group) = chosen.map(FrontierSummary::overall) else { continue };
        let kl = group.kl();
        let depth = (1..=kl.len()).map(|cutoff| cutoff as f64 / kl.len() as f64 * 100.0);
        let curve =
            Curve::series(&run.name, index, kl.clone()).with_band(kl.clone(), group.kl_upper95.clone());
        chart.curves.push(if same { curve } else { curve.placed(depth.collect()) });
        columns.push(column(&run.name, "nats"));
        data.push(kl);
    }
    let row = |index: usize| {
        let kl = data.iter().map(|kl| match kl.get(index) {
            Some(kl) => Cell::figure(*kl),
            None => Cell::Text(String::new()),
        });
        std::iter::once(Cell::count(index + 1)).chain(kl).collect()
    };
    let table = Table {
        id: "comparison-frontiers-data".into(),
        caption: "Divergence by cutoff".into(),
        columns,
        rows: (0..layers).map(row).collect(),
    };
    Figure { id: "comparison-frontiers".into(), drawing: Drawing::Chart(chart), table, wide: true }
}

fn difference(
    comparison: &RunComparison,
    index: usize,
    of: &FigureDifference,
    title: &str,
    unit: &str,
) -> Figure {
    let id = format!("difference-{}-{}", index + 1, of.figure.replace('_', "-"));
    let along = Along::Layers(comparison.comparison.layers);
    let title = format!("{title}: difference");
    differences(id, title, format!("difference, {unit}"), along, &of.layers, column("layer", ""), 0)
}

fn frontier_difference(comparison: &RunComparison, index: usize) -> Figure {
    differences(
        format!("difference-{}-frontier", index + 1),
        "Divergence by cutoff: difference".into(),
        "difference, nats per token".into(),
        Along::Cutoffs(comparison.comparison.layers),
        &comparison.comparison.frontier_kl,
        column("cutoff", "layers"),
        1,
    )
}

fn differences(
    id: String,
    title: String,
    unit: String,
    along: Along,
    differences: &[Difference],
    first: Column,
    from: usize,
) -> Figure {
    let mut chart = Chart::new(title.clone(), unit.clone(), along);
    chart.description = "The second run less the first, with the 95 % bootstrap interval; where the band leaves out 0, the runs differ."
        .into();
    chart.level = Some((0.0, "no difference".into()));
    let mean = differences.iter().map(|difference| difference.mean).collect();
    let (lower, upper) =
        differences.iter().map(|difference| (difference.lower95, difference.upper95)).unzip();
    chart.curves.push(Curve::new("difference", Ink::Series(5), mean).with_band(lower, upper));
    let unit = unit.trim_start_matches("difference, ").to_owned();
    let row = |(index, difference): (usize, &Difference)| {
        let figures = [difference.mean, difference.lower95, difference.upper95].map(Cell::figure);
        std::iter::once(Cell::count(index + from)).chain(figures).collect()
    };
    let table = Table {
        id: format!("{id}-data"),
        caption: format!("{title}, with its 95 % interval"),
        columns: vec![first, column("difference", &unit), column("from", &unit), column("to", &unit)],
        rows: differences.iter().enumerate().map(row).collect(),
    };
    Figure { id, drawing: Drawing::Chart(chart), table, wide: false }
}
