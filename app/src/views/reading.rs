//! Prompt and generated text as a page: which prompt tokens a generated token reads, and which generated tokens read a prompt token, at
//! the layers and heads selected.

use super::map::{MASSES, choose, step_wants};
use super::{Action, Scene, Sought};
use crate::data::{MapKey, PromptMaps, Pyramid, Scale, ScaleKind, TokenFigure, Want, exact, short};
use crate::design::{self, size, space};
use crate::state::Selection;
use crate::widgets::{Column, Figures, cell, count, token_label};
use eframe::egui::{
    Button, FontId, Id, Key, Label, Modifiers, Rect, Response, RichText, Sense, Shape, Ui, UiBuilder,
    WidgetInfo, accesskit::Role, pos2, vec2,
};
use layerscope_diagnostics::record::PromptSummary;
use ndarray::Array2;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

mod flow;
mod lines;
mod page;
mod shades;
mod span;
mod strip;

use flow::Flow;
use page::{Drawn, Look, Placed, Text, line_height};
use shades::{Chosen, Lit, Source, Subject};
use strip::{About, Asked};

/// Width of the strip, at least and at most, and its share of the view.
const STRIP: [f32; 2] = [172.0, 560.0];
const STRIP_SHARE: f32 = 0.32;
/// Characters of a line, roughly, at most.
const MEASURE: f32 = 60.0;
/// A text of at most so many tokens is set as large as the page allows.
const SHORT: usize = 3_000;
/// By how much, largest first.
const ENLARGED: [f32; 9] = [2.5, 2.25, 2.0, 1.75, 1.625, 1.5, 1.375, 1.25, 1.125];
/// Height of a heading.
const HEADING: f32 = 26.0;
/// The part of the page that the generated text has at most.
const GENERATED: f32 = 0.38;

/// What is kept between frames.
#[derive(Default)]
struct Cache {
    prompt: Text,
    generated: Text,
    /// Both at the least size of type, to choose a larger one by.
    measured: [Flow; 2],
    /// What the texts are of.
    key: u64,
    shades: Option<(u64, Arc<Shades>)>,
    by_head: Option<(u64, Arc<Array2<f32>>)>,
    /// The tokens on the screen in the last frame.
    placed: Vec<Placed>,
    /// The prompt's lines that were in sight, and the height of its page.
    sight: (std::ops::Range<usize>, f32),
    /// What was pinned in the last frame. If it was pinned elsewhere, the text scrolls to it.
    pinned: Option<Subject>,
    /// The token where the current drag started.
    dragged_from: Option<usize>,
}

/// Attention received by each token, and how strongly it is shaded.
struct Shades {
    values: Vec<f32>,
    inks: Vec<f32>,
    scale: Scale,
}

