//! Comparison of two runs: figures by layer, differences, frontiers and recommendations.

use super::picture::charts_in_rows;
use super::{Action, Scene, chart_rows};
use crate::data::{RunData, RunPair, short};
use crate::design::{self, size, space};
use crate::widgets::{Column, Figures, cell, count};
use eframe::egui::{Grid, RichText, ScrollArea, Ui, vec2};
use layerscope_cutoff::recommend::{Recommendation, Verdict};
use layerscope_diagnostics::record::KNOCKOUT_KL;
use layerscope_diagnostics::run::AdapterRecord;
use layerscope_diagnostics::summary::{Difference, Pairing, Summary};
use layerscope_engine::{Error, Result};
use layerscope_figures::{Along, Chart, Curve, Ink, Mark, Style, Theme};

/// Height of a chart, points.
const CHART_HEIGHT: f32 = 220.0;

/// Labels of the runs, and their colours.
const SIDES: [(&str, Ink); 2] = [("first", Ink::Series(0)), ("second", Ink::Series(1))];

/// A figure's name in the run, title, unit, unit of differences, whether it is logarithmic, and axis range.
type ChartPlan = (&'static str, &'static str, [&'static str; 2], bool, Option<[f64; 2]>);

const PLANS: [ChartPlan; 5] = [
    ("prompt_mass", "Prompt mass", ["share of attention"; 2], false, Some([0.0, 1.0])),
    ("prompt_entropy", "Prompt entropy", ["share of ln(p−2)"; 2], false, Some([0.0, 1.0])),
    (
        "straightening_prompt_deg",
        "Straightening",
        ["degrees; negative is straighter", "degrees"],
        false,
        None,
    ),
    ("lens_kl", "Logit lens", ["KL(final, lens), nats", "nats"], true, None),
    (KNOCKOUT_KL, "Knockout", ["KL, prompt hidden here, nats", "nats"], true, None),
];

/// Draws both runs, or explains how to open a second one.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    let Some(second) = scene.second else {
        ui.vertical_centered(|ui| {
            ui.add_space(ui.available_height() / 4.0);
            ui.label(RichText::new("Compare two runs").size(size::HEADING).strong());
            ui.label("Two models, two precisions, before and after tuning: this run beside another.");
            ui.add_space(space::MEDIUM);
            if ui.button("Compare with another run …").clicked() {
                scene.actions.push(Action::CompareWith);
            }
            ui.weak("or drop its folder here");
        });
        return;
    };
    ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
        header(ui, scene, second);
        match scene.compared {
            Some(Ok(compared)) => recommendations(ui, compared, [scene.run, second]),
            Some(Err(sentence)) => {
                ui.label(sentence);
            }
            None => {
                ui.spinner();
            }
        }
        ui.add_space(space::SMALL);
        ui.weak(bands(scene.compared.and_then(|compared| compared.as_ref().ok())));
        let gap = ui.spacing().item_spacing.x;
        let width = (ui.available_width() - gap) / 2.0 - space::MEDIUM;
        chart_rows(ui, &charts(scene, second), 2, vec2(width, CHART_HEIGHT), None);
    });
}

/// The runs' names in their colours.
fn header(ui: &mut Ui, scene: &mut Scene<'_>, second: &RunData) {
    for ((side, ink), run) in SIDES.into_iter().zip([scene.run, second]) {
        let text = RichText::new(format!("{side}: {}", run.manifest.model.name)).strong();
        ui.horizontal_wrapped(|ui| {
            ui.label(text.color(design::ink(ui.theme(), ink)));
            ui.weak(about(run)).on_hover_text(run.folder.display().to_string());
        });
    }
    if scene.is_picture {
        return;
    }
    ui.horizontal_wrapped(|ui| {
        if ui.button("Compare with another run …").clicked() {
            scene.actions.push(Action::CompareWith);
        }
        if ui.button("Close the second run").clicked() {
            scene.actions.push(Action::CloseSecondRun);
        }
    });
}

/// A run's settings, without its model's name.
fn about(run: &RunData) -> String {
    let folder = run.folder.file_name().unwrap_or(run.folder.as_os_str()).to_string_lossy();
    let prompts = count(run.prompts.len(), "prompt");
    format!("{} layers, {} weights, {prompts}, {folder}", run.layers(), run.manifest.weights)
}

