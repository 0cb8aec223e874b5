//! Axes: tick positions and drawing.

use crate::design::{self, Palette};
use eframe::egui::{Align2, Painter, Pos2, Rect, Shape, Stroke, epaint::TextShape, pos2};

/// The smallest step of 1, 2, 5, 10, 20 … with at least `least` pixels between ticks at `pixels_per_unit`.
pub fn step(pixels_per_unit: f64, least: f64) -> usize {
    let mut scale = 1_usize;
    loop {
        for factor in [1, 2, 5] {
            let step = scale.saturating_mul(factor);
            if step as f64 * pixels_per_unit >= least || step >= usize::MAX / 10 {
                return step;
            }
        }
        scale = scale.saturating_mul(10);
    }
}

/// Layer numbers next to rows, centred on each row that has space for its number.
pub fn layers(painter: &Painter, palette: &Palette, rows: Rect, layers: usize) {
    let height = rows.height() / layers.max(1) as f32;
    let step = step(f64::from(height), 15.0);
    for layer in (0..layers).step_by(step) {
        let y = rows.top() + (layer as f32 + 0.5) * height;
        painter.line_segment(
            [pos2(rows.left() - 4.0, y), pos2(rows.left() - 1.0, y)],
            Stroke::new(1.0, palette.line),
        );
        let at = pos2(rows.left() - 6.0, y);
        painter.text(at, Align2::RIGHT_CENTER, layer, design::figures(), palette.weak_text);
    }
    vertical_name(painter, palette, pos2(rows.left() - 40.0, rows.center().y), "layer");
}

/// An axis's name, vertical and centred on a point.
pub fn vertical_name(painter: &Painter, palette: &Palette, centre: Pos2, name: &str) {
    let galley = painter.layout_no_wrap(name.to_owned(), design::caption(), palette.weak_text);
    let at = pos2(centre.x - galley.size().y / 2.0, centre.y + galley.size().x / 2.0);
    painter.add(Shape::Text(
        TextShape::new(at, galley, palette.weak_text).with_angle(-std::f32::consts::FRAC_PI_2),
    ));
}

/// Ticks along the bottom of `area`, at (share of its width, text); omits texts that would touch.
pub fn foot(
    painter: &Painter,
    palette: &Palette,
    area: Rect,
    ticks: impl IntoIterator<Item = (f32, String)>,
) {
    let mut free_from = f32::NEG_INFINITY;
    for (share, text) in ticks {
        let x = area.left() + share * area.width();
        painter.line_segment(
            [pos2(x, area.bottom()), pos2(x, area.bottom() + 3.0)],
            Stroke::new(1.0, palette.line),
        );
        let galley = painter.layout_no_wrap(text, design::figures(), palette.weak_text);
        let half = galley.size().x / 2.0;
        // Keeps the outermost numbers within the area.
        let centre = x.clamp(area.left() + half, (area.right() - half).max(area.left() + half));
        if centre - half < free_from {
            continue;
        }
        free_from = centre + half + 6.0;
        painter.galley(pos2(centre - half, area.bottom() + 5.0), galley, palette.weak_text);
    }
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn steps_are_round() {
        assert_eq!([100.0, 30.0, 14.9, 5.0, 0.01].map(|pixels| step(pixels, 30.0)), [1, 1, 5, 10, 5_000]);
    }
}