/// Draws the page.
pub fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    let run = scene.run;
    let prompt = &run.prompts[scene.state.prompt.min(run.prompts.len() - 1)];
    let Some(maps) = scene.maps else {
        ui.horizontal(|ui| {
            ui.spinner();
            ui.label("reading the prompt’s maps …");
        });
        return;
    };
    let cache: Arc<Mutex<Cache>> = ui.data_mut(|data| {
        data.get_temp_mut_or_default::<Arc<Mutex<Cache>>>(Id::unique("reading view")).clone()
    });
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if !scene.is_picture {
        walk(ui, scene, prompt);
        controls(ui, scene, prompt);
    }
    cache.renew(scene, prompt);
    let chosen = Chosen::of(&scene.state.selection, prompt);
    let pinned = Subject::pinned(&scene.state.selection);
    let pointed = if scene.is_picture { None } else { cache.under_pointer(ui) };
    let is_there = |subject: &Subject| match *subject {
        Subject::Step(step) => step < prompt.steps,
        Subject::Token(token) => token < prompt.p,
    };
    let subject = pointed.or(pinned).filter(is_there);
    let source = Source::of(maps, scene.patterns, &chosen);
    let leaves_out_bos = scene.state.leave_out_bos;
    let lit_by = |subject| match (source, subject) {
        (Some(source), Subject::Step(step)) => Some(source.read_by(step, &chosen, maps, leaves_out_bos)),
        (Some(source), Subject::Token(token)) => Some(source.readers(token, prompt.steps, &chosen)),
        (None, _) => None,
    };
    let lit = subject.and_then(lit_by);
    let shades = shades(&mut cache, scene, maps, &chosen);
    scene.want(&Sought::PICTURE);
    let wants = pointed.map_or(vec![], |subject| subject_wants(maps, subject));
    if !wants.is_empty() {
        scene.actions.push(Action::Want(wants));
    }
    let by_head = cache.by_head(maps, run.heads(), subject);
    // Where lines are is known once all are laid out and one frame was drawn.
    let is_ready = cache.sight.1 > 0.0 && cache.prompt.flow.is_whole(&cache.prompt.pieces);
    if is_ready && pinned != cache.pinned && pinned.as_ref().is_some_and(is_there) {
        cache.bring_into_sight(pinned, pinned.and_then(lit_by).as_ref());
    }

    let area = ui.available_rect_before_wrap();
    ui.allocate_rect(area, Sense::hover());
    let below = span::height(scene).map_or(0.0, |height| height.min(area.height() * 0.6));
    let upper = Rect::from_min_max(area.min, pos2(area.right(), area.bottom() - below));
    let width = (area.width() * STRIP_SHARE).clamp(STRIP[0], STRIP[1]);
    let page = Rect::from_min_max(upper.min, pos2(upper.right() - width - space::LARGE, upper.bottom()));
    let beside = Rect::from_min_max(pos2(upper.right() - width, upper.top()), upper.max);
    let state = Shown { chosen: &chosen, subject, lit: lit.as_ref(), shades: &shades };
    draw_page(ui, scene, &mut cache, prompt, page, &state);
    let asked = ui
        .scope_builder(UiBuilder::new().max_rect(beside), |ui| {
            ui.set_clip_rect(beside.expand(4.0).intersect(ui.clip_rect()));
            let about =
                About { maps, subject, chosen: &chosen, lit: lit.as_ref(), by_head: by_head.as_deref() };
            strip::show(ui, scene, &about)
        })
        .inner;
    match asked {
        Some(Asked::Token(token)) => cache.scroll_to(token),
        Some(Asked::Step(step)) => scene.state.selection.steps = [step].into(),
        None => {}
    }
    cache.pinned = match asked {
        // What the new step reads is brought into sight.
        Some(Asked::Step(_)) => pinned,
        _ => match Subject::pinned(&scene.state.selection) {
            // Clicked in this frame: its token is in sight, what it reads perhaps not.
            Some(Subject::Step(step)) if pinned != Some(Subject::Step(step)) => pinned,
            now => now,
        },
    };
    if !is_ready && pinned.is_some() {
        cache.pinned = None;
        ui.ctx().request_repaint();
    }
    if scene.readout.is_none() {
        let hint = "point at a token, click pins it, arrow keys walk along the text and through the layers; drag over the prompt selects tokens";
        *scene.readout = Some(hint.into());
    }
    if below > 0.0 {
        let lower = Rect::from_min_max(pos2(area.left(), area.bottom() - below), area.max);
        ui.scope_builder(UiBuilder::new().max_rect(lower), |ui| {
            ui.set_clip_rect(lower.intersect(ui.clip_rect()));
            span::show(ui, scene);
        });
    }
}

/// What a frame shows.
struct Shown<'a> {
    chosen: &'a Chosen,
    subject: Option<Subject>,
    lit: Option<&'a Lit>,
    shades: &'a Shades,
}

impl Shown<'_> {
    /// How strongly a prompt token is shaded; `places` are those of the lit tokens.
    fn ink_of_prompt(&self, token: usize, places: &HashMap<usize, usize>, kind: ScaleKind) -> f32 {
        match (self.subject, self.lit) {
            (Some(Subject::Step(_)), Some(lit)) => {
                places.get(&token).map_or(0.0, |place| lit.ink(kind, *place))
            }
            _ => self.shades.inks.get(token).copied().unwrap_or(f32::NAN),
        }
    }
}

impl Cache {
    /// Forgets the text of another prompt.
    fn renew(&mut self, scene: &Scene<'_>, prompt: &PromptSummary) {
        let key = key(&(scene.run.folder.as_path(), scene.state.prompt, scene.run.manifest.revision));
        if self.key != key {
            *self = Self {
                prompt: Text::new(&prompt.prompt_token_text),
                generated: Text::new(&prompt.generated_token_text),
                key,
                ..Self::default()
            };
        }
    }

    /// The token under the pointer, by where tokens were in the last frame.
    fn under_pointer(&self, ui: &Ui) -> Option<Subject> {
        let pointer = ui.input(|input| input.pointer.hover_pos())?;
        let is_here = ui.ctx().layer_id_at(pointer).is_none_or(|layer| layer == ui.layer_id());
        token_at(&self.placed, pointer).filter(|_| is_here)
    }

