//! The page: lines of text with a shade behind each token, and the overview beside it.

use super::flow::{self, Flow, Piece};
use super::shades::Subject;
use crate::design::{self, Palette};
use crate::widgets::token_label;
use eframe::egui::{
    FontId, Painter, Rect, Response, ScrollArea, Sense, Stroke, StrokeKind, Ui, WidgetInfo, accesskit::Role,
    pos2, scroll_area::ScrollBarVisibility, vec2,
};
use std::ops::Range;
use std::sync::Arc;

/// Height of a line in units of its type size: room for the curves between lines.
pub(super) const LEADING: f32 = 1.65;
/// Width of the overview.
pub(super) const OVERVIEW: f32 = 16.0;

/// A text in pieces, and how it is broken into lines.
#[derive(Default)]
pub(super) struct Text {
    pub(super) pieces: Arc<Vec<Piece>>,
    pub(super) flow: Flow,
    /// How far it is scrolled, points.
    pub(super) scrolled: f32,
    /// Where it is to be scrolled in the next frame.
    pub(super) scroll_to: Option<f32>,
}

impl Text {
    pub(super) fn new(tokens: &[String]) -> Self {
        Self { pieces: Arc::new(flow::pieces(tokens)), ..Self::default() }
    }

    /// The line that a token is in.
    pub(super) fn line_of(&self, token: usize) -> Option<usize> {
        self.flow.line_of(&self.pieces, token)
    }

    /// The tokens of some lines.
    fn tokens_of(&self, lines: Range<usize>) -> Range<usize> {
        let start = self.flow.line(lines.start).start;
        let end = self.flow.line(lines.end.saturating_sub(1)).end;
        let first = self.pieces.get(start).map_or(0, |piece| piece.tokens.start);
        let last = self.pieces.get(end.saturating_sub(1)).map_or(first, |piece| piece.tokens.end);
        first..last.max(first)
    }

    /// Scrolls so that a token is in the middle of a page of so many points.
    pub(super) fn scroll_to_token(&mut self, token: usize, line: f32, page: f32) {
        if let Some(at) = self.line_of(token) {
            self.scroll_to = Some(((at as f32 + 0.5) * line - page / 2.0).max(0.0));
        }
    }
}

/// How a token looks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// Opacity of the shade; NaN where the figure is undefined.
    pub(super) ink: f32,
    /// The pointer's or the pinned token.
    pub(super) is_subject: bool,
    /// Among the selected tokens.
    pub(super) is_selected: bool,
}

/// A token on the screen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) subject: Subject,
    pub(super) rect: Rect,
}

/// What one drawing of a text gives back.
pub(super) struct Drawn {
    /// The tokens in sight.
    pub(super) placed: Vec<Placed>,
    /// The visible part of the screen.
    pub(super) area: Rect,
    /// The lines in sight.
    pub(super) lines: Range<usize>,
    /// The response of each of these lines.
    pub(super) touched: Vec<Response>,
}

/// Draws the lines in sight. `subject_of` makes a token's subject.
pub(super) fn show(
    ui: &mut Ui,
    name: &str,
    text: &mut Text,
    font: &FontId,
    height: f32,
    subject_of: impl Fn(usize) -> Subject,
    look: impl Fn(usize) -> Look,
) -> Drawn {
    let line = line_height(font);
    let width = ui.available_width();
    let mut scroll = ScrollArea::vertical()
        .id_salt(name)
        .auto_shrink([false, true])
        .max_height(height)
        .min_scrolled_height(height)
        .scroll_bar_visibility(ScrollBarVisibility::AlwaysHidden);
    if let Some(offset) = text.scroll_to.take() {
        scroll = scroll.vertical_scroll_offset(offset);
    }
    let mut drawn = Drawn { placed: vec![], area: Rect::NOTHING, lines: 0..0, touched: vec![] };
    ui.scope(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        let output = scroll.show_rows(ui, line, text.flow.lines(), |ui, rows| {
            drawn.lines = rows.clone();
            for index in rows {
                let (rect, response) = ui.allocate_exact_size(vec2(width, line), Sense::click_and_drag());
                draw_line(
                    ui,
                    &text.pieces[text.flow.line(index)],
                    rect,
                    &response,
                    font,
                    &subject_of,
                    &look,
                    &mut drawn.placed,
                );
                drawn.touched.push(response);
            }
        });
        text.scrolled = output.state.clamped_offset().y;
        drawn.area = output.inner_rect;
    });
    drawn
}

/// Height of a line of this type.
pub(super) fn line_height(font: &FontId) -> f32 {
    (font.size * LEADING).round()
}

#[allow(clippy::too_many_arguments)]
fn draw_line(
    ui: &Ui,
    pieces: &[Piece],
    rect: Rect,
    response: &Response,
    font: &FontId,
    subject_of: &impl Fn(usize) -> Subject,
    look: &impl Fn(usize) -> Look,
    placed: &mut Vec<Placed>,
) {
    let palette = design::palette(ui);
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let job = flow::job(&text, font, palette.text, palette.weak_text);
    let galley = ui.painter().layout_job(job);
    let edges = flow::edges(&galley, pieces);
    let margin = (rect.height() - galley.size().y) / 2.0;
    let rows = rect.top() + margin - 1.0..=rect.bottom() - margin + 1.0;
    for (piece, edge) in pieces.iter().zip(&edges) {
        let width = (edge.1 - edge.0) / piece.tokens.len() as f32;
        for (index, token) in piece.tokens.clone().enumerate() {
            let left = rect.left() + edge.0 + index as f32 * width;
            let cell = Rect::from_x_y_ranges(left..=left + width.max(1.0), rows.clone());
            shade(ui.painter(), palette, cell, look(token));
            // The whole height of the line takes the pointer.
            let reach = Rect::from_x_y_ranges(cell.x_range(), rect.y_range());
            placed.push(Placed { subject: subject_of(token), rect: reach });
        }
    }
    ui.painter().galley(pos2(rect.left(), rect.top() + margin), galley, palette.text);
    response.widget_info(|| WidgetInfo::labeled(Role::Label, true, &text));
}

