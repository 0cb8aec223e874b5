//! Activation patches: a pair of prompts, what is asked of it, and the map of what each patch does.

mod form;
mod plot;

use super::{PatchAsked, Scene, picture as pictures};
use crate::data::{DrawnPatches, RunData, short};
use crate::design::{self, space};
use crate::state::ViewState;
use crate::widgets::{Column, Figures, cell, count, token_label};
use eframe::egui::{RichText, Ui};
use layerscope_diagnostics::patching::{PatchMap, PatchSite, PatchToken};
use layerscope_engine::{Error, Result};
use layerscope_figures::{Map, Outline, Theme};
use layerscope_recording::patching::PatchRequest;

/// Width of a column with its token's text, and of a head, in a picture, points.
const COLUMN: [f64; 2] = [13.0, 26.0];

/// Draws the form and the map.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    if !scene.is_picture {
        form::show(ui, scene);
        ui.add_space(space::SMALL);
    }
    match shown(scene) {
        Some(drawn) => {
            facts(ui, drawn);
            plot::show(ui, scene, drawn);
        }
        None => nothing(ui, scene),
    }
}

/// The map that is shown: the chosen one where its clean prompt is the current one, else the first of that.
fn shown<'a>(scene: &Scene<'a>) -> Option<&'a DrawnPatches> {
    let (patches, id) = (scene.patches.ok()?, &scene.prompt().id);
    let of_prompt = || patches.iter().filter(|drawn| drawn.map.clean.id == *id);
    let chosen = of_prompt().find(|drawn| Some(&drawn.question) == scene.state.patching.shown.as_ref());
    chosen.or_else(|| of_prompt().next())
}

/// The other prompts of a run beside a clean one.
#[derive(Debug, Default)]
struct Partners {
    /// Those that can be the corrupted prompt, by index.
    fit: Vec<usize>,
    /// How many have another number of tokens.
    other_lengths: usize,
    /// How many have the same tokens.
    same: usize,
}

impl Partners {
    fn of(run: &RunData, clean: usize) -> Self {
        let mut partners = Self::default();
        let Some(prompt) = run.prompts.get(clean) else { return partners };
        for (index, other) in run.prompts.iter().enumerate().filter(|(index, _)| *index != clean) {
            match other.p == prompt.p {
                false => partners.other_lengths += 1,
                true if other.prompt_tokens == prompt.prompt_tokens => partners.same += 1,
                true => partners.fit.push(index),
            }
        }
        partners
    }

