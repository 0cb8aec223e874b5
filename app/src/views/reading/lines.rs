//! Curves from the subject to what it reads, or to what reads it.

use crate::design::{self, Palette};
use eframe::egui::{Pos2, Rect, Shape, Stroke, pos2};

/// Tokens that curves go to, at most.
pub(super) const MOST: usize = 8;
/// Straight parts of a curve.
const PARTS: usize = 24;

/// A curve between two tokens, thicker and less transparent the stronger they are tied.
pub(super) fn curve(palette: &Palette, from: Rect, to: Rect, strength: f32) -> Shape {
    let stroke = Stroke::new(1.0 + 1.8 * strength, design::faded(palette.accent, 0.25 + 0.5 * strength));
    Shape::line(points(from, to), stroke)
}

/// From the side of one token that faces the other, leaving and arriving upright; tokens of the same line are tied above it.
fn points(from: Rect, to: Rect) -> Vec<Pos2> {
    let is_above = to.center().y < from.center().y - 1.0;
    let is_below = to.center().y > from.center().y + 1.0;
    let (start, end) = match (is_above, is_below) {
        (false, true) => (from.center_bottom(), to.center_top()),
        (true, _) => (from.center_top(), to.center_bottom()),
        (false, false) => (from.center_top(), to.center_top()),
    };
    let rise = match (is_above, is_below) {
        (false, false) => -0.5 * from.height(),
        _ => (end.y - start.y) * 0.45,
    };
    let leaves = pos2(start.x, start.y + rise);
    let arrives = pos2(end.x, if is_above || is_below { end.y - rise } else { end.y + rise });
    (0..=PARTS).map(|part| bezier([start, leaves, arrives, end], part as f32 / PARTS as f32)).collect()
}

fn bezier([a, b, c, d]: [Pos2; 4], t: f32) -> Pos2 {
    let s = 1.0 - t;
    let weights = [s * s * s, 3.0 * s * s * t, 3.0 * s * t * t, t * t * t];
    let of = |axis: fn(Pos2) -> f32| {
        weights.iter().zip([a, b, c, d]).map(|(weight, point)| weight * axis(point)).sum::<f32>()
    };
    pos2(of(|point| point.x), of(|point| point.y))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::vec2;

    #[test]
    fn a_curve_goes_from_the_facing_side_of_one_token_to_that_of_the_other() {
        let token = |x: f32, y: f32| Rect::from_min_size(pos2(x, y), vec2(40.0, 20.0));
        let (low, high) = (token(0.0, 300.0), token(200.0, 50.0));
        let up = points(low, high);
        assert_eq!((up[0], up[PARTS]), (low.center_top(), high.center_bottom()));
        let down = points(high, low);
        assert_eq!((down[0], down[PARTS]), (high.center_bottom(), low.center_top()));
        let beside = points(low, token(100.0, 300.0));
        assert!(beside[PARTS / 2].y < low.top());
        assert!(up.iter().all(|point| (50.0..=320.0).contains(&point.y)));
    }
}