fn shade(painter: &Painter, palette: &Palette, cell: Rect, look: Look) {
    if look.ink.is_nan() {
        painter.rect_filled(cell, 3.0, design::faded(palette.undefined[1], 0.4));
    } else if look.ink > 0.0 {
        painter.rect_filled(cell, 3.0, design::faded(palette.shade, look.ink));
    }
    if look.is_selected {
        let bar = Rect::from_min_max(pos2(cell.left(), cell.bottom() - 2.0), cell.max + vec2(0.0, 1.0));
        painter.rect_filled(bar, 0.0, palette.accent);
    }
    if look.is_subject {
        painter.rect_stroke(
            cell.expand2(vec2(1.0, 1.0)),
            3.0,
            Stroke::new(2.0, palette.cutoff),
            StrokeKind::Outside,
        );
    }
}

/// A token's name for captions.
pub(super) fn label(tokens: &[String], token: usize) -> String {
    tokens.get(token).map_or(String::new(), |token| token_label(token))
}

/// A column as high as the page that stands for the whole text: its shades, what is lit, and the part in sight. Pressing or dragging
/// scrolls.
pub(super) fn overview(
    ui: &mut Ui,
    area: Rect,
    text: &mut Text,
    line: f32,
    ink: impl Fn(Range<usize>) -> f32,
    lit: &[(usize, f32)],
) {
    let palette = design::palette(ui);
    let lines = text.flow.lines();
    let whole = lines as f32 * line;
    if lines == 0 || whole <= area.height() + 1.0 {
        return;
    }
    let response = ui.interact(area, ui.scope_id().with("overview"), Sense::click_and_drag());
    response.widget_info(|| WidgetInfo::labeled(Role::ScrollBar, true, "Overview of the prompt"));
    let painter = ui.painter().with_clip_rect(area.expand(1.0));
    painter.rect_filled(area, 3.0, palette.panel);
    let rows = (area.height() / 2.0).floor().max(1.0) as usize;
    let y_of = |at_line: f32| area.top() + at_line / lines as f32 * area.height();
    for row in 0..rows.min(lines) {
        let of = |row: usize| row * lines / rows.min(lines);
        let ink = ink(text.tokens_of(of(row)..of(row + 1).max(of(row) + 1)));
        if ink > 0.0 {
            let bar = Rect::from_x_y_ranges(
                area.x_range(),
                y_of(of(row) as f32)..=y_of(of(row + 1) as f32).max(y_of(of(row) as f32) + 2.0),
            );
            painter.rect_filled(bar, 0.0, design::faded(palette.shade, ink));
        }
    }
    for (token, strength) in lit.iter().rev() {
        if let Some(at) = text.line_of(*token) {
            let centre = y_of(at as f32 + 0.5);
            let mark = Rect::from_x_y_ranges(area.x_range(), centre - 1.5..=centre + 1.5);
            painter.rect_filled(mark, 1.0, design::faded(palette.accent, 0.35 + 0.65 * strength));
        }
    }
    let seen = Rect::from_x_y_ranges(
        area.x_range(),
        y_of(text.scrolled / line)..=y_of((text.scrolled + area.height()) / line),
    );
    painter.rect_stroke(seen, 3.0, Stroke::new(1.5, palette.weak_text), StrokeKind::Inside);
    if let Some(at) = response.interact_pointer_pos().filter(|_| response.is_pointer_button_down_on()) {
        let share = ((at.y - area.top()) / area.height()).clamp(0.0, 1.0);
        text.scroll_to =
            Some((share * whole - area.height() / 2.0).clamp(0.0, (whole - area.height()).max(0.0)));
        ui.ctx().request_repaint();
    }
}

/// Where a token is, and whether it is in sight; else the place at the page's edge behind which it is.
pub(super) fn anchor(drawn: &Drawn, text: &Text, subject: Subject, token: usize) -> Option<(Rect, bool)> {
    if let Some(placed) = drawn.placed.iter().find(|placed| placed.subject == subject)
        && drawn.area.shrink(2.0).intersects(placed.rect)
    {
        return Some((placed.rect, true));
    }
    let line = text.line_of(token)?;
    let is_above = line < drawn.lines.start
        || drawn.placed.first().is_some_and(
            |first| matches!(first.subject, Subject::Token(first) | Subject::Step(first) if token <= first),
        )
        || drawn
            .placed
            .iter()
            .any(|placed| placed.subject == subject && placed.rect.top() < drawn.area.top());
    let y = if is_above { drawn.area.top() } else { drawn.area.bottom() };
    // Spread out by where they are in their lines.
    let tokens = text.tokens_of(line..line + 1);
    let share = token.saturating_sub(tokens.start) as f32 / tokens.len().max(1) as f32;
    let x = drawn.area.left() + share * drawn.area.width();
    Some((Rect::from_center_size(pos2(x, y), vec2(1.0, 0.0)), false))
}
