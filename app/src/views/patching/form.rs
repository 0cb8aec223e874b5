//! What is asked: a pair of prompts, what is patched in which run, what measures it; and the maps that are there.

use super::super::map::choose;
use super::super::{Action, Scene};
use super::{Partners, asked, shown};
use crate::data::DrawnPatches;
use crate::design;
use crate::state::PatchState;
use eframe::egui::{
    Button, ComboBox, ProgressBar, Response, RichText, TextEdit, Ui, WidgetInfo, accesskit::Role,
};
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::{PatchDirection, PatchMap, PatchMetric, PatchSite};

/// Width of a menu of prompts, and of that of maps.
const MENUS: [f32; 2] = [120.0, 260.0];
/// Width of an answer's field.
const ANSWER: f32 = 90.0;

pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    let partners = Partners::of(scene.run, scene.state.prompt);
    ui.horizontal_wrapped(|ui| {
        prompts(ui, scene, &partners);
        let form = &mut scene.state.patching;
        choose(ui, "Patched", &mut form.site, PatchSite::ALL, PatchSite::words);
        if form.site == PatchSite::Head {
            ui.checkbox(&mut form.last_only, "last position only").on_hover_text(
                "Replace a head’s output at the last position alone, rather than at all positions",
            );
        }
        choose(ui, "Direction", &mut form.direction, PatchDirection::ALL, |direction| match direction {
            PatchDirection::Denoising => "clean into corrupted",
            PatchDirection::Noising => "corrupted into clean",
        });
        choose(ui, "Metric", &mut form.metric, PatchMetric::ALL, |metric| match metric {
            PatchMetric::LogitDiff => "logit difference",
            PatchMetric::Kl => "KL from the clean run",
        });
    });
    ui.horizontal_wrapped(|ui| {
        let form = &mut scene.state.patching;
        answer(ui, "Answer", "clean run’s", &mut form.answer);
        answer(ui, "Wrong answer", "corrupted run’s", &mut form.wrong);
        run(ui, scene, &partners);
    });
    if let Ok(patches) = scene.patches
        && !patches.is_empty()
    {
        ui.horizontal(|ui| maps(ui, scene, patches));
    }
}

/// The clean and the corrupted prompt.
fn prompts(ui: &mut Ui, scene: &mut Scene<'_>, partners: &Partners) {
    let (run, p) = (scene.run, scene.prompt().p);
    let about = |index: usize| {
        let prompt = &run.prompts[index];
        format!("{} · {} · {} tokens", prompt.id, prompt.category, prompt.p)
    };
    ui.label("Clean");
    let id = scene.prompt().id.clone();
    let menu = ComboBox::from_id_salt("clean").selected_text(&id).width(MENUS[0]).truncate();
    let menu = menu.show_ui(ui, |ui| {
        for index in 0..run.prompts.len() {
            if ui.selectable_label(scene.state.prompt == index, about(index)).clicked() {
                scene.actions.push(Action::ShowPrompt(index));
            }
        }
    });
    name(menu.response, format!("Clean prompt: {id}")).on_hover_text("The prompt whose answer is traced");
    ui.label("Corrupted");
    let chosen = partners.chosen(run, scene.state);
    let id = chosen.map_or("none fits", |index| run.prompts[index].id.as_str());
    let menu = ComboBox::from_id_salt("corrupted").selected_text(id).width(MENUS[0]).truncate();
    let why_not = partners.why_not(p);
    let menu = menu.show_ui(ui, |ui| {
        for &index in &partners.fit {
            if ui.selectable_label(chosen == Some(index), about(index)).clicked() {
                scene.state.patching.corrupted = Some(run.prompts[index].id.clone());
            }
        }
        if let Some(why) = &why_not {
            ui.weak(why);
        }
    });
    let why = why_not.map_or(String::new(), |why| format!("\nNot in the list: {why}"));
    name(menu.response, format!("Corrupted prompt: {id}"))
        .on_hover_text(format!("The prompt with another answer, of as many tokens{why}"));
}

