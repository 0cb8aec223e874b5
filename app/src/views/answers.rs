//! Scores at tasks, from `layerscope eval --out RUN` and `layerscope lm-eval --out RUN`.

use super::Scene;
use crate::state::FrontierChart;
use crate::widgets::{Column, Figures, cell, scores};
use eframe::egui::{ScrollArea, Ui};
use layerscope_eval::{EvaluationSummary, Row, Source};
use layerscope_figures::{Canvas, Colours, Panels, Scores, Theme};

/// Width of the exported figure, points.
const WIDTH: f64 = 940.0;

/// Whether there are scores.
pub fn are_there(scene: &Scene<'_>) -> bool {
    scene.run.evaluations.as_ref().map_or(true, |found| !found.is_empty())
}

/// Whether they are shown instead of the frontier.
pub fn are_shown(scene: &Scene<'_>) -> bool {
    scene.state.frontier_chart == FrontierChart::Answers && are_there(scene)
}

/// Draws a figure for each evaluation.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.weak(about(scene));
    let mut hovered = None;
    ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
        for figure in figures_of(scene) {
            ui.strong(&figure.title);
            hovered = scores(ui, &figure, ui.available_width() - 8.0).1.or(hovered.take());
        }
    });
    if let Some(text) = hovered {
        *scene.readout = Some(text.replace('\n', "  ·  "));
    }
}

/// A note on the scores, or why they cannot be shown.
fn about(scene: &Scene<'_>) -> String {
    let found = match &scene.run.evaluations {
        Ok(found) => found,
        Err(problem) => return problem.clone(),
    };
    let of = |evaluation: &EvaluationSummary| match &evaluation.source {
        Source::Layerscope(settings) => {
            let adapter = if settings.adapter_sha256.is_some() { ", with an adapter" } else { "" };
            format!("layerscope eval, {} weights{adapter}", settings.weights)
        }
        Source::LmEval(harness) => format!("lm-evaluation-harness {}", harness.lm_eval),
    };
    let sources: Vec<String> = found.iter().map(of).collect();
    format!("{}; behind a category is the number of its items", sources.join(" and "))
}

fn figures_of(scene: &Scene<'_>) -> Vec<Scores> {
    let found = scene.run.evaluations.as_deref().unwrap_or_default();
    found.iter().map(layerscope_report::scores).collect()
}

/// The figures below a note, for export.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Option<String> {
    let (figures, colours) = (figures_of(scene), Colours::Of(theme));
    let height = figures.iter().map(|figure| figure.height(WIDTH, true)).reduce(f64::max)?;
    let size = [WIDTH, height];
    let mut panels = Panels::new(colours, 1, size, &about(scene));
    for (index, figure) in figures.iter().enumerate() {
        panels.push(&figure.to_svg(&Canvas { size, colours, titled: true, id: &format!("scores-{index}") }));
    }
    panels.finish("figure", &figures[0].title, &figures[0].description).into()
}

/// A row for each category, metric and policy.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let found = scene.run.evaluations.as_ref().ok()?;
    let rows: Vec<(&EvaluationSummary, &Row, usize)> = found
        .iter()
        .flat_map(|evaluation| evaluation.rows.iter().map(move |row| (evaluation, row)))
        .flat_map(|(evaluation, row)| (0..row.cells.len()).map(move |index| (evaluation, row, index)))
        .collect();
    let columns = vec![
        Column::new("tasks", ""),
        Column::new("metric", ""),
        Column::new("category", ""),
        Column::new("items", ""),
        Column::new("policy", ""),
        Column::new("score", "%"),
        Column::new("difference", "points"),
        Column::new("lower 95 %", "points"),
        Column::new("upper 95 %", "points"),
    ];
    let row = move |index: usize| -> Vec<String> {
        let (evaluation, row, policy) = rows[index];
        let tasks = match &evaluation.source {
            Source::Layerscope(settings) => settings.tasks.clone(),
            Source::LmEval(_) => "lm-evaluation-harness".into(),
        };
        let shown = &row.cells[policy];
        let difference = |figure: fn(&layerscope_diagnostics::summary::Difference) -> f64| {
            cell(shown.difference.as_ref().map_or(f64::NAN, |found| 100.0 * figure(found)))
        };
        vec![
            tasks,
            row.metric.clone(),
            row.category.clone().unwrap_or_else(|| "all".into()),
            row.items.to_string(),
            shown.policy.clone(),
            cell(100.0 * shown.score),
            difference(|found| found.mean),
            difference(|found| found.lower95),
            difference(|found| found.upper95),
        ]
    };
    let count = found.iter().flat_map(|evaluation| &evaluation.rows).map(|row| row.cells.len()).sum();
    Some(Figures { columns, rows: count, row: Box::new(row) })
}