/// Both recommendations, whether they agree, and the divergence of each in the other run.
fn recommendations(ui: &mut Ui, compared: &RunPair, runs: [&RunData; 2]) {
    let palette = design::palette(ui);
    design::card(palette).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.label(RichText::new(agreement(compared)).strong());
        Grid::new("recommendations").num_columns(3).spacing(vec2(space::LARGE, 2.0)).show(ui, |ui| {
            ui.label("");
            for (side, ink) in SIDES {
                ui.label(RichText::new(side).color(design::ink(ui.theme(), ink)));
            }
            ui.end_row();
            let recommendations = &compared.recommendations;
            let mut rows = vec![
                ("recommended cutoff", recommendations.each_ref().map(cutoff)),
                ("mean KL there", recommendations.each_ref().map(kl)),
                ("KV saved", recommendations.each_ref().map(|one| format!("{:.1} %", one.kv_saved * 100.0))),
                ("as deep in the other run", [0, 1].map(|side| elsewhere(compared, side))),
            ];
            if runs.iter().any(|run| run.manifest.model.adapter.is_some()) {
                rows.push(("KL at full depth", recommendations.each_ref().map(at_full_depth)));
                rows.push(("adapter", runs.map(adapter)));
                rows.push(("its training", runs.map(training)));
            }
            for (name, texts) in rows {
                ui.weak(name);
                for text in texts {
                    ui.label(text);
                }
                ui.end_row();
            }
        });
    });
}

fn cutoff(recommendation: &Recommendation) -> String {
    let share = 100.0 * recommendation.l_cut as f64 / recommendation.layers as f64;
    match recommendation.verdict {
        Verdict::Cut => {
            format!("{} of {} layers ({share:.0} %)", recommendation.l_cut, recommendation.layers)
        }
        Verdict::KeepFullDepth => format!("full depth, {} layers", recommendation.layers),
    }
}

fn kl(recommendation: &Recommendation) -> String {
    format!(
        "{} nats (≤ {} at 95 %)",
        short(recommendation.kl as f32),
        short(recommendation.kl_upper95 as f32)
    )
}

/// What an adapter does to the model where nothing is cut.
fn at_full_depth(recommendation: &Recommendation) -> String {
    let kl = recommendation.frontier.last().map_or(f64::NAN, |full| full.kl);
    format!("{} nats", short(kl as f32))
}

fn adapter(run: &RunData) -> String {
    match &run.manifest.model.adapter {
        None => "none".into(),
        Some(AdapterRecord { name, policy: None, .. }) => name.clone(),
        Some(AdapterRecord { name, policy: Some(policy), .. }) => format!("{name}, for {policy}"),
    }
}

/// What the training of a run's adapter took.
fn training(run: &RunData) -> String {
    let adapter = run.manifest.model.adapter.as_ref();
    adapter.and_then(|adapter| adapter.training.as_ref()).map_or("–".into(), |training| {
        format!(
            "{} steps on {}, {:.1} minutes; held-out KL {} → {} nats",
            training.steps,
            count(training.prompts, "prompt"),
            training.seconds / 60.0,
            short(training.kl_before as f32),
            short(training.kl_after as f32)
        )
    })
}

/// The divergence of a run's recommendation in the other run.
fn elsewhere(compared: &RunPair, side: usize) -> String {
    let agreement = &compared.comparison.agreement;
    let (cutoff, layers) = (agreement.transferred[side], agreement.layers[1 - side]);
    let kl = short(agreement.transferred_kl[side] as f32);
    format!("{cutoff} of {layers} layers: KL {kl} nats")
}

/// Whether the recommendations agree.
fn agreement(compared: &RunPair) -> String {
    let verdicts = compared.recommendations.each_ref().map(|recommendation| recommendation.verdict);
    match (compared.comparison.agreement.agree, verdicts) {
        (true, [Verdict::KeepFullDepth, _]) => "The recommendations agree, both keep full depth".into(),
        (true, _) => "The recommendations agree, at most one layer apart".into(),
        (false, [Verdict::Cut, Verdict::Cut]) => "The recommendations differ in depth".into(),
        (false, _) => "The recommendations differ, only one of the runs can be cut".into(),
    }
}