    /// Why others are not among those that fit; `None` where all are.
    fn why_not(&self, p: usize) -> Option<String> {
        let lengths = (self.other_lengths > 0).then(|| match self.other_lengths {
            1 => format!("1 other prompt has not {p} tokens"),
            many => format!("{many} other prompts have not {p} tokens"),
        });
        let same = (self.same > 0).then(|| match self.same {
            1 => "1 has the same tokens".to_owned(),
            many => format!("{many} have the same tokens"),
        });
        let parts: Vec<String> = lengths.into_iter().chain(same).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// The corrupted prompt: the chosen one, or else the first that fits.
    fn chosen(&self, run: &RunData, state: &ViewState) -> Option<usize> {
        let is_chosen = |index: &&usize| Some(&run.prompts[**index].id) == state.patching.corrupted.as_ref();
        self.fit.iter().find(is_chosen).or(self.fit.first()).copied()
    }
}

/// What the form asks of the engine.
///
/// # Errors
/// Why nothing can be asked, in a sentence.
pub fn asked(run: &RunData, state: &ViewState) -> std::result::Result<PatchAsked, String> {
    let clean = state.prompt.min(run.prompts.len().saturating_sub(1));
    let prompt = run.prompts.get(clean).ok_or("the run has no prompt to patch")?;
    let partners = Partners::of(run, clean);
    let corrupted = partners.chosen(run, state).ok_or_else(|| lonely(&partners, prompt.p))?;
    let form = &state.patching;
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    let last = form.site == PatchSite::Head && form.last_only;
    Ok(PatchAsked {
        prompts: [prompt.id.clone(), run.prompts[corrupted].id.clone()],
        request: PatchRequest {
            site: form.site,
            direction: form.direction,
            metric: Some(form.metric),
            answer: given(&form.answer),
            wrong: given(&form.wrong),
            layers: None,
            positions: last.then(|| vec![prompt.p - 1]),
        },
    })
}

/// Why a prompt has no partner.
fn lonely(partners: &Partners, p: usize) -> String {
    let why = partners.why_not(p).unwrap_or_else(|| "there is no other".into());
    format!(
        "No other prompt of this run can be patched with this one: {why}. Patching needs two prompts of as many tokens that differ in \
         what the answer depends on; record such a pair."
    )
}

/// Both runs without a patch, and whether the map is whole.
fn facts(ui: &mut Ui, drawn: &DrawnPatches) {
    let map = &drawn.map;
    let token = |token: &PatchToken| token_label(&token.text);
    let (clean, corrupted) = (&map.clean, &map.corrupted);
    let text = format!(
        "Next token of the clean run “{}”, logit difference {}; of the corrupted run “{}”, {}, KL {} nats. Logit difference: “{}” less “{}”. \
         Effect: 0 as the corrupted run, 1 as the clean run.",
        token(&clean.next),
        short(clean.figures.logit_diff as f32),
        token(&corrupted.next),
        short(corrupted.figures.logit_diff as f32),
        short(corrupted.figures.kl as f32),
        token(&map.answer),
        token(&map.wrong),
    );
    ui.label(RichText::new(text).weak());
    if !map.is_complete() {
        let palette = design::palette(ui);
        let text =
            format!("{} of {} cells are computed; the others are striped", map.done(), map.cells.len());
        ui.colored_label(palette.warning, text);
    }
    if drawn.strongest.is_empty() {
        let palette = design::palette(ui);
        ui.colored_label(palette.warning, "No effect is defined: both runs are equal by the metric");
    }
}

/// What is said where no map of the current prompt is there.
fn nothing(ui: &mut Ui, scene: &Scene<'_>) {
    let palette = design::palette(ui);
    ui.add_space(space::LARGE);
    let patches = match scene.patches {
        Ok(patches) => patches,
        Err(why) => {
            ui.colored_label(palette.error, why);
            return;
        }
    };
    let partners = Partners::of(scene.run, scene.state.prompt);
    if partners.fit.is_empty() {
        ui.label(lonely(&partners, scene.prompt().p));
    } else if scene.model_is_loaded {
        ui.label(format!(
            "No map of prompt {} is in the run folder yet; Patch computes one.",
            scene.prompt().id
        ));
    } else {
        ui.label(format!(
            "No map of prompt {} is in the run folder; open the run’s model to compute one.",
            scene.prompt().id
        ));
    }
    if !patches.is_empty() {
        let maps = if patches.len() == 1 { "map of another prompt is" } else { "maps of other prompts are" };
        ui.weak(format!("{} {maps} in the list.", patches.len()));
    }
}

/// A cell of a map in a few lines.
fn describe(map: &PatchMap, layer: usize, column: usize) -> String {
    let is_head = map.site == PatchSite::Head;
    let place = [map.layers.binary_search(&layer).ok(), map.columns.binary_search(&column).ok()];
    let mut text = format!("layer {layer}, {} {column}", map.site.column_name());
    if !is_head {
        let token = |tokens: &[PatchToken]| {
            tokens.get(column).map_or(String::new(), |token| token_label(&token.text))
        };
        let [clean, corrupted] = [&map.clean, &map.corrupted].map(|prompt| token(&prompt.tokens));
        match clean == corrupted {
            true => text.push_str(&format!("\n“{clean}” in both")),
            false => text.push_str(&format!("\nclean “{clean}”, corrupted “{corrupted}”")),
        }
    }
    let [Some(row), Some(at)] = place else { return text + "\nnot patched" };
    match map.cell(row, at) {
        None => text.push_str("\nnot computed"),
        Some(figures) => text.push_str(&format!(
            "\neffect {}\nlogit difference {}\nKL {} nats",
            short(map.effect(figures) as f32),
            short(figures.logit_diff as f32),
            short(figures.kl as f32)
        )),
    }
    text
}

/// The map for export, with frames around the selection.
///
/// # Errors
/// [`Error::Failure`] where no map is shown.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Result<String> {
    let drawn = shown(scene)
        .ok_or_else(|| Error::failure("no map of patches is shown; patch a pair of prompts first"))?;
    let (figure, selection) = (&drawn.figure, &scene.state.selection);
    let window = plot::window(scene.state, figure);
    let map = Map {
        span: layerscope_figures::ColumnRange { start: window.start, end: window.end },
        cutoff: Some(scene.state.cutoff),
        ..figure.map()
    };
    let is_head = drawn.map.site == PatchSite::Head;
    let layers = selection.layers.iter().map(|layer| Outline::Row(*layer));
    let heads = selection.heads.iter().filter(|_| is_head).map(|(layer, head)| Outline::Cell(*layer, *head));
    let tokens = selection.token.filter(|_| !is_head).map(Outline::Column);
    let outlines: Vec<Outline> = layers.chain(heads).chain(tokens).collect();
    let caption = format!(
        "{}; {}; {} of {}",
        scene.caption(),
        drawn.question,
        drawn.map.done(),
        count(drawn.map.cells.len(), "cell")
    );
    Ok(pictures::map(&map, &outlines, COLUMN[usize::from(is_head)], &caption, theme))
}

/// One row per cell.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let map = &shown(scene)?.map;
    let is_head = map.site == PatchSite::Head;
    let mut columns = vec![Column::new("layer", ""), Column::new(map.site.column_name(), "")];
    if !is_head {
        columns.extend([Column::new("clean token", ""), Column::new("corrupted token", "")]);
    }
    columns.extend([
        Column::new("effect", ""),
        Column::new("logit difference", "logits"),
        Column::new("KL", "nats"),
    ]);
    Some(Figures {
        columns,
        rows: map.cells.len(),
        row: Box::new(move |index| {
            let (row, at) = (index / map.columns.len(), index % map.columns.len());
            let (layer, column) = (map.layers[row], map.columns[at]);
            let mut cells = vec![layer.to_string(), column.to_string()];
            if !is_head {
                let token = |tokens: &[PatchToken]| {
                    tokens.get(column).map_or(String::new(), |token| token_label(&token.text))
                };
                cells.extend([token(&map.clean.tokens), token(&map.corrupted.tokens)]);
            }
            let figures = map.cell(row, at);
            cells.extend([
                cell(figures.map_or(f64::NAN, |figures| map.effect(figures))),
                cell(figures.map_or(f64::NAN, |figures| figures.logit_diff)),
                cell(figures.map_or(f64::NAN, |figures| figures.kl)),
            ]);
            cells
        }),
    })
}
