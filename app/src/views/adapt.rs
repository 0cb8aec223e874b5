//! The view for training an adapter: loss, held-out figures and the frontier as training goes on.

use super::{LEAST_HEIGHT, chart_rows, record::about};
use crate::adapting::{Adapting, Measurement, Progress, Stage};
use crate::data::short;
use crate::design::{self, space};
use crate::widgets::{Column, Figures, cell, count, figures_table};
use eframe::egui::{Button, DragValue, Grid, ProgressBar, RichText, ScrollArea, TextEdit, Ui, vec2};
use layerscope_engine::HeldOutFigures;
use layerscope_figures::{Along, Chart, Curve, Ink, Mark, Style};

/// The user's action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Train.
    Adapt,
    /// Stop.
    Cancel,
    /// Open a model or a prompt file.
    Open,
    /// Generate with and without the adapter.
    Generate,
    /// Record prompts with the adapter.
    Record,
}

/// The data of the view.
pub struct AdaptScene<'a> {
    /// The form and the progress.
    pub adapting: &'a mut Adapting,
    /// The loaded model's name.
    pub model: Option<&'a str>,
    /// Layers of the model.
    pub layers: usize,
    /// The policy to train for, or why there is none.
    pub policy: Result<&'a str, &'a str>,
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// Whether the engine is busy.
    pub busy: bool,
    /// Whether figures are shown as a table.
    pub as_table: bool,
}

/// Draws the view; returns the user's action.
pub fn show(ui: &mut Ui, scene: &mut AdaptScene<'_>) -> Option<Asked> {
    let mut asked = form(ui, scene);
    ui.add_space(space::SMALL);
    let Some(progress) = &scene.adapting.progress else {
        ui.weak(
            "Trains a low-rank adapter beside the weights, so that the model under a cutoff, or within a budget of KV, says what it \
             says at full depth. The adapter acts on decode rows alone: the prompt’s keys and values, and the model without it, \
             stay as they are. Put the cutoff below the recommended one, and give prompts like those that the model will run. A \
             tenth of them is held out, measured and never trained on.",
        );
        return asked;
    };
    status(ui, progress);
    if let Some(outcome) = &progress.outcome {
        let ended = [
            (format!("{}, before", progress.policy), Some(&outcome.before)),
            (format!("{}, after", progress.policy), Some(&outcome.after)),
            ("full depth, after".to_owned(), outcome.full_depth.as_ref()),
        ];
        asked = asked.or(summary(ui, &ended, outcome.steps, outcome.tokens, outcome.seconds));
    }
    if scene.as_table {
        figures_table(ui, &figures(progress));
        return asked;
    }
    if progress.held_out.is_empty() {
        return asked;
    }
    picture(ui, progress, scene.layers, scene.tolerance);
    asked
}

/// Draws the charts alone.
pub fn picture(ui: &mut Ui, progress: &Progress, layers: usize, tolerance: f64) {
    let charts = charts(progress, layers, tolerance);
    let gap = ui.spacing().item_spacing.x;
    let width = (ui.available_width() - gap) / 2.0 - space::MEDIUM;
    let height = (ui.available_height() / 2.0 - space::MEDIUM).max(LEAST_HEIGHT);
    ScrollArea::vertical()
        .id_salt("charts")
        .show(ui, |ui| chart_rows(ui, &charts, 2, vec2(width, height), None));
}

fn form(ui: &mut Ui, scene: &mut AdaptScene<'_>) -> Option<Asked> {
    let mut asked = None;
    let palette = design::palette(ui);
    ui.horizontal_wrapped(|ui| {
        ui.strong("Model");
        match scene.model {
            Some(name) => ui.label(name),
            None => ui.weak("none is open"),
        };
        if ui.add_enabled(!scene.busy, Button::new("Open a model …")).clicked() {
            asked = Some(Asked::Open);
        }
        ui.separator();
        ui.strong("Policy");
        let policy = match scene.policy {
            Ok(policy) => RichText::new(policy).monospace().color(palette.cutoff),
            Err(reason) => RichText::new(reason).color(palette.warning),
        };
        let about = "Cutoff and anchor are the marker’s; the policy’s kind is chosen in the view Generate";
        ui.label(policy).on_hover_text(about);
    });
    let adapting = &mut *scene.adapting;
    ui.horizontal_wrapped(|ui| {
        let label = ui.label(RichText::new("Prompts").strong());
        let hint = match &adapting.bundled {
            Some(file) => format!("{} bundled prompts, or a file (.jsonl)", file.prompts.len()),
            None => "a prompt file (.jsonl); drop one here".to_owned(),
        };
        let edit = TextEdit::singleline(&mut adapting.prompts).desired_width(300.0).hint_text(hint);
        ui.add(edit).labelled_by(label.id);
    });
    ui.horizontal_wrapped(|ui| {
        let label = ui.label(RichText::new("Adapter’s folder").strong());
        ui.add(TextEdit::singleline(&mut adapting.folder).desired_width(300.0)).labelled_by(label.id);
    });
    ui.horizontal_wrapped(|ui| {
        let label = ui.label("Minutes");
        ui.add(DragValue::new(&mut adapting.minutes).range(0.1..=600.0).speed(0.5)).labelled_by(label.id);
        let label = ui.label("Rank");
        ui.add(DragValue::new(&mut adapting.rank).range(1..=256)).labelled_by(label.id);
        let label = ui.label("Learning rate");
        let rate = DragValue::new(&mut adapting.learning_rate).range(1e-6..=0.1).speed(1e-5).max_decimals(6);
        ui.add(rate).labelled_by(label.id);
        let label = ui.label("Decode rows of a prompt");
        ui.add(DragValue::new(&mut adapting.max_new_tokens).range(2..=1_024)).labelled_by(label.id);
        if scene.busy {
            let stop =
                ui.button("Stop").on_hover_text("What is trained is kept; training again goes on from there");
            if stop.clicked() {
                asked = Some(Asked::Cancel);
            }
            return;
        }
        let has_prompts = !adapting.prompts.trim().is_empty() || adapting.bundled.is_some();
        let ready = scene.model.is_some()
            && scene.policy.is_ok()
            && has_prompts
            && !adapting.folder.trim().is_empty();
        let button = Button::new(RichText::new("Train").color(palette.on_accent)).fill(palette.accent);
        let response = ui.add_enabled(ready, button);
        if response.on_disabled_hover_text("Needs a model, a cutoff, prompts and a folder").clicked() {
            asked = Some(Asked::Adapt);
        }
    });
    asked
}

