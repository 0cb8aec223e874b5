//! Live generation: full depth, the cutoff and the cutoff with an adapter, side by side.

use super::map::choose;
use crate::data::{Pyramid, StepFigure, exact};
use crate::design::{self, Palette, size, space};
use crate::live::{LIVE_FIGURES, Live, Side};
use crate::state::{ViewState, Window};
use crate::widgets::{Column, Figures, HeatMap, HeatMapImage, axis, cell, colour_bar, token_label};
use eframe::egui::{
    Align, Align2, Button, ComboBox, DragValue, Grid, Label, Layout, Rect, RichText, ScrollArea, Sense,
    Stroke, StrokeKind, TextEdit, TextFormat, TextStyle, Ui, WidgetInfo, accesskit::Role, pos2,
    text::LayoutJob, vec2,
};
use layerscope_engine::{POLICIES, Policy, PolicyKind, Repetition, Result, Sampling, readable_bytes};

/// Least width of a side, points; more sides than fit scroll.
const LEAST_SIDE: f32 = 250.0;

/// The form.
#[derive(Debug, Clone)]
pub struct Form {
    /// The prompt.
    pub prompt: String,
    /// At most this many tokens each.
    pub max_new_tokens: usize,
    /// What the live map shows.
    pub figure: StepFigure,
    /// Which side the live map shows.
    pub side: usize,
    /// Whether the policy runs with the adapter, too, where there is one.
    pub with_adapter: bool,
    /// Names of further policies to run.
    pub more: Vec<String>,
    /// Logits are divided by this; greedy at 0.
    pub temperature: f64,
    /// Of the most likely tokens, those that together have this probability are chosen from.
    pub top_p: f64,
    /// Seed of random choices, the same on every side.
    pub seed: u64,
}

impl Form {
    /// How tokens are chosen.
    pub fn sampling(&self) -> Sampling {
        let Self { temperature, top_p, seed, .. } = *self;
        if temperature <= 0.0 {
            return Sampling::Greedy;
        }
        Sampling::Random {
            temperature,
            top_p: (top_p < 1.0).then_some(top_p),
            top_k: None,
            min_p: None,
            seed,
        }
    }
}

impl Default for Form {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            max_new_tokens: 64,
            figure: StepFigure::PromptMass,
            side: 0,
            with_adapter: true,
            more: vec![],
            temperature: 0.0,
            top_p: 1.0,
            seed: 1,
        }
    }
}

/// The user's action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Generate.
    Generate,
    /// Go on with every side's conversation.
    Reply,
    /// Stop.
    Stop,
    /// Keep the chosen policy, to run it when another is chosen.
    Keep,
    /// Copy the text of the current prompt.
    TakePrompt,
}

/// The data of the view.
pub struct LiveScene<'a> {
    /// The form.
    pub form: &'a mut Form,
    /// The generation.
    pub live: &'a Live,
    /// The view's state.
    pub state: &'a mut ViewState,
    /// The policy at the cutoff.
    pub policy: &'a str,
    /// The model's name, or why it is not available.
    pub model: &'a str,
    /// The name of the adapter that can be used.
    pub adapter: Option<&'a str>,
    /// Whether the engine is busy.
    pub busy: bool,
    /// Whether a run with a current prompt is open.
    pub has_prompt: bool,
    /// Whether the model can hold a conversation.
    pub chats: bool,
    /// For the status line.
    pub readout: &'a mut Option<String>,
}

/// Draws the view; returns the user's action.
pub fn show(ui: &mut Ui, scene: &mut LiveScene<'_>) -> Option<Asked> {
    let mut asked = controls(ui, scene);
    ui.add_space(space::SMALL);
    if scene.live.sides.is_empty() {
        ui.weak(
            "Generates at full depth, then under the policy chosen, at the cutoff, under those added to it, and with an adapter where \
             there is one, and shows where outputs diverge. Never two at once, so that the times are true.",
        );
        return asked;
    }
    let palette = design::palette(ui);
    let divergence = scene.live.first_divergence();
    let table = if divergence.is_some() { 118.0 } else { 0.0 };
    let height = ((ui.available_height() - table) * 0.45).max(130.0);
    let live = scene.live;
    let sides = live.asked.len().max(2);
    ScrollArea::horizontal().id_salt("sides").show(ui, |ui| {
        ui.set_width(ui.available_width().max(sides as f32 * LEAST_SIDE));
        ui.columns(sides, |columns| {
            for (index, ui) in columns.iter_mut().enumerate() {
                match live.sides.get(index) {
                    // The first side is marked where any other departs from it.
                    Some(_) if index == 0 => pane(ui, palette, live, index, divergence, height),
                    Some(_) => pane(ui, palette, live, index, live.divergence(index), height),
                    None => {
                        design::card(palette).show(ui, |ui| {
                            ui.set_min_size(vec2(ui.available_width(), height));
                            ui.strong(live.asked.get(index).map_or(scene.policy, String::as_str));
                            ui.weak("waits for its turn");
                        });
                    }
                }
            }
        });
    });
    if let Some(step) = divergence {
        candidates(ui, palette, live, step);
    }
    live_map(ui, scene);
    if ui.input(|input| input.key_pressed(eframe::egui::Key::Escape)) && scene.busy {
        asked = Some(Asked::Stop);
    }
    asked
}