    fn by_head(
        &mut self,
        maps: &PromptMaps,
        heads: usize,
        subject: Option<Subject>,
    ) -> Option<Arc<Array2<f32>>> {
        let reads = maps.reads()?;
        let key = key(&(maps.tokens(TokenFigure::ReceivedMean).id(), subject));
        if self.by_head.as_ref().is_none_or(|(known, _)| *known != key) {
            self.by_head = Some((key, Arc::new(shades::by_head(reads, heads, subject))));
        }
        self.by_head.as_ref().map(|(_, by_head)| by_head.clone())
    }

    /// Scrolls the prompt so that a token is in the middle.
    fn scroll_to(&mut self, token: usize) {
        let line = self.prompt.flow.font().map_or(0.0, line_height);
        self.prompt.scroll_to_token(token, line, self.sight.1);
    }

    /// Scrolls to what is pinned, and to the strongest that it reads, where they are out of sight.
    fn bring_into_sight(&mut self, pinned: Option<Subject>, lit: Option<&Lit>) {
        let line = self.generated.flow.font().map_or(0.0, line_height);
        let token = match pinned {
            Some(Subject::Token(token)) => Some(token),
            Some(Subject::Step(step)) => {
                if self.placed.iter().all(|placed| placed.subject != Subject::Step(step)) {
                    self.generated.scroll_to_token(step, line, 3.0 * line);
                }
                lit.and_then(|lit| lit.tokens.first()).map(|(token, _)| *token)
            }
            None => None,
        };
        let Some(token) = token else { return };
        let is_in_sight = self.prompt.line_of(token).is_some_and(|line| {
            let sight = &self.sight.0;
            // Lines at the edges may be cut.
            (sight.start + 1..sight.end.saturating_sub(1)).contains(&line)
                || sight.len() == self.prompt.flow.lines()
        });
        if !is_in_sight {
            self.scroll_to(token);
        }
    }
}

fn token_at(placed: &[Placed], at: eframe::egui::Pos2) -> Option<Subject> {
    placed.iter().find(|placed| placed.rect.contains(at)).map(|placed| placed.subject)
}

/// Arrow keys: to the next generated or prompt token, to the next layer.
fn walk(ui: &Ui, scene: &mut Scene<'_>, prompt: &PromptSummary) {
    if ui.memory(|memory| memory.focused().is_some()) {
        return;
    }
    let pressed = |key| ui.input_mut(|input| input.consume_key(Modifiers::NONE, key));
    let along = i64::from(pressed(Key::ArrowRight)) - i64::from(pressed(Key::ArrowLeft));
    let down = i64::from(pressed(Key::ArrowDown)) - i64::from(pressed(Key::ArrowUp));
    let within = |at: usize, by: i64, all: usize| {
        usize::try_from((at as i64 + by).clamp(0, (all as i64 - 1).max(0))).unwrap_or(0)
    };
    let selection = &mut scene.state.selection;
    if along != 0 {
        match Subject::pinned(selection) {
            Some(Subject::Token(token)) => selection.select_tokens({
                let token = within(token, along, prompt.p);
                token..token + 1
            }),
            Some(Subject::Step(step)) => selection.steps = [within(step, along, prompt.steps)].into(),
            None => selection.steps = [if along > 0 { 0 } else { prompt.steps.saturating_sub(1) }].into(),
        }
    }
    if down != 0 {
        let only = selection.layers.first().copied().filter(|_| selection.layers.len() == 1);
        let from = only.unwrap_or_else(|| strongest_layer(prompt));
        selection.layers = [within(from, down, scene.run.layers())].into();
    }
}

/// The layer at which hiding the prompt costs most.
fn strongest_layer(prompt: &PromptSummary) -> usize {
    let kl = |layer: &usize| prompt.knockout_at(*layer).kl;
    let peak = shades::peak_layers(prompt);
    peak.iter().copied().max_by(|a, b| kl(a).total_cmp(&kl(b))).unwrap_or(0)
}