fn status(ui: &mut Ui, progress: &Progress) {
    let palette = design::palette(ui);
    let [trained, held_out] = progress.prompts;
    let left = progress.left().map_or(String::new(), |left| format!(", {} left", about(left)));
    let text = match progress.stage {
        Stage::Preparing { done, all } => {
            format!("running prompts through the full model: {done} of {all}{left}")
        }
        Stage::Training => format!(
            "{}: step {}, {}, {held_out} held out{left}",
            progress.policy,
            progress.losses.last().map_or(0, |(step, _)| *step),
            count(trained, "prompt"),
        ),
        Stage::Ended { cancelled: true } => "stopped; training again goes on from here".to_owned(),
        Stage::Ended { cancelled: false } => {
            format!("{}: done, {}, {held_out} held out", progress.policy, count(trained, "prompt"))
        }
    };
    ui.add(ProgressBar::new(progress.share()).text(text));
    const SHOWN: usize = 2;
    for (id, reason) in progress.left_out.iter().take(SHOWN) {
        ui.colored_label(palette.warning, format!("left out {id}: {reason}"));
    }
    if progress.left_out.len() > SHOWN {
        ui.colored_label(palette.warning, format!("{} prompts are left out", progress.left_out.len()));
    }
}

/// What training took and changed, and what can be done with the adapter.
fn summary(
    ui: &mut Ui,
    rows: &[(String, Option<&HeldOutFigures>)],
    steps: usize,
    tokens: usize,
    seconds: f64,
) -> Option<Asked> {
    let mut asked = None;
    design::card(design::palette(ui)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        Grid::new("outcome").num_columns(4).spacing(vec2(space::LARGE, 2.0)).show(ui, |ui| {
            for title in ["On held-out prompts", "KL, nats", "same top token", "whole answers"] {
                ui.label(RichText::new(title).strong());
            }
            ui.end_row();
            for (name, figures) in rows {
                let Some(figures) = figures else { continue };
                ui.label(RichText::new(name).monospace());
                ui.label(RichText::new(short(figures.kl as f32)).monospace());
                ui.label(RichText::new(format!("{:.1} %", figures.top1 * 100.0)).monospace());
                let answers = figures.answers.map_or("–".into(), |share| format!("{:.0} %", share * 100.0));
                ui.label(RichText::new(answers).monospace());
                ui.end_row();
            }
        });
        ui.horizontal_wrapped(|ui| {
            ui.weak(format!("{steps} steps, {tokens} decode rows, {:.1} minutes", seconds / 60.0));
            if ui.button("Generate with and without it").clicked() {
                asked = Some(Asked::Generate);
            }
            if ui.button("Record prompts with it").clicked() {
                asked = Some(Asked::Record);
            }
        });
    });
    asked
}