fn controls(ui: &mut Ui, scene: &mut LiveScene<'_>) -> Option<Asked> {
    let mut asked = None;
    let label = ui.label(RichText::new("Prompt").strong());
    ScrollArea::vertical().id_salt("prompt editor").max_height(92.0).show(ui, |ui| {
        let edit = TextEdit::multiline(&mut scene.form.prompt)
            .desired_rows(3)
            .desired_width(f32::INFINITY)
            .hint_text("Type or paste a prompt; a model with a chat template sees it as the user’s message");
        ui.add(edit).labelled_by(label.id);
    });
    ui.horizontal_wrapped(|ui| {
        if scene.busy {
            if ui.button("Stop").clicked() {
                asked = Some(Asked::Stop);
            }
        } else {
            let ready = !scene.form.prompt.trim().is_empty();
            let button = Button::new(RichText::new("Generate").color(design::palette(ui).on_accent))
                .fill(design::palette(ui).accent);
            if ui.add_enabled(ready, button).clicked() {
                asked = Some(Asked::Generate);
            }
            if scene.chats && scene.live.reply("").is_some() {
                let reply = ui.add_enabled(ready, Button::new("Reply"));
                let about = "Sends the text as the next message: every side goes on from its own answer";
                if reply.on_hover_text(about).clicked() {
                    asked = Some(Asked::Reply);
                }
            }
        }
        let label = ui.label("new tokens");
        ui.add(DragValue::new(&mut scene.form.max_new_tokens).range(1..=100_000)).labelled_by(label.id);
        if scene.has_prompt && ui.button("Take the run’s prompt").clicked() {
            asked = Some(Asked::TakePrompt);
        }
        sampling(ui, scene.form);
    });
    ui.horizontal_wrapped(|ui| {
        ui.label("full, then");
        policy_kinds(ui, &mut scene.state.policy);
        ui.label(RichText::new(scene.policy).monospace().color(design::palette(ui).cutoff));
        if more_policies(ui, &mut scene.form.more, scene.policy) {
            asked = Some(Asked::Keep);
        }
        if let Some(adapter) = scene.adapter {
            ui.checkbox(&mut scene.form.with_adapter, format!("and with {adapter}"));
        }
        ui.weak(format!("· {}", scene.model));
    });
    asked
}

/// How tokens are chosen.
fn sampling(ui: &mut Ui, form: &mut Form) {
    let label = ui.label("temperature");
    let temperature = DragValue::new(&mut form.temperature).range(0.0..=2.0).speed(0.01).max_decimals(2);
    ui.add(temperature).labelled_by(label.id).on_hover_text("0 takes the most likely token");
    if form.temperature > 0.0 {
        let label = ui.label("top-p");
        let top_p = DragValue::new(&mut form.top_p).range(0.05..=1.0).speed(0.01).max_decimals(2);
        ui.add(top_p).labelled_by(label.id);
        let label = ui.label("seed");
        ui.add(DragValue::new(&mut form.seed)).labelled_by(label.id).on_hover_text("The same on every side");
    }
}

/// The policies that run beside the chosen one; returns whether that one shall be kept with them.
fn more_policies(ui: &mut Ui, more: &mut Vec<String>, chosen: &str) -> bool {
    let mut dropped = None;
    for (index, policy) in more.iter().enumerate().filter(|(_, policy)| *policy != chosen) {
        let chip = ui.button(RichText::new(format!("{policy} ×")).monospace());
        if chip.on_hover_text("Do not run it").clicked() {
            dropped = Some(index);
        }
    }
    if let Some(index) = dropped {
        more.remove(index);
    }
    let add = ui.add_enabled(!more.iter().any(|policy| policy == chosen), Button::new("Add"));
    add.on_hover_text("Runs this policy, too, when another is chosen").clicked()
}

