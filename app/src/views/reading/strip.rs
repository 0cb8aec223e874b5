//! The strip beside the page: in which layers and heads the subject reads or is read, and its strongest tokens with what is around them.

use super::super::Scene;
use super::page::label;
use super::shades::{Chosen, Lit, Subject};
use crate::data::{PromptMaps, StepFigure, TokenFigure, exact, short};
use crate::design::{self, Palette, size, space};
use crate::state::Selection;
use eframe::egui::text::LayoutJob;
use eframe::egui::{
    Align2, FontFamily, FontId, Label, Mesh, Rect, RichText, ScrollArea, Sense, Shape, Stroke, StrokeKind,
    TextFormat, Ui, UiBuilder, Vec2, WidgetInfo, accesskit::Role, pos2, vec2,
};
use ndarray::Array2;

/// Height of a layer, at least and at most.
const LAYER: [f32; 2] = [13.0, 24.0];
/// Height of an entry of the list.
const ENTRY: f32 = 24.0;
/// Entries of the list, at least and at most.
const ENTRIES: [usize; 2] = [4, 12];
/// Height of the title, and of the headings of list and layers.
const TITLE: f32 = 24.0;
const HEADING: f32 = 22.0;
/// A strip narrower than this has what it tells one below the other.
const NARROW: f32 = 290.0;
/// Tokens shown on each side of one in the list.
const AROUND: usize = 5;

/// What the strip is about.
pub(super) struct About<'a> {
    pub(super) maps: &'a PromptMaps,
    pub(super) subject: Option<Subject>,
    pub(super) chosen: &'a Chosen,
    /// What is lit; `None` where the run does not say.
    pub(super) lit: Option<&'a Lit>,
    /// The strongest attention of each head, `[L, H]`.
    pub(super) by_head: Option<&'a Array2<f32>>,
}

/// What was clicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Scroll to a prompt token.
    Token(usize),
    /// Pin a generated token.
    Step(usize),
}

/// Draws the strip.
pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>, about: &About<'_>) -> Option<Asked> {
    let run = scene.run;
    let prompt = &run.prompts[scene.state.prompt.min(run.prompts.len() - 1)];
    let (title, text) = match about.subject {
        Some(Subject::Step(step)) => {
            (format!("Generated token {step}"), label(&prompt.generated_token_text, step))
        }
        Some(Subject::Token(token)) => {
            (format!("Prompt token {token}"), label(&prompt.prompt_token_text, token))
        }
        None => ("All generated tokens".to_owned(), String::new()),
    };
    // Every part has its place, whatever it is about, so that nothing jumps as the pointer moves.
    let area = ui.available_rect_before_wrap();
    let layers = run.layers();
    let is_narrow = area.width() < NARROW;
    let told = if is_narrow { 84.0 } else { 44.0 };
    let left = area.height() - TITLE - told - 2.0 * HEADING - space::MEDIUM - LAYER[0] * layers as f32;
    let entries = ((left / ENTRY) as usize).clamp(ENTRIES[0], ENTRIES[1]);
    let mut rest = area;
    ui.scope_builder(cut(&mut rest, TITLE), |ui| {
        ui.horizontal(|ui| {
            ui.label(RichText::new(title).strong());
            if !text.is_empty() {
                ui.add(Label::new(RichText::new(format!("“{text}”")).size(size::HEADING)).truncate());
            }
        });
    });
    ui.scope_builder(cut(&mut rest, told), |ui| masses(ui, scene, about));
    let listed = cut(&mut rest, HEADING + entries as f32 * ENTRY + space::MEDIUM);
    let asked = ui.scope_builder(listed, |ui| list(ui, scene, about, entries)).inner;
    let row = ((rest.height() - HEADING) / layers as f32).clamp(LAYER[0], LAYER[1]).floor();
    ui.scope_builder(UiBuilder::new().max_rect(rest), |ui| {
        ScrollArea::vertical()
            .id_salt("strip")
            .auto_shrink(false)
            .show(ui, |ui| layer_rows(ui, scene, about, row));
    });
    asked
}

/// Takes so many points from the top of what is left.
fn cut(rest: &mut Rect, height: f32) -> UiBuilder {
    let (upper, lower) = rest.split_top_bottom_at_y((rest.top() + height).min(rest.bottom()));
    *rest = lower;
    UiBuilder::new().max_rect(upper)
}