/// The charts.
fn charts(progress: &Progress, layers: usize, tolerance: f64) -> Vec<Chart> {
    let held_out = &progress.held_out;
    let steps: Vec<f64> = held_out.iter().map(|measured| measured.step as f64).collect();
    let of_step = progress.losses.iter().map(|(step, _)| *step);
    let last = of_step.chain(held_out.iter().map(|measured| measured.step)).max().unwrap_or(0).max(1);
    let first = held_out.first().map_or(0, |measured| measured.step).min(last - 1);
    let by_step = || Along::Values { name: "step".into(), range: [first as f64, last as f64] };
    let curve = |name: &str, ink, figure: &dyn Fn(&Measurement) -> f64| {
        let values = held_out.iter().map(figure).collect();
        Curve::new(name, ink, values).placed(steps.clone()).styled(Style::Marked)
    };
    let (at, losses) = smoothed(&progress.losses);
    let mut loss = Chart::new("Loss", "KL(full, adapted), nats per token", by_step());
    let most = losses.iter().copied().chain(held_out.iter().map(|measured| measured.figures.kl));
    loss.range = Some([0.0, most.fold(0.0, f64::max)]);
    loss.curves = vec![
        Curve::new(format!("mean of {SMOOTHED} steps"), Ink::Series(0), losses).placed(at),
        curve("held out", Ink::Cutoff, &|measured| measured.figures.kl),
    ];
    let mut same = Chart::new("Same top token", "share of held-out steps", by_step());
    same.curves = vec![curve("same top token", Ink::Cutoff, &|measured| measured.figures.top1)];
    let mut charts = vec![loss];
    charts.extend(progress.cutoff.map(|cutoff| frontier(progress, cutoff, layers, tolerance)));
    charts.push(same);
    if held_out.iter().any(|measured| measured.figures.answers.is_some()) {
        let share = |measured: &Measurement| measured.figures.answers.unwrap_or(f64::NAN);
        let mut answers = Chart::new("Whole answers", "share of held-out answers", by_step());
        answers.range = Some([0.0, 1.0]);
        answers.curves = vec![curve("whole answers", Ink::Cutoff, &share)];
        charts.push(answers);
    }
    charts
}

/// Losses of single steps are of a few prompts each, and of different cutoffs: their means over this many steps are drawn.
const SMOOTHED: usize = 10;

/// Steps, and the mean loss of each and those before it.
fn smoothed(losses: &[(usize, f64)]) -> (Vec<f64>, Vec<f64>) {
    let mean = |index: usize| {
        let few = &losses[(index + 1).saturating_sub(SMOOTHED)..=index];
        few.iter().map(|(_, loss)| loss).sum::<f64>() / few.len() as f64
    };
    losses.iter().enumerate().map(|(index, (step, _))| (*step as f64, mean(index))).unzip()
}

/// The frontier before and now.
fn frontier(progress: &Progress, cutoff: usize, layers: usize, tolerance: f64) -> Chart {
    let held_out = &progress.held_out;
    let lowest = held_out.iter().filter_map(|measured| Some(measured.frontier.first()?.0)).min().unwrap_or(1);
    let range = [lowest as f64 - 0.5, layers as f64 + 0.5];
    let along = Along::Values { name: "cutoff (layers kept)".into(), range };
    let mut chart = Chart::new("Frontier of held-out prompts", "KL(full, cut), nats per token", along);
    chart.logarithmic = true;
    chart.level = Some((tolerance, "tolerance".into())).filter(|(tolerance, _)| *tolerance > 0.0);
    chart.marks.push(Mark { at: cutoff as f64, name: progress.policy.clone(), ink: Ink::Cutoff });
    let curve = |measured: &Measurement, ink, style| {
        let name = match measured.step {
            0 => "without the adapter".to_owned(),
            step => format!("after {}", count(step, "step")),
        };
        let (at, kl): (Vec<f64>, Vec<f64>) =
            measured.frontier.iter().map(|(cutoff, kl)| (*cutoff as f64, *kl)).unzip();
        Curve::new(name, ink, kl).placed(at).styled(style)
    };
    chart.curves.extend(held_out.first().map(|measured| curve(measured, Ink::WeakText, Style::Dashed)));
    let latest = held_out.last().filter(|_| held_out.len() > 1);
    chart.curves.extend(latest.map(|measured| curve(measured, Ink::Cutoff, Style::Marked)));
    chart
}

/// One row per measurement on held-out prompts, with the KL at each cutoff of its frontier.
pub fn figures(progress: &Progress) -> Figures<'_> {
    let mut cutoffs: Vec<usize> =
        progress.held_out.iter().flat_map(|measured| &measured.frontier).map(|(cutoff, _)| *cutoff).collect();
    cutoffs.sort_unstable();
    cutoffs.dedup();
    let mut columns = vec![
        Column::new("step", ""),
        Column::new("KL", "nats"),
        Column::new("same top token", "share"),
        Column::new("whole answers", "share"),
    ];
    columns.extend(cutoffs.iter().map(|cutoff| Column::new(format!("KL at cutoff {cutoff}"), "nats")));
    Figures {
        columns,
        rows: progress.held_out.len(),
        row: Box::new(move |row| {
            let measured = &progress.held_out[row];
            let HeldOutFigures { kl, top1, answers } = measured.figures;
            let at = |cutoff: &usize| {
                let found = measured.frontier.iter().find(|(known, _)| known == cutoff);
                cell(found.map_or(f64::NAN, |(_, kl)| *kl))
            };
            let own = [kl, top1, answers.unwrap_or(f64::NAN)].map(cell);
            std::iter::once(measured.step.to_string()).chain(own).chain(cutoffs.iter().map(at)).collect()
        }),
    }
}