fn controls(ui: &mut Ui, scene: &mut Scene<'_>, prompt: &PromptSummary) {
    ui.horizontal_wrapped(|ui| {
        choose(ui, "Figure", &mut scene.state.token_figure, TokenFigure::ALL, TokenFigure::name);
        choose(ui, "Scale", &mut scene.state.shading, ScaleKind::ALL, ScaleKind::name);
        ui.checkbox(&mut scene.state.leave_out_bos, "Leave out BoS");
        layers(ui, scene, prompt);
        let chosen = Chosen::of(&scene.state.selection, prompt);
        let selection = &scene.state.selection;
        let finer = !selection.heads.is_empty() || !selection.steps.is_empty();
        if finer {
            let lacking = lacking(scene, &chosen);
            let heads = selection.heads.len();
            let heads = if heads == 0 { "all".into() } else { heads.to_string() };
            let steps =
                if selection.steps.is_empty() { "all".into() } else { selection.steps.len().to_string() };
            if lacking.is_empty() || !scene.model_is_loaded {
                ui.add(Label::new(RichText::new(format!("{heads} heads, {steps} steps")).weak()).extend());
            } else if ui
                .button("Read these heads and steps")
                .on_hover_text("Every prompt token’s attention, from the model; the run keeps the strongest")
                .clicked()
            {
                scene.actions.push(Action::ReadPattern(lacking));
            }
        }
        if !scene.state.selection.is_empty() && ui.button("Clear selection").clicked() {
            scene.state.selection = Selection::default();
        }
    });
    ui.add_space(space::SMALL);
}

/// The layers that count, with buttons to step through them.
fn layers(ui: &mut Ui, scene: &mut Scene<'_>, prompt: &PromptSummary) {
    let all = scene.run.layers();
    let chosen = Chosen::of(&scene.state.selection, prompt);
    let selection = &mut scene.state.selection.layers;
    let only = (selection.len() == 1).then(|| selection.first().copied()).flatten();
    if ui.button("‹").on_hover_text("Previous layer").clicked() {
        *selection = [only.map_or_else(|| strongest_layer(prompt), |layer| layer.saturating_sub(1))].into();
    }
    ui.add(Label::new(chosen.name(all)).extend());
    if ui.button("›").on_hover_text("Next layer").clicked() {
        *selection = [only.map_or_else(|| strongest_layer(prompt), |layer| (layer + 1).min(all - 1))].into();
    }
    let about = "The layers at which hiding the prompt costs most";
    if ui.selectable_label(chosen.is_peak, "Peak").on_hover_text(about).clicked() {
        selection.clear();
    }
    if ui.selectable_label(selection.len() == all, "All").on_hover_text("Mean over all layers").clicked() {
        *selection = (0..all).collect();
    }
}

/// The chosen layers whose patterns are not read yet.
fn lacking(scene: &Scene<'_>, chosen: &Chosen) -> Vec<usize> {
    let is_read = |layer: &usize| scene.patterns.iter().any(|pattern| pattern.layer == *layer);
    chosen.layers.iter().copied().filter(|layer| !is_read(layer)).collect()
}

/// Whether single heads or steps are selected whose patterns are read.
fn is_of_patterns(scene: &Scene<'_>, chosen: &Chosen) -> bool {
    let selection = &scene.state.selection;
    let finer = !selection.heads.is_empty() || !selection.steps.is_empty();
    finer && lacking(scene, chosen).is_empty()
}

/// What the page needs of maps and what is not there yet.
pub(super) fn wants(scene: &Scene<'_>, maps: &PromptMaps) -> Vec<Want> {
    let chosen = Chosen::of(&scene.state.selection, scene.prompt());
    let figure = scene.state.token_figure;
    let mut wants = vec![];
    if !is_of_patterns(scene, &chosen) && maps.over_layers(figure, &chosen.layers).is_none() {
        wants.push(Want::OverLayers(figure, chosen.layers.clone()));
    }
    let pinned = Subject::pinned(&scene.state.selection);
    wants.extend(pinned.into_iter().flat_map(|subject| subject_wants(maps, subject)));
    wants.extend(maps.lacking_reads());
    wants
}

/// What is told of a token beside the page and is not there yet.
fn subject_wants(maps: &PromptMaps, subject: Subject) -> Vec<Want> {
    match subject {
        Subject::Step(step) => MASSES.into_iter().flat_map(|figure| step_wants(maps, figure, step)).collect(),
        Subject::Token(token) => {
            let figure = TokenFigure::ReceivedMean;
            let parts = maps.tokens(figure).lacking_columns(token..token + 1);
            parts.into_iter().map(|part| Want::Part(MapKey::Tokens(figure), part)).collect()
        }
    }
}

/// Attention received by each token: of single heads and steps where their patterns are read, else the mean over all of them.
fn values(scene: &Scene<'_>, maps: &PromptMaps, chosen: &Chosen) -> Vec<f32> {
    let (selection, figure) = (&scene.state.selection, scene.state.token_figure);
    if !is_of_patterns(scene, chosen) {
        let known = maps.over_layers(figure, &chosen.layers).map(Cow::into_owned);
        return known.unwrap_or_else(|| vec![f32::NAN; maps.tokens(figure).columns()]);
    }
    let step = selection.steps.first().copied().filter(|_| selection.steps.len() == 1);
    shades::attention(scene.patterns, chosen, step, scene.state.token_figure)
}