/// Tells screen readers what a menu chooses.
fn name(menu: Response, name: String) -> Response {
    menu.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, &name));
    menu
}

fn answer(ui: &mut Ui, name: &str, of: &str, text: &mut String) {
    let label = ui.label(name);
    let edit = TextEdit::singleline(text).desired_width(ANSWER).hint_text("most likely");
    ui.add(edit).labelled_by(label.id).on_hover_text(format!(
        "One token as it follows the prompt, with its leading space; the {of} most likely next token where it is empty"
    ));
}

/// The button, or the progress.
fn run(ui: &mut Ui, scene: &mut Scene<'_>, partners: &Partners) {
    if let Some(patching) = scene.patching {
        let (share, text) = match patching.progress {
            None => (0.0, "waiting for the model".to_owned()),
            Some(PatchEvent::Tokens { done, all }) => (share(done, all), format!("{done} of {all} tokens")),
            Some(PatchEvent::Rows { done, all }) => {
                let share = share(done, all);
                (share, format!("{:.0} % of the patches", 100.0 * share))
            }
        };
        let [clean, corrupted] = &patching.prompts;
        let bar = ui.add(ProgressBar::new(share).desired_width(170.0).text(text));
        bar.on_hover_text(format!("{clean} / {corrupted}"));
        if ui.button("Cancel").on_hover_text("Keeps what is computed").clicked() {
            scene.actions.push(Action::Stop);
        }
        return;
    }
    let palette = design::palette(ui);
    let ready = scene.model_is_loaded && !partners.fit.is_empty();
    let button = Button::new(RichText::new("Patch").color(palette.on_accent)).fill(palette.accent);
    let button = ui.add_enabled(ready, button);
    let button = button.on_hover_text("Compute the map with the run’s model, and keep it in the run folder");
    if button.on_disabled_hover_text("Needs the run’s model and a prompt that fits").clicked()
        && let Ok(asked) = asked(scene.run, scene.state)
    {
        scene.actions.push(Action::Patch(Box::new(asked)));
    }
}

fn share(done: usize, all: usize) -> f32 {
    done as f32 / all.max(1) as f32
}

/// The maps of the run.
fn maps(ui: &mut Ui, scene: &mut Scene<'_>, patches: &[DrawnPatches]) {
    ui.label("Map");
    let question = shown(scene).map(|drawn| drawn.question.as_str());
    let width = ui.available_width().clamp(MENUS[0], MENUS[1]);
    let text = question.unwrap_or("maps of other prompts");
    let menu = ComboBox::from_id_salt("maps").selected_text(text).width(width).truncate();
    let menu = menu.show_ui(ui, |ui| {
        for drawn in patches {
            if ui.selectable_label(question == Some(drawn.question.as_str()), &drawn.question).clicked() {
                scene.state.patching.shown = Some(drawn.question.clone());
                scene.state.patching.window = None;
                fill(&mut scene.state.patching, &drawn.map);
                let clean = scene.run.prompts.iter().position(|prompt| prompt.id == drawn.map.clean.id);
                scene.actions.extend(clean.map(Action::ShowPrompt));
            }
        }
    });
    name(menu.response, format!("Map: {text}")).on_hover_text("Maps in the run folder");
}

/// Fills the form with a map's question.
fn fill(form: &mut PatchState, map: &PatchMap) {
    form.corrupted = Some(map.corrupted.id.clone());
    (form.site, form.direction, form.metric) = (map.site, map.direction, map.metric);
    form.last_only = map.site == PatchSite::Head && map.head_positions == [map.clean.tokens.len() - 1];
    let answers = [(&map.answer, &map.clean.next), (&map.wrong, &map.corrupted.next)];
    [form.answer, form.wrong] =
        answers.map(|(token, next)| if token == next { String::new() } else { token.text.clone() });
}
