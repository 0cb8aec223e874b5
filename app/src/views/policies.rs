//! Measured policies: quality against time and memory, from `layerscope bench --quality --out RUN`.

use super::Scene;
use crate::state::FrontierChart;
use crate::widgets::{Column, Figures, cell, trade_off};
use eframe::egui::{ScrollArea, Ui, vec2};
use layerscope_bench::{Measurement, Quality};
use layerscope_figures::{Canvas, Colours, Panels, Theme, TradeOff};

/// Width of the exported figure, points.
const WIDTH: f64 = 940.0;
/// Largest factor by which the figure is stretched vertically to fill the view.
const MOST_STRETCH: f32 = 1.5;

/// Whether there are measurements.
pub fn are_there(scene: &Scene<'_>) -> bool {
    match &scene.run.bench {
        Ok(bench) => bench.as_ref().is_some_and(|bench| bench.results.iter().any(|m| m.quality.is_some())),
        Err(_) => true,
    }
}

/// Whether they are shown instead of the frontier.
pub fn are_shown(scene: &Scene<'_>) -> bool {
    scene.state.frontier_chart == FrontierChart::Policies && are_there(scene)
}

/// Draws the figure.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.weak(about(scene));
    let Some(figure) = figure(scene) else { return };
    let width = ui.available_width() - 8.0;
    let natural = figure.height(f64::from(width), false) as f32;
    let height = natural.max(ui.available_height().min(natural * MOST_STRETCH) - 4.0);
    let hovered = ScrollArea::vertical().show(ui, |ui| trade_off(ui, &figure, vec2(width, height)).1).inner;
    if let Some(text) = hovered {
        *scene.readout = Some(text.replace('\n', "  ·  "));
    }
}

/// A note on the measurements, or why they cannot be shown.
fn about(scene: &Scene<'_>) -> String {
    match &scene.run.bench {
        Err(problem) => problem.clone(),
        Ok(None) => String::new(),
        Ok(Some(_)) if figure(scene).is_none() => {
            "Costs are shown relative to full, which was not measured; measure again with full among --policies.".into()
        }
        Ok(Some(bench)) => {
            let machine = &bench.machine;
            let on = machine.gpu.as_ref().or(machine.cpu.as_ref()).unwrap_or(&machine.architecture);
            let broken_off = if bench.interrupted { "; the measurement was broken off" } else { "" };
            format!(
                "{}, {} weights, measured on {on}, {} threads, layerscope {}{broken_off}; lower left is better",
                bench.model,
                bench.weights.name(),
                machine.threads,
                bench.layerscope
            )
        }
    }
}

fn figure(scene: &Scene<'_>) -> Option<TradeOff> {
    layerscope_report::trade_off(scene.run.bench.as_ref().ok()?.as_ref()?)
}

/// The figure with its note, for export.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Option<String> {
    let (figure, colours) = (figure(scene)?, Colours::Of(theme));
    let size = [WIDTH, figure.height(WIDTH, true)];
    let mut panels = Panels::new(colours, 1, size, &about(scene));
    panels.push(&figure.to_svg(&Canvas { size, colours, titled: true, id: "policies" }));
    Some(panels.finish("figure", &figure.title, &figure.description))
}

/// One row per policy and length.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let results = &scene.run.bench.as_ref().ok()?.as_ref()?.results;
    let columns = vec![
        Column::new("policy", ""),
        Column::new("prompt", "tokens"),
        Column::new("new", "tokens"),
        Column::new("KL", "nats"),
        Column::new("same top token", "share"),
        Column::new("ΔNLL", "nats"),
        Column::new("number found", "share"),
        Column::new("quality prompts", ""),
        Column::new("TTFT", "s, median"),
        Column::new("TTFT / full", ""),
        Column::new("TPOT", "s, median"),
        Column::new("TPOT / full", ""),
        Column::new("KV", "bytes"),
        Column::new("peak memory", "bytes"),
    ];
    Some(Figures { columns, rows: results.len(), row: Box::new(move |row| cells(&results[row])) })
}

fn cells(result: &Measurement) -> Vec<String> {
    let quality = |figure: fn(&Quality) -> f64| cell(result.quality.as_ref().map_or(f64::NAN, figure));
    let ratio = |ratio: Option<f64>| cell(ratio.unwrap_or(f64::NAN));
    vec![
        result.policy.clone(),
        result.length.to_string(),
        result.new_tokens.to_string(),
        quality(|quality| quality.kl),
        quality(|quality| quality.top1),
        quality(|quality| quality.dnll),
        quality(|quality| quality.found),
        result.quality.map_or(String::new(), |quality| quality.prompts.to_string()),
        cell(result.ttft_s.median),
        ratio(result.ttft_ratio),
        cell(result.tpot_s.median),
        ratio(result.tpot_ratio),
        result.kv_bytes.to_string(),
        result.peak_bytes.map_or(String::new(), |bytes| bytes.to_string()),
    ]
}