fn shades(cache: &mut Cache, scene: &Scene<'_>, maps: &PromptMaps, chosen: &Chosen) -> Arc<Shades> {
    let state = &scene.state;
    let key = key(&(
        maps.tokens(state.token_figure).id(),
        maps.over_layers_is_there(state.token_figure, &chosen.layers),
        chosen,
        &state.selection.steps,
        scene.patterns.len(),
        state.shading.name(),
        state.leave_out_bos,
    ));
    if let Some((known, shades)) = &cache.shades
        && *known == key
    {
        return shades.clone();
    }
    let values = values(scene, maps, chosen);
    let row = Pyramid::from_rows(&values, 1, values.len());
    let scale = Scale::fit(state.shading, &row, false, state.leave_out_bos);
    let ink = |(token, value): (usize, &f32)| match token == 0 && state.leave_out_bos {
        true => f32::NAN,
        false => shades::ink(state.shading, scale.position(0, *value)),
    };
    let inks = values.iter().enumerate().map(ink).collect();
    let shades = Arc::new(Shades { values, inks, scale });
    cache.shades = Some((key, shades.clone()));
    shades
}

/// Prompt and generated text, the curves between them, and the overview.
fn draw_page(
    ui: &mut Ui,
    scene: &mut Scene<'_>,
    cache: &mut Cache,
    prompt: &PromptSummary,
    area: Rect,
    shown: &Shown<'_>,
) {
    let outer = area.width() - page::OVERVIEW - space::MEDIUM;
    let is_short = cache.prompt.pieces.len() + cache.generated.pieces.len() <= SHORT;
    let font = type_size(ui, cache, outer, area.height(), is_short);
    let line = line_height(&font);
    let width = outer.min(MEASURE * font.size);
    let left = area.left() + (outer - width) / 2.0;
    let inner = width - 2.0 * space::MEDIUM;
    let is_laid_out = cache.prompt.flow.lay_out(ui, &cache.prompt.pieces, &font, width)
        && cache.generated.flow.lay_out(ui, &cache.generated.pieces, &font, inner);
    if !is_laid_out {
        // A very long prompt is laid out over several frames, and scrolled to what is pinned afterwards.
        ui.ctx().request_repaint();
    }
    let of_generated =
        (cache.generated.flow.lines() as f32 * line).min((GENERATED * area.height()).max(2.0 * line));
    let card = of_generated + HEADING + 2.0 * space::MEDIUM;
    let room = (area.height() - card - HEADING - space::MEDIUM).max(2.0 * line);
    let of_prompt = (cache.prompt.flow.lines() as f32 * line).min(room);

    let painter = ui.painter().with_clip_rect(area.intersect(ui.clip_rect()));
    // Behind both texts, so that letters stay legible.
    let card_shape = painter.add(Shape::Noop);
    let curves = painter.add(Shape::Noop);
    let heading = Rect::from_min_size(pos2(left, area.top()), vec2(width, HEADING));
    ui.scope_builder(UiBuilder::new().max_rect(heading), |ui| {
        ui.horizontal(|ui| {
            ui.label(RichText::new("Prompt").strong());
            ui.weak(count(prompt.p, "token"));
            legend(ui, scene.state.shading, shown);
        });
    });

    let kind = scene.state.shading;
    let places: HashMap<usize, usize> = match (shown.subject, shown.lit) {
        (Some(Subject::Step(_)), Some(lit)) => {
            lit.tokens.iter().enumerate().map(|(place, (token, _))| (*token, place)).collect()
        }
        _ => HashMap::new(),
    };
    let selected = scene.state.selection.tokens().unwrap_or(0..0);
    let top = pos2(left, heading.bottom());
    let text_area = Rect::from_min_size(top, vec2(width, of_prompt));
    let of_token = |token: usize| Look {
        ink: shown.ink_of_prompt(token, &places, kind),
        is_subject: shown.subject == Some(Subject::Token(token)),
        is_selected: selected.contains(&token),
    };
    let above = ui
        .scope_builder(UiBuilder::new().max_rect(text_area), |ui| {
            page::show(ui, "prompt", &mut cache.prompt, &font, of_prompt, Subject::Token, of_token)
        })
        .inner;

    let card_area = Rect::from_min_size(
        pos2(left - space::MEDIUM, text_area.bottom() + space::MEDIUM),
        vec2(width + 2.0 * space::MEDIUM, card),
    );
    let card_area = card_area.intersect(area);
    let content = card_area.shrink(space::MEDIUM);
    let steps = scene.state.selection.steps.clone();
    let readers: HashMap<usize, usize> = match (shown.subject, shown.lit) {
        (Some(Subject::Token(_)), Some(lit)) => {
            lit.tokens.iter().enumerate().map(|(place, (step, _))| (*step, place)).collect()
        }
        _ => HashMap::new(),
    };
    let of_step = |step: usize| Look {
        ink: match (readers.get(&step), shown.lit) {
            (Some(place), Some(lit)) => lit.ink(kind, *place),
            _ => 0.0,
        },
        is_subject: shown.subject == Some(Subject::Step(step)),
        is_selected: steps.contains(&step),
    };
    let under = ui
        .scope_builder(UiBuilder::new().max_rect(content), |ui| {
            ui.set_clip_rect(card_area.intersect(ui.clip_rect()));
            ui.horizontal(|ui| {
                ui.set_height(HEADING - space::MEDIUM);
                ui.label(RichText::new("Generated").strong());
                ui.weak(count(prompt.steps, "token"));
            });
            page::show(ui, "generated", &mut cache.generated, &font, of_generated, Subject::Step, of_step)
        })
        .inner;

    let palette = design::palette(ui);
    painter.set(card_shape, design::card(palette).inner_margin(0.0).paint(card_area));
    let (shapes, hidden) = tie(palette, cache, shown, [&above, &under]);
    painter.set(curves, Shape::Vec(shapes));
    let bar = Rect::from_min_size(
        pos2(area.right() - page::OVERVIEW, text_area.top()),
        vec2(page::OVERVIEW, of_prompt),
    );
    let lit = marked(shown);
    let ink = |tokens: std::ops::Range<usize>| match places.is_empty() {
        // NaN is not larger than anything.
        true => shown
            .shades
            .inks
            .get(tokens)
            .unwrap_or_default()
            .iter()
            .fold(0.0, |most: f32, &ink| if ink > most { ink } else { most }),
        // What is lit is marked.
        false => 0.0,
    };
    page::overview(ui, bar, &mut cache.prompt, line, ink, &lit);
    if !scene.is_picture {
        point_to_hidden(ui, cache, text_area, hidden);
        touch_prompt(ui, scene, cache, &above, shown);
        touch_generated(ui, scene, &under, shown);
    }
    let in_sight = |placed: &Placed, area: Rect| {
        let rect = placed.rect.intersect(area);
        (rect.is_positive()).then_some(Placed { rect, ..*placed })
    };
    let placed = above.placed.iter().filter_map(|placed| in_sight(placed, above.area));
    let placed = placed.chain(under.placed.iter().filter_map(|placed| in_sight(placed, under.area)));
    cache.placed = placed.collect();
    cache.sight = (above.lines, of_prompt);
}