/// A note on the bands and the compared prompts.
fn bands(compared: Option<&RunPair>) -> String {
    let means = "Bands: 5 to 95 % of prompts, of frontiers the one-sided 95 % bound";
    let Some(RunPair { comparison, .. }) = compared else { return means.into() };
    let over = match (comparison.pairing, comparison.prompts) {
        (Pairing::Paired, [pairs, _]) => format!("{} that both have", count(pairs, "prompt")),
        (Pairing::Unpaired, [first, second]) => format!("{first} and {second} prompts, unpaired"),
    };
    format!("{means}, of differences the 95 % bootstrap interval over {over}")
}

/// The charts, for the window and for export: per figure, one of both runs and one of the difference.
fn charts(scene: &Scene<'_>, second: &RunData) -> Vec<Chart> {
    let runs = [scene.run, second];
    let compared = scene.compared.and_then(|compared| compared.as_ref().ok());
    let axes = Axes { same: (runs[0].layers() == runs[1].layers()).then_some(runs[0].layers()) };
    let mut charts = frontiers(scene, runs, compared, axes);
    for (name, title, unit, logarithmic, range) in PLANS {
        let curves = SIDES.into_iter().zip(runs).map(|((side, ink), run)| {
            let figures = by_layer(run, name);
            let (lower, upper) = figures.iter().map(|figure| (figure.q05, figure.q95)).unzip();
            let means = figures.iter().map(|figure| figure.mean).collect();
            let curve = Curve::new(side, ink, means).with_band(lower, upper);
            curve.styled(style(side)).placed(axes.layers(figures.len()))
        });
        let curves = curves.collect();
        charts.push(Chart { curves, logarithmic, range, ..Chart::new(title, unit[0], axes.along(false)) });
        let figures = compared.iter().flat_map(|compared| &compared.comparison.figures);
        for difference in figures.filter(|difference| difference.figure == name) {
            let places = axes.layers(difference.layers.len());
            charts.push(of_differences(title, unit[1], &difference.layers, axes.along(false), places));
        }
    }
    charts
}

/// The frontiers with the current anchor, and their difference.
fn frontiers(scene: &Scene<'_>, runs: [&RunData; 2], compared: Option<&RunPair>, axes: Axes) -> Vec<Chart> {
    let anchor = scene.state.anchor;
    let unit = "KL(full, cut), nats per token";
    let curves = SIDES.into_iter().zip(runs).filter_map(|((side, ink), run)| {
        let overall = run.frontier(anchor)?.overall();
        let means = overall.kl();
        let places = axes.cutoffs(means.len());
        let curve = Curve::new(side, ink, means.clone()).with_band(means, overall.kl_upper95.clone());
        Some(curve.styled(style(side)).placed(places))
    });
    let mut charts = vec![Chart {
        curves: curves.collect(),
        marks: compared.map_or(vec![], |compared| marks(compared, axes)),
        logarithmic: true,
        level: Some((scene.state.tolerance, "tolerance".into())),
        ..Chart::new(format!("Frontier, anchor {}", anchor.name()), unit, axes.along(true))
    }];
    if let Some(compared) = compared {
        let differences = &compared.comparison.frontier_kl;
        let places = axes.cutoffs(differences.len());
        charts.push(of_differences("Frontier", "nats per token", differences, axes.along(true), places));
    }
    charts
}

/// The recommended cutoffs.
fn marks(compared: &RunPair, axes: Axes) -> Vec<Mark> {
    let recommendations = compared.recommendations.each_ref();
    let places = recommendations.map(|one| axes.cutoff(one.l_cut, one.layers));
    if places[0] == places[1] {
        return vec![Mark {
            at: places[0],
            name: format!("both: {}", recommendations[0].l_cut),
            ink: Ink::Cutoff,
        }];
    }
    let named = SIDES.into_iter().zip(recommendations).zip(places);
    named
        .map(|(((side, ink), recommendation), at)| Mark {
            at,
            name: format!("{side}: {}", recommendation.l_cut),
            ink,
        })
        .collect()
}

/// The second run is dashed, so that the first is visible where both are equal.
fn style(side: &str) -> Style {
    if side == SIDES[1].0 { Style::Dashed } else { Style::Line }
}