/// Mean shares of BoS, prompt and generated tokens at the chosen layers, or what the token receives.
fn masses(ui: &mut Ui, scene: &Scene<'_>, about: &About<'_>) {
    let palette = design::palette(ui);
    let layers = &about.chosen.layers;
    let mean =
        |of: &dyn Fn(usize) -> f32| layers.iter().map(|&layer| of(layer)).sum::<f32>() / layers.len() as f32;
    if let Some(Subject::Token(token)) = about.subject {
        let received = about.maps.tokens(TokenFigure::ReceivedMean);
        let share = mean(&|layer| value(received, layer, token));
        let at = about.chosen.name(scene.run.layers());
        let text = format!("receives {} of the attention at {at}, mean over heads and steps", short(share));
        ui.add(Label::new(RichText::new(text).weak()).wrap());
        return;
    }
    let shares = [StepFigure::BosMass, StepFigure::PromptMass, StepFigure::DecodeMass]
        .map(|figure| mean(&|layer| mass(scene, about, figure, layer)));
    let (rect, _) = ui.allocate_exact_size(vec2(ui.available_width(), 14.0), Sense::hover());
    stacked(ui, palette, rect, shares);
    // One below the other where three do not fit side by side.
    let is_narrow = rect.width() < NARROW;
    let parts = [("BoS", palette.bos), ("prompt", palette.prompt), ("generated", palette.decode)];
    let mut at = rect.left_bottom() + vec2(0.0, space::SMALL + 10.0);
    for ((name, colour), share) in parts.into_iter().zip(shares) {
        let square = Rect::from_center_size(at + vec2(6.0, 0.0), Vec2::splat(10.0));
        ui.painter().rect_filled(square, 2.0, colour);
        let text = format!("{name} {:.0} %", share * 100.0);
        let beside = at + vec2(17.0, 0.0);
        let told = ui.painter().text(beside, Align2::LEFT_CENTER, text, design::body(), palette.text);
        at = if is_narrow { at + vec2(0.0, 20.0) } else { pos2(told.right() + space::LARGE, at.y) };
    }
}

/// A mass of the subject at a layer.
fn mass(scene: &Scene<'_>, about: &About<'_>, figure: StepFigure, layer: usize) -> f32 {
    match about.subject {
        Some(Subject::Step(step)) => value(about.maps.steps(figure), layer, step),
        _ => {
            let figures = &scene.prompt().layers;
            let of = match figure {
                StepFigure::BosMass => &figures.bos_mass,
                StepFigure::PromptMass => &figures.prompt_mass,
                _ => &figures.decode_mass,
            };
            of.get(layer).map_or(f32::NAN, |mass| *mass as f32)
        }
    }
}

fn value(pyramid: &crate::data::Pyramid, row: usize, column: usize) -> f32 {
    match row < pyramid.rows() && column < pyramid.columns() {
        true => pyramid.value(row, column),
        false => f32::NAN,
    }
}

/// Shares side by side, in the colours of BoS, prompt and generated tokens.
fn stacked(ui: &Ui, palette: &Palette, rect: Rect, shares: [f32; 3]) {
    let mut left = rect.left();
    for (share, colour) in shares.into_iter().zip([palette.bos, palette.prompt, palette.decode]) {
        let width = if share.is_finite() { share.clamp(0.0, 1.0) * rect.width() } else { 0.0 };
        let part =
            Rect::from_min_max(pos2(left, rect.top()), pos2((left + width).min(rect.right()), rect.bottom()));
        ui.painter().rect_filled(part, 0.0, colour);
        left += width;
    }
}