/// The type that both texts are set in: a short text as large as fits.
fn type_size(ui: &Ui, cache: &mut Cache, width: f32, height: f32, is_short: bool) -> FontId {
    // Long lines want larger type.
    let least = 1.0 + ((width - 700.0) / 150.0 / size::READING).clamp(0.0, 0.3);
    if !is_short {
        return design::reading(least);
    }
    let base = design::reading(1.0);
    let [prompt, generated] = &mut cache.measured;
    let texts = [(prompt, &cache.prompt.pieces), (generated, &cache.generated.pieces)];
    let measured: Vec<(&Flow, &Arc<Vec<flow::Piece>>)> = texts
        .into_iter()
        .map(|(flow, pieces)| {
            flow.lay_out(ui, pieces, &base, width);
            (&*flow, pieces)
        })
        .collect();
    let fits = |factor: &f32| {
        let font = design::reading(*factor);
        let factor = font.size / base.size;
        let width = width.min(MEASURE * font.size) - 2.0 * space::MEDIUM;
        let lines: usize =
            measured.iter().map(|(flow, pieces)| flow.lines_enlarged(pieces, factor, width)).sum();
        lines as f32 * line_height(&font) + 2.0 * HEADING + 4.0 * space::MEDIUM <= height
    };
    let found = ENLARGED.into_iter().filter(|factor| *factor > least).find(fits);
    design::reading(found.unwrap_or(least))
}

/// The lit prompt tokens with their share of the strongest; none where generated tokens are lit.
fn marked(shown: &Shown<'_>) -> Vec<(usize, f32)> {
    match (shown.subject, shown.lit) {
        (Some(Subject::Step(_)), Some(lit)) => strengths(lit).collect(),
        (Some(Subject::Token(token)), _) => vec![(token, 1.0)],
        _ => vec![],
    }
}

