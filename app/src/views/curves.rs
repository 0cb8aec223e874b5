//! Figures by layer over all prompts with their spread, or by category.

use super::{Scene, charts_in_rows};
use crate::state::Selection;
use crate::widgets::{Column, Figures, cell, count};
use eframe::egui::Ui;
use layerscope_diagnostics::record::{KNOCKOUT_KL, LAYER_FIGURES};
use layerscope_diagnostics::summary::{GroupSummary, Summary};
use layerscope_figures::{Along, Chart, Curve, Ink, Style};
use layerscope_report::under_policies::FIGURES;

/// A chart's title, unit, figures with their names, whether it is logarithmic, and axis range.
type ChartPlan =
    (&'static str, &'static str, &'static [(&'static str, &'static str)], bool, Option<[f64; 2]>);

const PLANS: [ChartPlan; 6] = [
    (
        "Attention masses",
        "share of attention",
        &[("prompt_mass", "prompt"), ("bos_mass", "BoS"), ("decode_mass", "decode")],
        false,
        Some([0.0, 1.0]),
    ),
    ("Prompt entropy", "share of ln(p−2)", &[("prompt_entropy", "entropy")], false, Some([0.0, 1.0])),
    (
        "Selectivity",
        "prompt mass · (1 − entropy)",
        &[("selectivity", "selectivity")],
        false,
        Some([0.0, 0.1]),
    ),
    (
        "Straightening",
        "degrees; negative is straighter",
        &[("straightening_prompt_deg", "prompt"), ("straightening_decode_deg", "decode")],
        false,
        None,
    ),
    ("Logit lens", "KL(final, lens), nats", &[("lens_kl", "lens")], true, None),
    ("Knockout", "KL, prompt hidden at this layer, nats", &[(KNOCKOUT_KL, "knockout")], true, None),
];

/// Draws the charts.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.horizontal_wrapped(|ui| {
        let several = scene.run.categories().count() > 1;
        if !scene.is_picture {
            ui.add_enabled_ui(several, |ui| ui.checkbox(&mut scene.state.by_category, "By category"));
        }
        ui.weak(spread(scene));
    });
    let clicked = charts_in_rows(ui, &charts(scene), 3, &mut scene.state.cutoff);
    if let Some(layer) = clicked {
        let extend = ui.input(|input| input.modifiers.shift);
        Selection::pick(&mut scene.state.selection.layers, layer, extend);
    }
}

/// A note on lines and bands.
pub fn spread(scene: &Scene<'_>) -> String {
    if scene.state.by_category && scene.run.categories().count() > 1 {
        return "mean of each category, 25 to 75 % of its prompts".to_owned();
    }
    let prompts = count(scene.run.prompts.len(), "prompt");
    format!("mean of {prompts}, 5 to 95 % of them; dashed: the prompt in front")
}

/// The charts, for the window and for export.
pub fn charts(scene: &Scene<'_>) -> Vec<Chart> {
    let chart = |(title, unit, figures, logarithmic, range): &ChartPlan| Chart {
        curves: curves(scene, figures),
        logarithmic: *logarithmic,
        range: *range,
        selected: scene.state.selection.layers.iter().copied().collect(),
        ..Chart::new(*title, *unit, Along::Layers(scene.run.layers()))
    };
    let mut charts: Vec<Chart> = PLANS.iter().map(chart).collect();
    let (run, policies) = (&scene.run.summary, &scene.run.policies);
    if !policies.is_empty() {
        let selected = || scene.state.selection.layers.iter().copied().collect();
        let under = FIGURES.iter().map(|figure| figure.chart(run, policies, scene.run.layers()));
        charts.extend(under.map(|chart| Chart { selected: selected(), ..chart }));
    }
    charts
}

