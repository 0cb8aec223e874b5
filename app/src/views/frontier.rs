//! The frontier: divergence and savings by cutoff.

use super::{Scene, answers, charts_in_rows, policies};
use crate::state::FrontierChart;
use crate::widgets::{Column, Figures, cell};
use eframe::egui::Ui;
use layerscope_cutoff::budget::BudgetPoint;
use layerscope_cutoff::cost::Savings;
use layerscope_cutoff::recommend::FrontierGroup;
use layerscope_diagnostics::record::{Anchor, Divergence};
use layerscope_figures::{Along, Chart, Curve, Ink, Mark, Style};

/// Savings of a cutoff measured by live generation, relative to full depth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiveSavings {
    /// The cutoff.
    pub cutoff: usize,
    /// Share of the time to first token saved.
    pub ttft_saved: f64,
    /// Share of the time per output token saved, if both sides have at least two tokens.
    pub tpot_saved: Option<f64>,
}

/// Draws the charts.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    let there = |chart: &FrontierChart| match chart {
        FrontierChart::Cutoffs => true,
        FrontierChart::Policies => policies::are_there(scene),
        FrontierChart::Answers => answers::are_there(scene),
    };
    let choices: Vec<FrontierChart> = FrontierChart::ALL.into_iter().filter(there).collect();
    if choices.len() > 1 && !scene.is_picture {
        ui.horizontal(|ui| {
            for chart in choices {
                let label = ui.selectable_label(scene.state.frontier_chart == chart, chart.name());
                if label.on_hover_text(chart.description()).clicked() {
                    scene.state.frontier_chart = chart;
                }
            }
        });
    }
    if policies::are_shown(scene) {
        return policies::show(ui, scene);
    }
    if answers::are_shown(scene) {
        return answers::show(ui, scene);
    }
    ui.horizontal_wrapped(|ui| {
        let several = scene.run.categories().count() > 1;
        if !scene.is_picture {
            ui.add_enabled_ui(several, |ui| ui.checkbox(&mut scene.state.by_category, "By category"));
        }
        ui.weak(bands(scene));
    });
    if scene.run.frontiers.is_empty() {
        ui.label("This run holds no frontier; record it again to get one.");
        return;
    }
    // A click between two cutoffs selects the one above.
    if let Some(below) = charts_in_rows(ui, &charts(scene), 2, &mut scene.state.cutoff) {
        scene.state.cutoff = below + 1;
    }
}

/// A note on the bands.
pub fn bands(scene: &Scene<'_>) -> String {
    format!("anchor {}; bands reach to the one-sided 95 % bound over prompts", scene.state.anchor.name())
}

/// The charts, for the window and for export.
pub fn charts(scene: &Scene<'_>) -> Vec<Chart> {
    let along = Along::Cutoffs(scene.run.layers());
    let chart = |title, unit, curves| Chart {
        curves,
        selected: scene.state.selection.layers.iter().copied().collect(),
        ..Chart::new(title, unit, along.clone())
    };
    let share = Some([0.0, 1.0]);
    let mut charts = vec![
        Chart {
            logarithmic: true,
            level: Some((scene.state.tolerance, "tolerance".into())),
            ..chart("KL divergence", "KL(full, cut), nats per token", costs(scene, |d| d.kl, true))
        },
        Chart { range: share, ..chart("Same top token", "share of steps", costs(scene, |d| d.top1, false)) },
        Chart { range: share, ..chart("Answers and texts", "share of prompts", kept(scene)) },
        chart("ΔNLL", "nats per token of the continuation", costs(scene, |d| d.dnll, false)),
        Chart { range: share, ..chart("Saved", "share, at this run’s lengths", savings(scene)) },
    ];
    charts.extend(budgets(scene));
    charts
}

/// KL against the share of the KV bytes that stays, for cutoffs and for each search of sets.
fn budgets(scene: &Scene<'_>) -> Option<Chart> {
    let curves = scene.run.budgets.as_ref().ok().filter(|curves| !curves.is_empty())?;
    let along = Along::Values { name: "KV bytes kept, %".into(), range: [0.0, 100.0] };
    let in_use = scene.run.sets.iter().find(|set| set.policy == scene.state.policy);
    let mark =
        |set: &BudgetPoint| Mark { at: 100.0 * set.kv_kept, name: "KV budget".into(), ink: Ink::Cutoff };
    Some(Chart {
        logarithmic: true,
        level: Some((scene.state.tolerance, "tolerance".into())),
        curves: curves
            .iter()
            .enumerate()
            .map(|(index, curve)| {
                let kept = curve.points.iter().map(|point| 100.0 * point.kv_kept).collect();
                let kl = curve.points.iter().map(|point| point.kl).collect();
                Curve::series(curve.name.clone(), index, kl).placed(kept)
            })
            .collect(),
        marks: in_use.map(mark).into_iter().collect(),
        ..Chart::new("Budget of KV", "KL(full, policy), nats per token", along)
    })
}

