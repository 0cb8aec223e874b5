//! The view for recording prompts with a model.

use crate::design::{self, space};
use crate::engine::message::RecordingStage;
use crate::recorder::{Progress, Recorder};
use eframe::egui::{Button, DragValue, ProgressBar, RichText, ScrollArea, TextEdit, Ui};
use std::time::Duration;

/// The user's action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Record.
    Record,
    /// Stop.
    Cancel,
    /// Open a model.
    OpenModel,
    /// Load a prompt file.
    LoadPrompts,
}

/// Draws the form and the progress; `model` is the loaded model's name, `adapter` that of the adapter that can be used.
pub fn show(
    ui: &mut Ui,
    recorder: &mut Recorder,
    model: Option<&str>,
    adapter: Option<&str>,
    busy: bool,
) -> Option<Asked> {
    let mut asked = None;
    let palette = design::palette(ui);
    ui.horizontal_wrapped(|ui| {
        ui.strong("Model");
        match model {
            Some(name) => ui.label(name),
            None => ui.weak("none is open"),
        };
        if ui.add_enabled(!busy, Button::new("Open a model …")).clicked() {
            asked = Some(Asked::OpenModel);
        }
        if let Some(adapter) = adapter {
            let with = ui.checkbox(&mut recorder.with_adapter, format!("with {adapter}"));
            with.on_hover_text("Divergences are then from the model without the adapter");
        }
    });
    ui.add_space(space::SMALL);
    ui.horizontal_wrapped(|ui| {
        ui.strong("Prompts");
        if ui.button("Load a prompt file …").clicked() {
            asked = Some(Asked::LoadPrompts);
        }
        ui.weak("one after the other with a line of --- between them, or JSON Lines");
    });
    let height = (ui.available_height() - 190.0).max(100.0);
    ScrollArea::vertical().id_salt("prompts").max_height(height).show(ui, |ui| {
        let edit = TextEdit::multiline(&mut recorder.text)
            .desired_width(f32::INFINITY)
            .desired_rows(10)
            .hint_text("What is the capital of France?\n---\nSummarise the following text: …");
        let response = ui.add(edit);
        response.widget_info(|| {
            eframe::egui::WidgetInfo::labeled(
                eframe::egui::accesskit::Role::MultilineTextInput,
                true,
                "Prompts to record",
            )
        });
    });
    ui.horizontal_wrapped(|ui| {
        let label = ui.label("Decode steps per prompt");
        ui.add(DragValue::new(&mut recorder.max_new_tokens).range(1..=4_096)).labelled_by(label.id);
        let label = ui.label("Run folder");
        ui.add(TextEdit::singleline(&mut recorder.folder).desired_width(320.0)).labelled_by(label.id);
    });
    ui.add_space(space::SMALL);
    ui.horizontal(|ui| {
        if busy {
            if ui
                .button("Cancel")
                .on_hover_text("What is finished is kept; recording again resumes")
                .clicked()
            {
                asked = Some(Asked::Cancel);
            }
        } else {
            let ready =
                model.is_some() && !recorder.text.trim().is_empty() && !recorder.folder.trim().is_empty();
            let button = Button::new(RichText::new("Record").color(palette.on_accent)).fill(palette.accent);
            let response = ui.add_enabled(ready, button);
            if response.on_disabled_hover_text("Needs a model, prompts and a run folder").clicked() {
                asked = Some(Asked::Record);
            }
        }
    });
    if let Some(progress) = &recorder.progress {
        show_progress(ui, progress);
    }
    asked
}

fn show_progress(ui: &mut Ui, progress: &Progress) {
    let palette = design::palette(ui);
    ui.add_space(space::MEDIUM);
    let left = progress.left().filter(|_| !progress.ended).map(about);
    let text = match left {
        Some(left) => format!("{} of {} prompts, {left} left", progress.done, progress.all),
        None => format!("{} of {} prompts", progress.done, progress.all),
    };
    ui.add(ProgressBar::new(progress.overall()).text(text));
    if !progress.ended {
        let mut of = progress.prompt.as_str();
        let stage = match progress.stage {
            Some(RecordingStage::Tokens { done, all }) => format!("{done} of {all} tokens"),
            Some(RecordingStage::LargestCutoffs { done, all }) => {
                of = "all prompts";
                format!("largest cutoffs, prompt {} of {all}", done + 1)
            }
            Some(RecordingStage::Frontier { done, all }) => format!("frontier, layer {done} of {all}"),
            Some(RecordingStage::Texts { done, all }) => {
                format!("texts under cutoffs, token {done} of {all}")
            }
            None => "starting".into(),
        };
        ui.add(ProgressBar::new(progress.share).text(format!("{of}: {stage}")));
    }
    if let Some(recommended) = &progress.recommended {
        ui.label(recommended);
    }
    for (id, reason) in &progress.failed {
        ui.colored_label(palette.error, format!("prompt {id}: {reason}"));
    }
}

/// A duration as text.
pub(super) fn about(time: Duration) -> String {
    match time.as_secs() {
        0..=1 => "a second".into(),
        seconds @ 2..90 => format!("{seconds} seconds"),
        seconds @ 90..5_400 => format!("{} minutes", (seconds + 30) / 60),
        seconds => format!("{:.1} hours", seconds as f64 / 3_600.0),
    }
}