/// A row for each layer: its number, where attention goes, and a cell for each head. A click chooses a layer or a head.
fn layer_rows(ui: &mut Ui, scene: &mut Scene<'_>, about: &About<'_>, row: f32) {
    let palette = design::palette(ui);
    let (layers, heads) = (scene.run.layers(), scene.run.heads());
    let header = HEADING;
    let (area, response) =
        ui.allocate_exact_size(vec2(ui.available_width(), header + row * layers as f32), Sense::click());
    let font = FontId::new(size::TEXT, FontFamily::Proportional);
    let numbers = 26.0;
    let shares = ((area.width() - numbers) * 0.34).clamp(36.0, 140.0);
    let rows = Rect::from_min_max(pos2(area.left(), area.top() + header), area.max);
    let bars = Rect::from_x_y_ranges(rows.left() + numbers..=rows.left() + numbers + shares, rows.y_range());
    let cells = Rect::from_x_y_ranges(bars.right() + space::MEDIUM..=rows.right() - 1.0, rows.y_range());
    let painter = ui.painter().clone();
    let is_token = matches!(about.subject, Some(Subject::Token(_)));
    let caption = if is_token { "received" } else { "attention" };
    painter.text(
        pos2(bars.left(), area.top() + 8.0),
        Align2::LEFT_CENTER,
        caption,
        font.clone(),
        palette.weak_text,
    );
    let caption = match about.by_head {
        // Older runs have no lists of what heads read.
        None => "no heads kept",
        Some(_) if cells.width() > 150.0 => "strongest read of each head",
        Some(_) => "heads",
    };
    painter.text(
        pos2(cells.left(), area.top() + 8.0),
        Align2::LEFT_CENTER,
        caption,
        font.clone(),
        palette.weak_text,
    );
    let received = received_by_layer(about, layers);
    let most_received = received.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let every = (15.0 / row).ceil().max(1.0) as usize;
    for layer in 0..layers {
        let top = rows.top() + layer as f32 * row;
        let is_chosen = about.chosen.layers.contains(&layer);
        if is_chosen {
            let behind = Rect::from_x_y_ranges(rows.x_range(), top..=top + row);
            painter.rect_filled(behind, 2.0, design::faded(palette.accent, 0.22));
        }
        if layer % every == 0 || is_chosen {
            let colour = if is_chosen { palette.text } else { palette.weak_text };
            let at = pos2(rows.left() + numbers - 6.0, top + row / 2.0);
            painter.text(at, Align2::RIGHT_CENTER, layer, font.clone(), colour);
        }
        let bar = Rect::from_x_y_ranges(bars.x_range(), top + 1.5..=top + row - 1.5);
        if is_token {
            let share = received.get(layer).copied().unwrap_or(0.0) / most_received;
            let width = if share.is_finite() { share * bar.width() } else { 0.0 };
            let part = Rect::from_min_size(bar.min, vec2(width, bar.height()));
            painter.rect_filled(part, 0.0, palette.prompt);
        } else {
            let figures = [StepFigure::BosMass, StepFigure::PromptMass, StepFigure::DecodeMass];
            stacked(ui, palette, bar, figures.map(|figure| mass(scene, about, figure, layer)));
        }
    }
    let cell = |layer: usize, head: usize| {
        let width = cells.width() / heads as f32;
        let corner = pos2(cells.left() + head as f32 * width, rows.top() + layer as f32 * row);
        let gap = if width > 5.0 { 1.0 } else { 0.0 };
        Rect::from_min_size(corner, vec2(width - gap, row - 1.0))
    };
    let mut mesh = Mesh::default();
    if let Some(strongest) = about.by_head {
        let most = strongest.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
        for ((layer, head), value) in strongest.indexed_iter() {
            mesh.add_colored_rect(cell(layer, head), design::faded(palette.line, 0.35));
            mesh.add_colored_rect(cell(layer, head), design::faded(palette.shade, (value / most).sqrt()));
        }
    }
    painter.add(Shape::mesh(mesh));
    for &(layer, head) in &scene.state.selection.heads {
        painter.rect_stroke(cell(layer, head), 1.0, Stroke::new(2.0, palette.cutoff), StrokeKind::Outside);
    }
    response.widget_info(|| {
        WidgetInfo::labeled(Role::Canvas, true, format!("Layers and heads: {layers} layers by {heads} heads"))
    });
    let Some(at) = response.hover_pos().filter(|at| rows.contains(*at)) else { return };
    let layer = (((at.y - rows.top()) / row) as usize).min(layers - 1);
    let head = (at.x >= cells.left() && about.by_head.is_some())
        .then(|| (((at.x - cells.left()) / cells.width() * heads as f32) as usize).min(heads - 1));
    let outlined = head.map_or(
        Rect::from_x_y_ranges(
            rows.x_range(),
            rows.top() + layer as f32 * row..=rows.top() + (layer + 1) as f32 * row,
        ),
        |head| cell(layer, head),
    );
    painter.rect_stroke(outlined, 2.0, Stroke::new(1.0, palette.selection), StrokeKind::Outside);
    *scene.readout = Some(match (head, about.by_head) {
        (Some(head), Some(strongest)) => {
            let value = strongest.get((layer, head)).copied().unwrap_or(f32::NAN);
            format!(
                "layer {layer}, head {head}: strongest attention {}  ·  click reads with this head alone, shift-click adds it",
                exact(value)
            )
        }
        _ if is_token => {
            format!("layer {layer}: receives {}", exact(received.get(layer).copied().unwrap_or(f32::NAN)))
        }
        _ => {
            let [bos, prompt, decode] = [StepFigure::BosMass, StepFigure::PromptMass, StepFigure::DecodeMass]
                .map(|figure| exact(mass(scene, about, figure, layer)));
            format!("layer {layer}: BoS {bos}, prompt {prompt}, generated {decode}")
        }
    });
    if response.clicked() {
        let extend = ui.input(|input| input.modifiers.shift);
        let selection = &mut scene.state.selection;
        match head {
            Some(head) => Selection::pick(&mut selection.heads, (layer, head), extend),
            None => Selection::pick(&mut selection.layers, layer, extend),
        }
    }
}

/// What the subject receives at each layer, mean over heads and steps; empty unless it is a prompt token.
fn received_by_layer(about: &About<'_>, layers: usize) -> Vec<f32> {
    let Some(Subject::Token(token)) = about.subject else { return vec![] };
    let received = about.maps.tokens(TokenFigure::ReceivedMean);
    (0..layers).map(|layer| value(received, layer, token)).collect()
}