fn of_differences(title: &str, unit: &str, all: &[Difference], along: Along, places: Vec<f64>) -> Chart {
    let (lower, upper) = all.iter().map(|one| (one.lower95, one.upper95)).unzip();
    let means = all.iter().map(|one| one.mean).collect();
    let curve = Curve::new("second less first", Ink::Text, means).with_band(lower, upper).placed(places);
    Chart {
        curves: vec![curve],
        level: Some((0.0, "equal".into())),
        ..Chart::new(format!("{title}, difference"), unit, along)
    }
}

/// The horizontal axis: layers if both runs have the same number, else relative depth.
#[derive(Clone, Copy)]
struct Axes {
    same: Option<usize>,
}

impl Axes {
    fn along(self, cutoffs: bool) -> Along {
        match self.same {
            Some(layers) if cutoffs => Along::Cutoffs(layers),
            Some(layers) => Along::Layers(layers),
            None if cutoffs => Along::Values { name: "cutoff, % of layers kept".into(), range: [0.0, 100.0] },
            None => Along::Values { name: "depth, % of layers".into(), range: [0.0, 100.0] },
        }
    }

    /// Positions of a run's layers at relative depth; `None` on an axis of layers.
    fn layers(self, layers: usize) -> Vec<f64> {
        self.places(layers, 0.5)
    }

    fn cutoffs(self, layers: usize) -> Vec<f64> {
        self.places(layers, 1.0)
    }

    fn places(self, layers: usize, from: f64) -> Vec<f64> {
        match self.same {
            Some(_) => vec![],
            None => (0..layers).map(|layer| 100.0 * (layer as f64 + from) / layers as f64).collect(),
        }
    }

    fn cutoff(self, cutoff: usize, layers: usize) -> f64 {
        self.same.map_or(100.0 * cutoff as f64 / layers as f64, |_| cutoff as f64)
    }
}

/// A figure at layers 0 … L−1, without the embedding's value.
fn by_layer<'a>(run: &'a RunData, figure: &str) -> &'a [Summary] {
    let all = match figure {
        KNOCKOUT_KL => run.knockout.first().map_or(&[][..], Vec::as_slice),
        _ => run.summary.overall.figures.get(figure).map_or(&[][..], Vec::as_slice),
    };
    &all[all.len().saturating_sub(run.layers())..]
}

/// The view for export.
///
/// # Errors
/// [`Error::Failure`] while there is no comparison.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Result<String> {
    let (Some(second), Some(compared)) = (scene.second, scene.compared) else {
        return Err(Error::failure("there is nothing to compare yet; open a second run"));
    };
    let compared = compared.as_ref().map_err(Error::failure)?;
    let sides = SIDES.into_iter().zip([scene.run, second]);
    let runs = sides.map(|((side, _), run)| format!("{side}: {} ({})", run.manifest.model.name, about(run)));
    let recommended = SIDES.into_iter().zip(&compared.recommendations);
    let recommended =
        recommended.map(|((side, _), recommendation)| format!("{side} {}", cutoff(recommendation)));
    let parts: Vec<String> = runs
        .chain([format!("{}: {}", agreement(compared), recommended.collect::<Vec<_>>().join(", "))])
        .chain([bands(Some(compared)), format!("layerscope {}", scene.run.manifest.layerscope)])
        .collect();
    Ok(charts_in_rows(&charts(scene, second), &parts.join(". "), "Compare", theme))
}

/// One row per value and curve.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let charts = charts(scene, scene.second?);
    let mut rows = vec![];
    for chart in &charts {
        for curve in &chart.curves {
            for (index, value) in curve.values.iter().enumerate() {
                let (lower, upper) = curve.band.as_ref().map_or((f64::NAN, f64::NAN), |(lower, upper)| {
                    [lower, upper].map(|edge| edge.get(index).copied().unwrap_or(f64::NAN)).into()
                });
                let place = chart.along.place_name(chart.along.place(curve, index));
                let names = [chart.title.clone(), chart.unit.clone(), curve.name.clone(), place];
                rows.push(names.into_iter().chain([*value, lower, upper].map(cell)).collect::<Vec<_>>());
            }
        }
    }
    let columns = ["figure", "unit", "run", "place", "mean", "lower edge", "upper edge"];
    Some(Figures {
        columns: columns.map(|name| Column::new(name, "")).to_vec(),
        rows: rows.len(),
        row: Box::new(move |row| rows[row].clone()),
    })
}