fn curves(scene: &Scene<'_>, figures: &[(&str, &str)]) -> Vec<Curve> {
    let summary = &scene.run.summary;
    if scene.state.by_category && summary.categories.len() > 1 {
        // Only the first of several figures: a line per figure and category would be unreadable.
        let categories = summary.categories.iter().enumerate();
        return categories
            .map(|(index, group)| {
                let figures = summaries(scene, index + 1, group, figures[0].0);
                let name = group.category.clone().unwrap_or_default();
                of(&name, Ink::Series(index), figures, |s| (s.q25, s.q75))
            })
            .collect();
    }
    let mut curves = vec![];
    for (index, (figure, name)) in figures.iter().enumerate() {
        let ink = match *figure {
            "prompt_mass" => Ink::Prompt,
            "bos_mass" => Ink::Bos,
            "decode_mass" => Ink::Decode,
            _ => Ink::Series(index),
        };
        let figures = summaries(scene, 0, &summary.overall, figure);
        curves.push(of(name, ink, figures, |s| (s.q05, s.q95)));
    }
    curves.extend(figures.first().map(|(figure, _)| own(scene, figure)));
    curves.extend(figures.first().and_then(|(figure, _)| heads(scene, figure)));
    curves
}

fn of(name: &str, ink: Ink, figures: &[Summary], band: impl Fn(&Summary) -> (f64, f64)) -> Curve {
    let (lower, upper) = figures.iter().map(band).unzip();
    Curve::new(name, ink, figures.iter().map(|figure| figure.mean).collect()).with_band(lower, upper)
}

/// A figure over a group of prompts: group 0 is all prompts, the others are the categories.
fn summaries<'a>(scene: &Scene<'a>, index: usize, group: &'a GroupSummary, figure: &str) -> &'a [Summary] {
    match figure {
        KNOCKOUT_KL => scene.run.knockout.get(index).map_or(&[], Vec::as_slice),
        _ => group.figures.get(figure).map_or(&[], Vec::as_slice),
    }
}

/// The curve of the current prompt.
fn own(scene: &Scene<'_>, figure: &str) -> Curve {
    let prompt = scene.prompt();
    let values = match figure {
        KNOCKOUT_KL => prompt.by_layer(KNOCKOUT_KL),
        // Includes the embedding's value, if the figure has one.
        _ => {
            let named = prompt.layers.named();
            named.iter().find(|(name, _)| *name == figure).map_or(vec![], |(_, values)| values.to_vec())
        }
    };
    Curve::new("this prompt", Ink::Text, values).styled(Style::Dashed)
}

/// The mean of the selected heads of the current prompt, at layers with selected heads.
fn heads(scene: &Scene<'_>, figure: &str) -> Option<Curve> {
    let heads = &scene.state.selection.heads;
    let means = &scene.prompt().heads;
    let values = match figure {
        "prompt_mass" => &means.prompt_mass,
        "prompt_entropy" => &means.prompt_entropy,
        "selectivity" => &means.selectivity,
        _ => return None,
    };
    if heads.is_empty() {
        return None;
    }
    let at = |layer: usize| {
        let chosen =
            heads.iter().filter(|(of, _)| *of == layer).filter_map(|(_, head)| values.get([layer, *head]));
        layerscope_diagnostics::summary::mean(chosen.copied())
    };
    let values = (0..scene.run.layers()).map(at).collect();
    Some(Curve::new("selected heads", Ink::Cutoff, values).styled(Style::Points))
}

/// One row per layer: mean and spread of every figure over all prompts.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Figures<'a> {
    let mut columns = vec![Column::new("layer", "")];
    for name in LAYER_FIGURES.iter().chain([&KNOCKOUT_KL]) {
        for part in ["mean", "5 %", "95 %"] {
            columns.push(Column::new(format!("{name} {part}"), unit(name)));
        }
    }
    let overall = &scene.run.summary.overall;
    Figures {
        columns,
        // The residual stream also has a value before the first layer.
        rows: scene.run.layers() + 1,
        row: Box::new(move |row| {
            let mut cells = vec![if row == 0 { "embedding".into() } else { (row - 1).to_string() }];
            for name in LAYER_FIGURES.iter().chain([&KNOCKOUT_KL]) {
                let figures = summaries(scene, 0, overall, name);
                let index = if figures.len() > scene.run.layers() { Some(row) } else { row.checked_sub(1) };
                let figure = index.and_then(|index| figures.get(index));
                let parts = figure.map_or([f64::NAN; 3], |figure| [figure.mean, figure.q05, figure.q95]);
                cells.extend(parts.map(cell));
            }
            cells
        }),
    }
}

fn unit(figure: &str) -> &'static str {
    match figure {
        _ if figure.ends_with("_deg") => "degrees",
        "prompt_entropy_nats" | "lens_kl" | KNOCKOUT_KL => "nats",
        _ => "share",
    }
}