fn strengths(lit: &Lit) -> impl Iterator<Item = (usize, f32)> {
    let most = lit.tokens.first().map_or(1.0, |(_, attention)| *attention);
    lit.tokens.iter().map(move |(token, attention)| (*token, attention / most))
}

/// The strongest lit tokens that are above and below the lines in sight.
#[derive(Default)]
struct Hidden {
    above: Vec<usize>,
    below: Vec<usize>,
}

/// Curves from the subject to the strongest lit tokens.
fn tie(
    palette: &design::Palette,
    cache: &Cache,
    shown: &Shown<'_>,
    [above, under]: [&Drawn; 2],
) -> (Vec<Shape>, Hidden) {
    let mut hidden = Hidden::default();
    let (Some(subject), Some(lit)) = (shown.subject, shown.lit) else { return (vec![], hidden) };
    let place = |subject| match subject {
        Subject::Token(token) => page::anchor(above, &cache.prompt, subject, token),
        Subject::Step(step) => page::anchor(under, &cache.generated, subject, step),
    };
    let Some((from, _)) = place(subject) else { return (vec![], hidden) };
    let mut shapes = vec![];
    for (token, strength) in strengths(lit).take(lines::MOST) {
        let other = match subject {
            Subject::Step(_) => Subject::Token(token),
            Subject::Token(_) => Subject::Step(token),
        };
        let Some((to, in_sight)) = place(other) else { continue };
        shapes.push(lines::curve(palette, from, to, strength));
        if !in_sight && matches!(other, Subject::Token(_)) {
            let is_above = to.top() <= above.area.top() + 1.0;
            if is_above { hidden.above.push(token) } else { hidden.below.push(token) }
        }
    }
    // The strongest on top.
    shapes.reverse();
    (shapes, hidden)
}

/// Buttons at the page's edges that scroll to what is lit behind them.
fn point_to_hidden(ui: &mut Ui, cache: &mut Cache, area: Rect, hidden: Hidden) {
    let sides = [(hidden.above, "above", area.top() + 2.0), (hidden.below, "below", area.bottom() - 26.0)];
    for (tokens, side, top) in sides {
        let Some(strongest) = tokens.first() else { continue };
        let text = format!("{} {side}", tokens.len());
        let button = Rect::from_min_size(pos2(area.right() - 76.0, top), vec2(74.0, 24.0));
        let button = ui.put(button, Button::new(text));
        if button.on_hover_text("Scroll to the strongest of them").clicked() {
            cache.scroll_to(*strongest);
        }
    }
}

/// What the shades mean.
fn legend(ui: &mut Ui, kind: ScaleKind, shown: &Shown<'_>) {
    let palette = design::palette(ui);
    let is_lit = matches!(shown.subject, Some(Subject::Step(_))) && shown.lit.is_some();
    let most = shown.lit.and_then(|lit| lit.tokens.first()).map_or(f32::NAN, |(_, attention)| *attention);
    let [weak, strong] = match (is_lit, kind) {
        (true, ScaleKind::Percentile) => ["weak".into(), "strong".into()],
        (true, ScaleKind::Log) => [short(most / 100.0), short(most)],
        (true, ScaleKind::Linear) => ["0".into(), short(most)],
        (false, ScaleKind::Percentile) => ["median".into(), "top token".into()],
        (false, ScaleKind::Log) => {
            [shown.shades.scale.value_at(0.4), shown.shades.scale.value_at(1.0)].map(short)
        }
        (false, ScaleKind::Linear) => ["0".into(), short(shown.shades.scale.value_at(1.0))],
    };
    ui.add_space(space::MEDIUM);
    ui.weak(weak);
    let (rect, response) = ui.allocate_exact_size(vec2(64.0, 14.0), Sense::hover());
    let steps = 16;
    for step in 0..steps {
        let left = rect.left() + step as f32 / steps as f32 * rect.width();
        let part = Rect::from_min_size(
            pos2(left, rect.top()),
            vec2(rect.width() / steps as f32 + 0.5, rect.height()),
        );
        ui.painter().rect_filled(part, 0.0, design::faded(palette.shade, (step as f32 + 0.5) / steps as f32));
    }
    ui.weak(strong);
    let name = match is_lit {
        true => "attention of the generated token",
        false => "attention that the token receives",
    };
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, format!("Shades: {name}")));
    response.on_hover_text(format!("{name}, at {} layers", shown.chosen.layers.len()));
}

