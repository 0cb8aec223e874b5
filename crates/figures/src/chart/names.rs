//! Positions of the names of levels and marks.

use super::Chart;
use super::drawing::Frame;
use crate::colour::Ink;
use crate::svg::{SMALL, Svg, TextAnchor, text_width};

impl Chart {
    /// Places the names of the level and the marks where they cross the fewest curves.
    pub(super) fn names(&self, svg: &mut Svg, frame: &Frame) {
        let drawn = self.drawn(frame);
        let mut taken: Vec<[f64; 4]> = vec![];
        let mut write = |name: &str, ink: Ink, places: &[(f64, f64, TextAnchor)]| {
            let boxes = places.iter().filter_map(|&(x, y, anchor)| {
                let width = text_width(name, SMALL);
                let left = if matches!(anchor, TextAnchor::End) { x - width } else { x };
                let area = [left - 2.0, y - SMALL, width + 4.0, SMALL + 4.0];
                let inside = area[0] >= frame.left && left + width <= frame.right + 2.0;
                let inside = inside && area[1] >= frame.top - 2.0 && y <= frame.bottom;
                inside.then_some(((x, y, anchor), area))
            });
            let crossings = |area: &[f64; 4]| {
                let points = drawn.iter().filter(|point| holds(area, **point)).count();
                points + drawn.len() * taken.iter().filter(|other| overlap(area, other)).count()
            };
            // The first position with the minimum.
            let best = boxes.min_by_key(|(_, area)| crossings(area));
            if let Some(((x, y, anchor), area)) = best {
                svg.rimmed([x, y], anchor, ink, name);
                taken.push(area);
            }
        };
        for mark in &self.marks {
            let x = frame.x(mark.at);
            let rows = [frame.top + 11.0, frame.top + 25.0, frame.bottom - 6.0, frame.bottom - 20.0];
            let places = rows.map(|y| [(x - 4.0, y, TextAnchor::End), (x + 4.0, y, TextAnchor::Start)]);
            write(&mark.name, mark.ink, places.as_flattened());
        }
        if let Some((level, name)) = &self.level {
            let y = frame.y(self.level_of(*level));
            let rows = [y - 4.0, y + 13.0];
            let (left, right) = (frame.left + 4.0, frame.right - 4.0);
            let places = rows.map(|y| [(left, y, TextAnchor::Start), (right, y, TextAnchor::End)]);
            write(name, Ink::Good, places.as_flattened());
        }
    }

    /// Points a few pixels apart along all curves and marks.
    fn drawn(&self, frame: &Frame) -> Vec<[f64; 2]> {
        const STEPS: usize = 8;
        let mut points = vec![];
        for curve in &self.curves {
            let place = |(index, value): (usize, &f64)| {
                [frame.x(self.along.place(curve, index)), frame.y(self.level_of(*value))]
            };
            let all: Vec<[f64; 2]> = curve.values.iter().enumerate().map(place).collect();
            for ends in all.windows(2) {
                let between =
                    |share: f64| [0, 1].map(|axis| ends[0][axis] + share * (ends[1][axis] - ends[0][axis]));
                points.extend((0..=STEPS).map(|step| between(step as f64 / STEPS as f64)));
            }
        }
        for mark in &self.marks {
            let x = frame.x(mark.at);
            let down = |step: usize| frame.top + (frame.bottom - frame.top) * step as f64 / 40.0;
            points.extend((0..=40).map(|step| [x, down(step)]));
        }
        points
    }
}

fn holds([left, top, width, height]: &[f64; 4], [x, y]: [f64; 2]) -> bool {
    (*left..=left + width).contains(&x) && (*top..=top + height).contains(&y)
}

fn overlap(a: &[f64; 4], b: &[f64; 4]) -> bool {
    a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3]
}