/// The kind of the chosen policy; SPEED if it is unknown.
fn kind(chosen: &str) -> &'static PolicyKind {
    let name = chosen.split(':').next().unwrap_or_default();
    PolicyKind::named(name).or_else(|| PolicyKind::named("speed")).unwrap_or(&POLICIES[0])
}

/// Whether the chosen policy follows the marker.
pub(crate) fn is_by_cutoff(chosen: &str) -> bool {
    kind(chosen).by_cutoff()
}

/// The chosen policy for a model of `layers` layers: by its full name, or by its kind at the cutoff.
///
/// # Errors
/// If the name is invalid.
pub(crate) fn policy(chosen: &str, (cutoff, bos, layers): (usize, bool, usize)) -> Result<Policy> {
    let kind = kind(chosen);
    if kind.by_cutoff() { kind.at(cutoff, bos, layers) } else { Policy::parse(chosen, layers) }
}

/// The choice of the kind of policy, and the name field for policies without a cutoff.
fn policy_kinds(ui: &mut Ui, chosen: &mut String) {
    let shown = kind(chosen);
    let response = ComboBox::from_id_salt("policy").selected_text(shown.name).width(84.0).show_ui(ui, |ui| {
        for kind in POLICIES.iter().filter(|kind| kind.name != "full") {
            let one = ui.selectable_label(kind.name == shown.name, kind.name);
            if one.on_hover_text(kind.description).clicked() {
                *chosen = kind.standard_name.unwrap_or(kind.name).into();
            }
        }
    });
    let name = format!("Policy: {}", shown.name);
    response.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, &name));
    if shown.by_cutoff() {
        response.response.on_hover_text(format!("{}. Cutoff and anchor are the marker’s", shown.description));
        return;
    }
    response.response.on_hover_text(shown.description);
    let label = ui.label("named");
    let edit = ui.add(TextEdit::singleline(chosen).desired_width(230.0).font(TextStyle::Monospace));
    let edit = edit.labelled_by(label.id);
    edit.on_hover_text(shown.syntax);
}

fn pane(ui: &mut Ui, palette: &Palette, live: &Live, index: usize, divergence: Option<usize>, height: f32) {
    let side = &live.sides[index];
    design::card(palette).show(ui, |ui| {
        ui.set_min_size(vec2(ui.available_width(), height));
        ui.horizontal(|ui| {
            let colour = if side.is_full() { palette.text } else { palette.cutoff };
            ui.label(RichText::new(side.name()).monospace().strong().color(colour));
            ui.weak(status(side));
            if let Some(Repetition { period, rounds }) = side.repetition {
                let looping =
                    RichText::new(format!("loops: {rounds} × {period} tokens")).color(palette.warning);
                ui.label(looping).on_hover_text("The text ends in the same tokens over and over");
            }
        });
        metrics(ui, side);
        if let Some(caveat) = &side.caveat {
            ui.label(RichText::new(caveat).color(palette.warning));
        }
        ui.separator();
        let above = if side.caveat.is_some() { 98.0 } else { 78.0 };
        ScrollArea::vertical()
            .id_salt(side.name())
            .auto_shrink(false)
            .max_height(height - above)
            .stick_to_bottom(side.ended.is_none())
            .show(ui, |ui| {
                // Columns are justified; text is not.
                ui.with_layout(Layout::top_down(Align::Min), |ui| {
                    for message in live.earlier(index) {
                        ui.label(RichText::new(&message.role).small().weak());
                        ui.label(RichText::new(&message.content).weak());
                    }
                    let label = ui.label(text(palette, side, divergence));
                    let name = || format!("Generated, {}: {}", side.name(), side.text());
                    label.widget_info(|| WidgetInfo::labeled(Role::Label, true, name()));
                });
            });
    });
}

fn status(side: &Side) -> String {
    match side.ended {
        Some(true) => format!("stopped after {} tokens", side.tokens.len()),
        Some(false) => format!("{} tokens", side.tokens.len()),
        None if side.tokens.is_empty() => {
            format!("prefill {} of {} tokens", side.prefilled, side.prompt_tokens)
        }
        None => format!("token {} …", side.tokens.len()),
    }
}