/// Points, clicks and drags over the prompt.
fn touch_prompt(ui: &Ui, scene: &mut Scene<'_>, cache: &mut Cache, drawn: &Drawn, shown: &Shown<'_>) {
    let (pointer, origin, is_down, shift) = ui.input(|input| {
        let pointer = &input.pointer;
        (pointer.interact_pos(), pointer.press_origin(), pointer.any_down(), input.modifiers.shift)
    });
    let at = |at: Option<eframe::egui::Pos2>| {
        let at = at.filter(|at| drawn.area.contains(*at))?;
        match token_at(&drawn.placed, at)? {
            Subject::Token(token) => Some(token),
            Subject::Step(_) => None,
        }
    };
    if !is_down {
        cache.dragged_from = None;
    }
    for line in &drawn.touched {
        if line.drag_started() {
            cache.dragged_from = at(origin);
        }
        if line.clicked()
            && let Some(token) = at(pointer)
        {
            let selection = &mut scene.state.selection;
            selection.steps.clear();
            if shift { selection.extend_to(token) } else { selection.pick_token(token) }
        }
    }
    // The line where the drag began captures the pointer.
    if let (Some(from), Some(to)) = (cache.dragged_from, at(pointer)) {
        scene.state.selection.select_tokens(from.min(to)..from.max(to) + 1);
    }
    if let Some(Subject::Token(token)) = shown.subject
        && at(ui.input(|input| input.pointer.hover_pos())) == Some(token)
    {
        let value = exact(shown.shades.values.get(token).copied().unwrap_or(f32::NAN));
        let label = page::label(&scene.prompt().prompt_token_text, token);
        let figure = scene.state.token_figure.name();
        *scene.readout = Some(format!("position {token}: “{label}”  ·  {figure}: {value}"));
    }
}

/// Points and clicks over the generated text.
fn touch_generated(ui: &Ui, scene: &mut Scene<'_>, drawn: &Drawn, shown: &Shown<'_>) {
    let (pointer, hover, shift) =
        ui.input(|input| (input.pointer.interact_pos(), input.pointer.hover_pos(), input.modifiers.shift));
    let at =
        |at: Option<eframe::egui::Pos2>| token_at(&drawn.placed, at.filter(|at| drawn.area.contains(*at))?);
    let is_clicked = drawn.touched.iter().any(Response::clicked);
    if let (true, Some(Subject::Step(step))) = (is_clicked, at(pointer)) {
        Selection::pick(&mut scene.state.selection.steps, step, shift);
    }
    if let Some(Subject::Step(step)) = at(hover).filter(|under| shown.subject == Some(*under)) {
        let label = page::label(&scene.prompt().generated_token_text, step);
        let position = scene.prompt().p - 1 + step;
        let strongest = shown.lit.and_then(|lit| lit.tokens.first()).map(|(token, attention)| {
            let token = page::label(&scene.prompt().prompt_token_text, *token);
            format!("  ·  reads “{token}” most, {}", exact(*attention))
        });
        let strongest = strongest.unwrap_or_default();
        *scene.readout = Some(format!("step {step}: “{label}”, from the query at {position}{strongest}"));
    }
}

fn key(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// One row per prompt token: what it receives, and of a pinned generated token what that reads.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let maps = scene.maps?;
    let chosen = Chosen::of(&scene.state.selection, scene.prompt());
    let values = values(scene, maps, &chosen);
    let tokens = &scene.prompt().prompt_token_text;
    let read = match (Subject::pinned(&scene.state.selection), Source::of(maps, scene.patterns, &chosen)) {
        (Some(Subject::Step(step)), Some(source)) if step < scene.prompt().steps => {
            let lit = source.read_by(step, &chosen, maps, scene.state.leave_out_bos);
            Some((step, lit.tokens.into_iter().collect::<HashMap<usize, f32>>()))
        }
        _ => None,
    };
    let mut columns = vec![
        Column::new("position", ""),
        Column::new("token", ""),
        Column::new(scene.state.token_figure.name(), "share"),
    ];
    if let Some((step, _)) = &read {
        columns.push(Column::new(format!("read by step {step}"), "share"));
    }
    Some(Figures {
        columns,
        rows: values.len(),
        row: Box::new(move |row| {
            let token = tokens.get(row).map_or(String::new(), |token| token_label(token));
            let mut cells = vec![row.to_string(), token, cell(f64::from(values[row]))];
            if let Some((_, lit)) = &read {
                cells.push(lit.get(&row).map_or(String::new(), |attention| cell(f64::from(*attention))));
            }
            cells
        }),
    })
}
