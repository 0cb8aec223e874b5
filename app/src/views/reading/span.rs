//! The panel of selected tokens: the divergence when they are removed from a layer on, and the button to
//! measure it.

use super::super::{Action, Scene};
use crate::design::space;
use crate::widgets::{chart, token_label};
use eframe::egui::{Label, ProgressBar, RichText, Ui, vec2};
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_diagnostics::record::SpanRecord;
use layerscope_report::spans::{decode_mass, divergence};
use std::ops::Range;

/// Height of a line of text and buttons.
const LINE: f32 = 26.0;
/// Height of the charts.
const CHARTS: f32 = 190.0;
/// Most characters shown of the selected tokens.
const SHOWN: usize = 48;

/// Height of [`show`]; 0 without a selection and measured spans.
pub(super) fn height(scene: &Scene<'_>) -> Option<f32> {
    let chosen = chosen(scene);
    if chosen.is_none() && kept(scene).next().is_none() {
        return None;
    }
    Some(if record(scene, chosen.as_ref()).is_some() { CHARTS + 2.0 * LINE } else { LINE } + space::MEDIUM)
}

/// The selected tokens that can be removed: all except the last of the prompt, which is the first decode
/// token.
pub(super) fn chosen(scene: &Scene<'_>) -> Option<Range<usize>> {
    let span = scene.state.selection.tokens()?;
    let end = span.end.min(scene.prompt().p.saturating_sub(1));
    (span.start < end).then_some(span.start..end)
}

/// The measured spans of the current prompt.
fn kept<'a>(scene: &Scene<'a>) -> impl Iterator<Item = &'a SpanRecord> {
    let (spans, id) = (scene.spans, scene.prompt().id.clone());
    spans.iter().filter(move |record| record.prompt_id == id)
}

/// The measurement of these tokens.
fn record<'a>(scene: &Scene<'a>, span: Option<&Range<usize>>) -> Option<&'a SpanRecord> {
    let span = span?;
    kept(scene).find(|record| record.first == span.start && record.end == span.end)
}

/// Draws the selection, the button and the measurement.
pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    ui.separator();
    let chosen = chosen(scene);
    let record = record(scene, chosen.as_ref());
    ui.horizontal(|ui| {
        if !scene.is_picture {
            asked_before(ui, scene, chosen.as_ref());
            asking(ui, scene, chosen.as_ref(), record.is_some());
        }
        if let Some(record) = record {
            ui.add(Label::new(RichText::new(capital(&record.name())).weak()).truncate());
        }
    });
    let Some(record) = record else { return };
    let (tolerance, layers) = (scene.state.tolerance, scene.run.layers());
    let sentence = capital(&record.verdict(tolerance, layers));
    ui.add(Label::new(RichText::new(sentence).strong()).truncate());
    ui.horizontal_top(|ui| {
        let width = (ui.available_width() - ui.spacing().item_spacing.x) / 2.0 - 2.0;
        let size = vec2(width, CHARTS.min(ui.available_height()));
        chart(ui, &divergence(&[record], tolerance, layers), size, None);
        chart(ui, &decode_mass(&[record], layers), size, None);
    });
}

/// Buttons that select the measured spans again.
fn asked_before(ui: &mut Ui, scene: &mut Scene<'_>, chosen: Option<&Range<usize>>) {
    let spans: Vec<Range<usize>> = kept(scene).map(|record| record.first..record.end).collect();
    if spans.is_empty() {
        return;
    }
    ui.weak("asked:");
    for span in spans {
        let text = format!("{}–{}", span.start, span.end - 1);
        if ui.selectable_label(chosen == Some(&span), text).clicked() {
            scene.state.selection.select_tokens(span);
        }
    }
}

/// The selection, and the button or the progress.
fn asking(ui: &mut Ui, scene: &mut Scene<'_>, chosen: Option<&Range<usize>>, is_known: bool) {
    if let Some(removing) = scene.removing {
        let (share, text) = match removing.progress {
            None => (0.0, "waiting for the model".to_owned()),
            Some(DiffusionEvent::Tokens { done, all }) => {
                (share(done, all), format!("{done} of {all} tokens"))
            }
            Some(DiffusionEvent::Layers { done, all }) => {
                (share(done, all), format!("{done} of {all} layers"))
            }
        };
        ui.label(format!("Removing {}:", positions(&removing.span)));
        ui.add(ProgressBar::new(share).desired_width(200.0).text(text));
        if ui.button("Stop").clicked() {
            scene.actions.push(Action::Stop);
        }
    } else if let Some(span) = chosen {
        if !is_known {
            let tokens = scene.prompt().prompt_token_text.get(span.clone()).unwrap_or_default();
            let text: String =
                tokens.iter().flat_map(|token| token_label(token).chars().collect::<Vec<_>>()).collect();
            let shown: String = text.chars().take(SHOWN).collect();
            let more = if text.chars().count() > SHOWN { " …" } else { "" };
            ui.label(format!("{} “{}{more}”", capital(&positions(span)), shown.trim()));
        }
        if scene.model_is_loaded {
            let asked = if is_known { "Ask again" } else { "From which layer may these vanish?" };
            let about = "Removes these tokens from each layer on, along the recorded continuation; takes the run’s model";
            if ui.button(asked).on_hover_text(about).clicked() {
                scene.actions.push(Action::RemoveSpan(span.clone()));
            }
        } else if !is_known {
            ui.weak("open the run’s model to ask from which layer on these may vanish");
        }
    }
}

fn share(done: usize, all: usize) -> f32 {
    done as f32 / all.max(1) as f32
}

fn positions(span: &Range<usize>) -> String {
    match span.len() {
        1 => format!("token {}", span.start),
        _ => format!("tokens {}–{}", span.start, span.end - 1),
    }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}