fn metrics(ui: &mut Ui, side: &Side) {
    let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let first = match side.ttft_s {
        Some(seconds) if seconds >= 10.0 => format!("{seconds:.1} s"),
        Some(seconds) if seconds >= 1.0 => format!("{seconds:.2} s"),
        Some(seconds) => milliseconds(seconds),
        None => "–".into(),
    };
    ui.horizontal(|ui| {
        for (name, figure, meaning) in [
            ("TTFT", first, "Time to first token: prefill and the first choice"),
            (
                "TPOT",
                side.tpot_s.map_or("–".into(), milliseconds),
                "Mean time per output token after the first",
            ),
            ("KV", readable_bytes(side.kv_bytes as f64), "Bytes of keys and values allocated"),
        ] {
            ui.vertical(|ui| {
                ui.label(RichText::new(name).small().weak());
                ui.label(RichText::new(figure).monospace());
            })
            .response
            .on_hover_text(meaning);
            ui.add_space(space::MEDIUM);
        }
    });
}

/// The text, with the first different token highlighted and the text after it dimmed.
fn text(palette: &Palette, side: &Side, divergence: Option<usize>) -> LayoutJob {
    let mut job = LayoutJob::default();
    let part =
        |range: &[crate::live::Shown]| range.iter().map(|token| token.text.as_str()).collect::<String>();
    let at = divergence.unwrap_or(usize::MAX).min(side.tokens.len());
    let plain = TextFormat::simple(design::body(), palette.text);
    job.append(&part(&side.tokens[..at]), 0.0, plain.clone());
    if let Some(token) = side.tokens.get(at) {
        let differs =
            TextFormat { background: palette.cutoff, ..TextFormat::simple(design::body(), palette.halo) };
        let shown = if token.text.is_empty() { &token.token } else { &token.text };
        job.append(shown, 0.0, differs);
        job.append(&part(&side.tokens[at + 1..]), 0.0, TextFormat::simple(design::body(), palette.weak_text));
    }
    job.append(&side.text_rest, 0.0, plain);
    job
}

/// The candidates of both sides at the first different token.
fn candidates(ui: &mut Ui, palette: &Palette, live: &Live, step: usize) {
    const SHOWN: usize = 3;
    ui.add_space(space::SMALL);
    ui.horizontal(|ui| {
        ui.label(RichText::new(format!("First difference at token {step}")).strong().color(palette.cutoff));
        ui.weak("probability that each side gives to the candidates of both");
    });
    let mut names: Vec<(u32, String)> = vec![];
    for side in &live.sides {
        let top = side.tokens.get(step).map_or(&[][..], |token| token.top.as_slice());
        for candidate in top.iter().take(SHOWN) {
            if !names.iter().any(|(id, _)| *id == candidate.id) {
                names.push((candidate.id, token_label(&candidate.token)));
            }
        }
    }
    Grid::new("candidates").striped(true).spacing(vec2(space::LARGE, 2.0)).show(ui, |ui| {
        ui.label("");
        for (_, name) in &names {
            ui.label(RichText::new(format!("“{name}”")).monospace());
        }
        ui.end_row();
        for side in &live.sides {
            ui.label(side.name());
            let Some(token) = side.tokens.get(step) else {
                ui.weak("had ended");
                ui.end_row();
                continue;
            };
            for (id, _) in &names {
                let known = token.top.iter().find(|candidate| candidate.id == *id);
                let least = token.top.last().map_or(0.0, |candidate| candidate.probability);
                let figure = known.map_or(format!("< {least:.4}"), |c| format!("{:.4}", c.probability));
                let figure = RichText::new(figure).monospace();
                ui.label(if token.id == *id { figure.strong().color(palette.cutoff) } else { figure });
            }
            ui.end_row();
        }
    });
}