/// The strongest tokens with their attention.
fn list(ui: &mut Ui, scene: &Scene<'_>, about: &About<'_>, entries: usize) -> Option<Asked> {
    let palette = design::palette(ui);
    let prompt = scene.prompt();
    let is_token = matches!(about.subject, Some(Subject::Token(_)));
    let Some((lit, _)) = about.lit.zip(about.subject) else {
        let text = match about.subject {
            None => {
                "Point at a generated token to see what it reads, at a prompt token to see what reads it. A click pins; the arrow keys walk along the text and through the layers."
            }
            Some(_) if !about.maps.lacking_reads().is_empty() => "reading what each token reads …",
            Some(_) => {
                "This run was recorded before single reads were kept. Record it again, or open its model and read its attention."
            }
        };
        ui.add(Label::new(RichText::new(text).weak()).wrap());
        return None;
    };
    let tokens = if is_token { &prompt.generated_token_text } else { &prompt.prompt_token_text };
    let heading = if is_token { "Read most by" } else { "Reads most" };
    ui.label(RichText::new(heading).strong());
    if lit.tokens.is_empty() {
        ui.add(
            Label::new(RichText::new("nothing among the strongest at these layers and heads").weak()).wrap(),
        );
        return None;
    }
    ui.spacing_mut().item_spacing.y = 0.0;
    let most = lit.tokens.first().map_or(f32::MIN_POSITIVE, |(_, attention)| *attention);
    let mut asked = None;
    for &(token, attention) in lit.tokens.iter().take(entries) {
        let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), ENTRY), Sense::click());
        let bar = Rect::from_min_size(rect.min, vec2(rect.width() * attention / most, rect.height()));
        ui.painter().rect_filled(bar, 2.0, design::faded(palette.shade, 0.35));
        if response.hovered() {
            ui.painter().rect_stroke(rect, 2.0, Stroke::new(1.0, palette.selection), StrokeKind::Inside);
        }
        let number = FontId::new(size::TEXT, FontFamily::Monospace);
        let value = if attention < 1e-3 { short(attention) } else { format!("{attention:.3}") };
        ui.painter().text(
            rect.left_center() + vec2(4.0, 0.0),
            Align2::LEFT_CENTER,
            value,
            number,
            palette.text,
        );
        let [before, own, after] = around(tokens, token);
        let mut job = LayoutJob::default();
        for (text, colour) in
            [(&before, palette.weak_text), (&own, palette.text), (&after, palette.weak_text)]
        {
            job.append(text, 0.0, TextFormat::simple(design::body(), colour));
        }
        job.wrap.max_width = f32::INFINITY;
        let galley = ui.painter().layout_job(job);
        // The token stands where it is seen, however long the words before it are.
        let start = rect.left() + 56.0;
        let own_at = galley
            .rows
            .first()
            .and_then(|row| row.glyphs.get(before.chars().count()))
            .map_or(0.0, |glyph| glyph.pos.x);
        let shift = (own_at - (rect.right() - start) * 0.4).max(0.0);
        let clip = Rect::from_min_max(pos2(start, rect.top()), rect.max);
        let at = pos2(start - shift, rect.center().y - galley.size().y / 2.0);
        ui.painter().with_clip_rect(clip.intersect(ui.clip_rect())).galley(at, galley, palette.text);
        let told = format!("{heading}: {own} {attention:.3}");
        response.widget_info(|| WidgetInfo::labeled(Role::Button, true, &told));
        if response.clicked() {
            asked = Some(if is_token { Asked::Step(token) } else { Asked::Token(token) });
        }
    }
    asked
}

/// A token and the words before and behind it, on one line.
fn around(tokens: &[String], token: usize) -> [String; 3] {
    let text = |range: std::ops::Range<usize>| -> String {
        let words: String = tokens.get(range).unwrap_or_default().concat();
        words.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
    };
    let own = match tokens.get(token) {
        Some(own) if own.trim().is_empty() => format!(" {} ", label(tokens, token)),
        _ => text(token..token + 1),
    };
    let end = (token + 1 + AROUND).min(tokens.len());
    [text(token.saturating_sub(AROUND)..token.min(tokens.len())), own, text((token + 1).min(end)..end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_around_a_token_are_on_one_line() {
        let tokens: Vec<String> = ["a", " b\n", " c", "\n", " d"].map(str::to_owned).to_vec();
        assert_eq!(around(&tokens, 2), ["a b ", " c", "  d"]);
        assert_eq!(around(&tokens, 3)[1], " \\n ");
        assert_eq!(around(&tokens, 0)[0], "");
        assert_eq!(around(&tokens, 20), ["", "", ""]);
    }
}
