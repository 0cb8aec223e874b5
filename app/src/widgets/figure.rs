//! Draws figures of `layerscope_figures` in the window, the same as in files.

use crate::design;
use eframe::egui::{
    Color32, Mesh, Painter, Pos2, Rect, Response, Role, Sense, Shape, Stroke, Theme, Ui, Vec2, WidgetInfo,
    epaint::TextShape, pos2, vec2,
};
use layerscope_figures::{Ink, Pen, Scores, Surface, TextAnchor, TradeOff};
use std::f32::consts::FRAC_PI_2;

/// Draws the figure at this size, with a tooltip for the point under the pointer; returns the tooltip's text.
pub fn trade_off(ui: &mut Ui, figure: &TradeOff, size: Vec2) -> (Response, Option<String>) {
    let label = format!("Figure: {}. {}", figure.title, figure.description);
    let points = [f64::from(size.x), f64::from(size.y)];
    drawn(ui, size, label, |surface| figure.draw(points, false, surface))
}

/// The same of scores, as high as they are.
pub fn scores(ui: &mut Ui, figure: &Scores, width: f32) -> (Response, Option<String>) {
    let label = format!("Figure: {}. {}", figure.title, figure.description);
    let points = f64::from(width);
    let size = vec2(width, figure.height(points, false) as f32);
    drawn(ui, size, label, |surface| figure.draw(points, false, surface))
}

fn drawn(
    ui: &mut Ui,
    size: Vec2,
    label: String,
    draw: impl FnOnce(&mut dyn Surface),
) -> (Response, Option<String>) {
    let (area, response) = ui.allocate_exact_size(size, Sense::hover());
    let mut window = Window {
        painter: ui.painter_at(area),
        corner: area.min,
        theme: ui.theme(),
        pointer: response.hover_pos(),
        hovered: None,
    };
    draw(&mut window);
    let hovered = window.hovered.map(|(_, text)| text);
    response.widget_info(|| WidgetInfo::labeled(Role::Canvas, true, label.clone()));
    let response = match &hovered {
        Some(text) => response.on_hover_text_at_pointer(text),
        None => response,
    };
    (response, hovered)
}

struct Window {
    painter: Painter,
    corner: Pos2,
    theme: Theme,
    pointer: Option<Pos2>,
    /// Distance and text of the item nearest to the pointer.
    hovered: Option<(f32, String)>,
}

impl Window {
    fn point(&self, [x, y]: [f64; 2]) -> Pos2 {
        self.corner + vec2(x as f32, y as f32)
    }

    fn colour(&self, ink: Ink) -> Color32 {
        design::ink(self.theme, ink)
    }

    fn words(&self, at: Pos2, anchor: TextAnchor, colour: Color32, text: &str) {
        let galley = self.painter.layout_no_wrap(text.to_owned(), design::caption(), colour);
        let align = match anchor {
            TextAnchor::Start => 0.0,
            TextAnchor::Middle => 0.5,
            TextAnchor::End => 1.0,
        };
        let corner = pos2(at.x - align * galley.size().x, at.y - ascent(galley.size()));
        self.painter.galley(corner, galley, colour);
    }
}

/// Approximate distance from the top of a line of text to its baseline.
fn ascent(size: Vec2) -> f32 {
    size.y * 0.78
}

impl Surface for Window {
    fn polyline(&mut self, points: &[[f64; 2]], pen: Pen) {
        let points: Vec<Pos2> = points.iter().map(|at| self.point(*at)).collect();
        let stroke = Stroke::new(pen.width as f32, self.colour(pen.ink));
        let lengths = pen.dashes.map(|dashes| dashes.split(' ').filter_map(|length| length.parse().ok()));
        match lengths.map(Iterator::collect::<Vec<f32>>).as_deref() {
            Some([dash, gap]) => {
                self.painter.extend(Shape::dashed_line(&points, stroke, *dash, *gap));
            }
            _ => {
                self.painter.add(Shape::line(points, stroke));
            }
        }
    }

    fn polygon(&mut self, points: &[[f64; 2]], ink: Ink) {
        let (corners, colour) =
            (points.iter().map(|at| self.point(*at)).collect::<Vec<_>>(), self.colour(ink));
        // Outlines may be concave, like stars, but are star-shaped around their centre: a triangle fan with
        // smooth edges.
        let middle = Rect::from_points(&corners).center();
        let mut fan = Mesh::default();
        fan.colored_vertex(middle, colour);
        corners.iter().for_each(|corner| fan.colored_vertex(*corner, colour));
        for index in 0..corners.len() as u32 {
            fan.add_triangle(0, index + 1, (index + 1) % corners.len() as u32 + 1);
        }
        self.painter.add(fan);
        self.painter.add(Shape::closed_line(corners, Stroke::new(0.8, colour)));
    }

    fn text(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        self.words(self.point(at), anchor, self.colour(ink), text);
    }

    fn rimmed(&mut self, at: [f64; 2], anchor: TextAnchor, ink: Ink, text: &str) {
        let background = self.colour(Ink::Background);
        for offset in [[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]] {
            self.words(self.point(at) + Vec2::from(offset), anchor, background, text);
        }
        self.text(at, anchor, ink, text);
    }

    fn title(&mut self, at: [f64; 2], text: &str) {
        self.text(at, TextAnchor::Start, Ink::Text, text);
    }

    fn upwards(&mut self, at: [f64; 2], ink: Ink, text: &str) {
        let (at, colour) = (self.point(at), self.colour(ink));
        let galley = self.painter.layout_no_wrap(text.to_owned(), design::caption(), colour);
        let corner = pos2(at.x - ascent(galley.size()), at.y + galley.size().x / 2.0);
        self.painter.add(TextShape::new(corner, galley, colour).with_angle(-FRAC_PI_2));
    }

    fn hover(&mut self, [x, y, width, height]: [f64; 4], text: &str) {
        let area = Rect::from_min_size(self.point([x, y]), vec2(width as f32, height as f32));
        let Some(pointer) = self.pointer.filter(|pointer| area.contains(*pointer)) else { return };
        let distance = area.center().distance(pointer);
        if self.hovered.as_ref().is_none_or(|(nearest, _)| distance < *nearest) {
            self.hovered = Some((distance, text.to_owned()));
        }
    }
}
