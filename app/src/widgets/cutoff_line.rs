//! The cutoff: one line through every layer axis, dragged with the mouse or moved with keys.

use crate::design::{self, size};
use eframe::egui::{
    Align2, CursorIcon, EventFilter, Key, Rect, Response, Sense, Stroke, StrokeKind, Ui, WidgetInfo,
    accesskit, pos2, vec2,
};

/// Direction of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Layer 0 at the top.
    Down,
    /// Layer 0 at the left.
    Right,
}

/// The cutoff over an area that all L layers share.
#[derive(Debug, Clone, Copy)]
pub struct CutoffLine {
    /// The layers' area, layer 0 … L−1.
    pub area: Rect,
    /// Direction of the layers.
    pub direction: Direction,
    /// Layers L.
    pub layers: usize,
}

impl CutoffLine {
    /// Draws the line between layers `cutoff`−1 and `cutoff` and moves it on drags and keys.
    pub fn show(self, ui: &mut Ui, name: &str, cutoff: &mut usize) -> Response {
        let id = ui.scope_id().with((name, "cutoff line"));
        let grab = self.grab_area(*cutoff);
        let response = ui.interact(grab, id, Sense::click_and_drag());
        if let Some(pointer) = response.interact_pointer_pos().filter(|_| response.dragged()) {
            let share = match self.direction {
                Direction::Down => (pointer.y - self.area.top()) / self.area.height(),
                Direction::Right => (pointer.x - self.area.left()) / self.area.width(),
            };
            *cutoff = (share * self.layers as f32).round().clamp(1.0, self.layers.max(1) as f32) as usize;
        }
        if response.clicked() || response.drag_started() {
            response.request_focus();
        }
        *cutoff =
            cutoff.saturating_add_signed(self.asked_by_keys(ui, &response)).clamp(1, self.layers.max(1));
        response.widget_info(|| {
            WidgetInfo::slider(true, *cutoff as f64, format!("Cutoff of {} layers, {name}", self.layers))
        });
        self.paint(ui, *cutoff, response.hovered() || response.dragged() || response.has_focus());
        let cursor = match self.direction {
            Direction::Down => CursorIcon::ResizeVertical,
            Direction::Right => CursorIcon::ResizeHorizontal,
        };
        response.on_hover_and_drag_cursor(cursor)
    }

    fn asked_by_keys(&self, ui: &Ui, response: &Response) -> isize {
        let steps =
            |action| ui.input(|input| input.num_accesskit_action_requests(response.id, action)) as isize;
        let mut by = steps(accesskit::Action::Increment) - steps(accesskit::Action::Decrement);
        if response.has_focus() {
            let arrows = EventFilter { vertical_arrows: true, horizontal_arrows: true, ..Default::default() };
            ui.memory_mut(|memory| memory.set_focus_lock_filter(response.id, arrows));
            let (fewer, more) = match self.direction {
                Direction::Down => (Key::ArrowUp, Key::ArrowDown),
                Direction::Right => (Key::ArrowLeft, Key::ArrowRight),
            };
            let pressed = |key| ui.input(|input| input.num_presses(key)) as isize;
            by += pressed(more) - pressed(fewer);
        }
        by
    }

    fn place(&self, cutoff: usize) -> f32 {
        let share = cutoff as f32 / self.layers.max(1) as f32;
        match self.direction {
            Direction::Down => self.area.top() + share * self.area.height(),
            Direction::Right => self.area.left() + share * self.area.width(),
        }
    }

    fn grab_area(&self, cutoff: usize) -> Rect {
        let place = self.place(cutoff);
        match self.direction {
            Direction::Down => Rect::from_x_y_ranges(
                self.area.x_range(),
                place - size::MARKER_REACH..=place + size::MARKER_REACH,
            ),
            Direction::Right => Rect::from_x_y_ranges(
                place - size::MARKER_REACH..=place + size::MARKER_REACH,
                self.area.y_range(),
            ),
        }
    }

    /// Shades the layers without the prompt.
    pub fn veil(self, ui: &Ui, cutoff: usize) {
        let (place, area) = (self.place(cutoff.min(self.layers)), self.area);
        let absent = match self.direction {
            Direction::Down => Rect::from_min_max(pos2(area.left(), place), area.max),
            Direction::Right => Rect::from_min_max(pos2(place, area.top()), area.max),
        };
        ui.painter().rect_filled(absent, 0.0, design::palette(ui).absent);
    }

    fn paint(&self, ui: &Ui, cutoff: usize, strong: bool) {
        let (palette, place, area) = (design::palette(ui), self.place(cutoff), self.area);
        let painter = ui.painter();
        let ends = match self.direction {
            Direction::Down => [pos2(area.left(), place), pos2(area.right(), place)],
            Direction::Right => [pos2(place, area.top()), pos2(place, area.bottom())],
        };
        let width = if strong { size::MARKER + 1.0 } else { size::MARKER };
        painter.line_segment(ends, Stroke::new(width + 2.0, palette.halo));
        painter.line_segment(ends, Stroke::new(width, palette.cutoff));
    }

    /// The handle with the cutoff's number, at the line's end.
    pub fn handle(self, ui: &Ui, cutoff: usize) {
        let palette = design::palette(ui);
        let place = self.place(cutoff);
        let galley = ui.painter().layout_no_wrap(cutoff.to_string(), design::figures(), palette.halo);
        let half = galley.size() / 2.0 + vec2(5.0, 2.0);
        let centre = match self.direction {
            Direction::Down => pos2(self.area.left() - half.x - 1.0, place),
            Direction::Right => pos2(place, self.area.top() - half.y - 1.0),
        };
        let rect = Rect::from_center_size(centre, half * 2.0);
        ui.painter().rect(rect, 4.0, palette.cutoff, Stroke::new(1.0, palette.halo), StrokeKind::Outside);
        ui.painter().text(centre, Align2::CENTER_CENTER, cutoff, design::figures(), palette.halo);
    }
}