/// The live map of one side: layers × decode steps.
fn live_map(ui: &mut Ui, scene: &mut LiveScene<'_>) {
    ui.add_space(space::SMALL);
    ui.horizontal_wrapped(|ui| {
        choose(ui, "Live figure", &mut scene.form.figure, LIVE_FIGURES, StepFigure::name);
        for (index, side) in scene.live.sides.iter().enumerate() {
            ui.selectable_value(&mut scene.form.side, index, side.name());
        }
    });
    let shown = scene.form.side.min(scene.live.sides.len() - 1);
    let Some(values) = map_of(scene, shown) else { return };
    let heat = HeatMap {
        values,
        scale: scene.state.share_scale,
        colours: scene.state.colour_map,
        per_row: false,
        without_first: false,
        limit: None,
    };
    let image = HeatMapImage::of(ui, ui.scope_id().with(("live map", shown)));
    let name = format!("{}, {}, mean over heads", scene.form.figure.name(), scene.form.figure.unit());
    ui.horizontal_top(|ui| {
        ui.add_space(size::AXIS);
        let width = (ui.available_width() - space::LARGE).min(380.0);
        colour_bar(ui, &image.scale(&heat), heat.colours, &name, width);
        ui.add(Label::new(RichText::new(&name).weak()).truncate());
    });
    let area = ui.available_rect_before_wrap();
    let rows = Rect::from_min_max(
        pos2(area.left() + size::AXIS, area.top()),
        pos2(area.right() - space::MEDIUM, (area.bottom() - 36.0).max(area.top() + 70.0)),
    );
    ui.allocate_rect(Rect::from_min_max(area.min, pos2(area.right(), rows.bottom() + 36.0)), Sense::hover());
    let response = ui.interact(rows, ui.scope_id().with("live map"), Sense::hover());
    response.widget_info(|| {
        WidgetInfo::labeled(Role::Canvas, true, format!("Live map: {} steps", values.columns()))
    });
    let palette = design::palette(ui);
    // Reserves width for future tokens, so that columns do not shrink with every token.
    let columns = values.columns().next_power_of_two().max(16);
    let window = Window::all(columns);
    let filled = values.columns() as f32 / columns as f32;
    let part = Rect::from_min_size(rows.min, vec2(rows.width() * filled, rows.height()));
    let painter = ui.painter();
    painter.rect_filled(rows, 0.0, palette.background);
    if part.width() >= 1.0 {
        image.paint(ui, painter, part, &heat, Window::all(values.columns()));
    }
    painter.rect_stroke(rows, 0.0, Stroke::new(1.0, palette.line), StrokeKind::Outside);
    axis::layers(painter, palette, rows, values.rows());
    let step = axis::step(f64::from(rows.width()) / window.width(), 50.0);
    let ticks = (0..columns).step_by(step);
    axis::foot(painter, palette, rows, ticks.map(|at| ((at as f32 + 0.5) / columns as f32, at.to_string())));
    let below = pos2(rows.center().x, rows.bottom() + 19.0);
    painter.text(below, Align2::CENTER_TOP, "decode step", design::caption(), palette.weak_text);
    if let Some(pointer) = response.hover_pos() {
        let at = (pointer - rows.min) / rows.size() * vec2(columns as f32, values.rows() as f32);
        let (layer, step) = (at.y as usize, at.x as usize);
        if step < values.columns() {
            let token = scene.live.sides[shown].tokens.get(step).map_or("", |token| token.token.as_str());
            let value = exact(values.value(layer, step));
            let text = format!(
                "layer {layer}\nstep {step}, yields “{}”\n{}: {value}",
                token_label(token),
                scene.form.figure.name()
            );
            *scene.readout = Some(text.replace('\n', "  ·  "));
            response.on_hover_text_at_pointer(text);
        }
    }
}

fn map_of<'a>(scene: &LiveScene<'a>, side: usize) -> Option<&'a Pyramid> {
    let index = LIVE_FIGURES.iter().position(|figure| *figure == scene.form.figure)?;
    scene.live.sides.get(side).map(|side| &side.maps[index])
}

/// One row per token and side.
pub fn figures(live: &Live) -> Figures<'_> {
    let rows: Vec<(&Side, usize)> =
        live.sides.iter().flat_map(|side| (0..side.tokens.len()).map(move |step| (side, step))).collect();
    Figures {
        columns: vec![
            Column::new("policy", ""),
            Column::new("step", ""),
            Column::new("token id", ""),
            Column::new("token", ""),
            Column::new("probability", ""),
            Column::new("caveat", ""),
        ],
        rows: rows.len(),
        row: Box::new(move |row| {
            let (side, step) = rows[row];
            let token = &side.tokens[step];
            let own = token.top.iter().find(|candidate| candidate.id == token.id);
            vec![
                side.name(),
                step.to_string(),
                token.id.to_string(),
                token_label(&token.token),
                cell(own.map_or(f64::NAN, |candidate| candidate.probability)),
                side.caveat.clone().unwrap_or_default(),
            ]
        }),
    }
}