fn costs(scene: &Scene<'_>, figure: fn(&Divergence) -> f64, band: bool) -> Vec<Curve> {
    let of = |name: String, ink, group: &FrontierGroup| {
        let curve = Curve::new(name, ink, group.cutoffs.iter().map(figure).collect());
        if band {
            return curve.with_band(group.kl(), group.kl_upper95.clone());
        }
        curve
    };
    let mut curves = vec![];
    let chosen = scene.run.frontier(scene.state.anchor);
    if scene.state.by_category {
        let groups = chosen.iter().flat_map(|frontier| frontier.categories()).enumerate();
        curves.extend(groups.map(|(index, group)| {
            let mut curve = of(group.category.clone().unwrap_or_default(), Ink::Series(index), group);
            curve.band = None;
            curve
        }));
    }
    let all = scene.run.frontiers.iter();
    curves.extend(all.map(|frontier| {
        let name = format!("anchor {}", frontier.anchor.name());
        match frontier.anchor == scene.state.anchor {
            true => of(name, Ink::Cutoff, frontier.overall()),
            false => of(name, Ink::WeakText, frontier.overall()).styled(Style::Dashed),
        }
    }));
    curves
}

/// Answers and texts that are kept with the chosen anchor, of what the full model gives.
fn kept(scene: &Scene<'_>) -> Vec<Curve> {
    let Some(frontier) = scene.run.frontier(scene.state.anchor) else { return vec![] };
    let all = &frontier.overall().kept;
    let curves =
        [("answers kept", Ink::Cutoff, &all.answers), ("text unchanged", Ink::Series(0), &all.texts)];
    let known = curves.into_iter().filter(|(_, _, kept)| kept.last().is_some_and(|full| full.of > 0));
    known
        .map(|(name, ink, kept)| Curve::new(name, ink, kept.iter().map(|kept| kept.share()).collect()))
        .collect()
}

fn savings(scene: &Scene<'_>) -> Vec<Curve> {
    let layers = scene.run.layers();
    let all: Vec<Savings> = (1..=layers).map(|c| scene.run.savings(c, scene.state.anchor)).collect();
    let of = |name: &str, index, figure: fn(&Savings) -> f64| {
        Curve::new(name, Ink::Series(index), all.iter().map(figure).collect())
    };
    let mut curves = vec![
        of("KV bytes", 0, |s| s.kv_saved),
        of("prefill FLOPs", 1, |s| s.flops_saved),
        of("TTFT, predicted", 2, |s| s.predicted_ttft_saved).styled(Style::Dashed),
        of("TPOT, predicted", 3, |s| s.predicted_tpot_saved).styled(Style::Dashed),
    ];
    let measured = |name: &str, index, figure: fn(&LiveSavings) -> Option<f64>| {
        let mut values = vec![f64::NAN; layers];
        for one in scene.measured.iter().filter(|one| (1..=layers).contains(&one.cutoff)) {
            values[one.cutoff - 1] = figure(one).unwrap_or(f64::NAN);
        }
        let any = values.iter().any(|value| value.is_finite());
        any.then(|| Curve::new(name, Ink::Series(index), values).styled(Style::Points))
    };
    curves.extend(measured("TTFT, measured live", 2, |one| Some(one.ttft_saved)));
    curves.extend(measured("TPOT, measured live", 3, |one| one.tpot_saved));
    curves
}

/// One row per cutoff and anchor, overall and per category; or per measured policy, if these are shown.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    if policies::are_shown(scene) {
        return policies::figures(scene);
    }
    if answers::are_shown(scene) {
        return answers::figures(scene);
    }
    let layers = scene.run.layers();
    let groups: Vec<(Anchor, &FrontierGroup)> = scene
        .run
        .frontiers
        .iter()
        .flat_map(|frontier| frontier.groups.iter().map(|group| (frontier.anchor, group)))
        .collect();
    let columns = vec![
        Column::new("anchor", ""),
        Column::new("category", ""),
        Column::new("cutoff", "layers kept"),
        Column::new("KL", "nats"),
        Column::new("KL upper 95 %", "nats"),
        Column::new("same top token", "share"),
        Column::new("ΔNLL", "nats"),
        Column::new("texts unchanged", "share"),
        Column::new("answers kept", "share"),
        Column::new("KV saved", "share"),
        Column::new("prefill FLOPs saved", "share"),
        Column::new("TTFT saved, predicted", "share"),
        Column::new("TPOT saved, predicted", "share"),
    ];
    Some(Figures {
        columns,
        rows: groups.len() * layers,
        row: Box::new(move |row| {
            let ((anchor, group), cutoff) = (groups[row / layers], row % layers + 1);
            let (at, saved) = (group.at(cutoff), scene.run.savings(cutoff, anchor));
            let name = group.category.as_deref().unwrap_or("all");
            let figures = [
                at.kl,
                group.upper95_at(cutoff),
                at.top1,
                at.dnll,
                group.kept.texts_at(cutoff).share(),
                group.kept.answers_at(cutoff).share(),
                saved.kv_saved,
                saved.flops_saved,
                saved.predicted_ttft_saved,
                saved.predicted_tpot_saved,
            ];
            let names = [anchor.name().to_owned(), name.to_owned(), cutoff.to_string()];
            names.into_iter().chain(figures.map(cell)).collect()
        }),
    })
}
