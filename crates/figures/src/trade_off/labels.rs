//! Label placement: names never overlap each other, and avoid points if possible.

/// Height of a name.
pub(super) const HEIGHT: f64 = 12.0;
/// Half the width of a point.
const POINT: f64 = 5.0;
/// Distances from a point, nearest first.
const RINGS: [f64; 11] = [7.0, 10.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 100.0, 125.0];
/// Directions from a point, most readable first.
const DIRECTIONS: [[f64; 2]; 12] = [
    [1.0, 0.0],
    [-1.0, 0.0],
    [0.8, -0.7],
    [0.8, 0.7],
    [-0.8, -0.7],
    [-0.8, 0.7],
    [0.0, -1.0],
    [0.0, 1.0],
    [0.4, -1.0],
    [0.4, 1.0],
    [-0.4, -1.0],
    [-0.4, 1.0],
];
/// Passes in which every name may move to a better position after all are placed.
const PASSES: usize = 3;

/// An area: left, top, width, height.
pub(super) type Area = [f64; 4];

/// The obstacles for names.
pub(super) struct Surroundings<'a> {
    /// Positions of the points.
    pub(super) points: &'a [[f64; 2]],
    /// Widths of their names.
    pub(super) widths: &'a [f64],
    /// The area that names stay within.
    pub(super) frame: Area,
    /// Points a few pixels apart along lines.
    pub(super) lines: &'a [[f64; 2]],
}

impl Surroundings<'_> {
    /// The area of each point's name; `None` if there is no space for it, which only happens among many
    /// points.
    pub(super) fn place(&self) -> Vec<Option<Area>> {
        let near = |a: &[f64; 2], b: &[f64; 2]| (a[0] - b[0]).abs() < 70.0 && (a[1] - b[1]).abs() < 30.0;
        let crowd =
            |index: usize| self.points.iter().filter(|other| near(&self.points[index], other)).count();
        let mut order: Vec<usize> = (0..self.points.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(crowd(index)));
        let mut placed = vec![None; self.points.len()];
        for _ in 0..=PASSES {
            for &index in &order {
                placed[index] = None;
                placed[index] = self.best(index, &placed);
            }
        }
        placed
    }

    fn best(&self, index: usize, placed: &[Option<Area>]) -> Option<Area> {
        let mut best: Option<(f64, Area)> = None;
        for (ring, distance) in RINGS.into_iter().enumerate() {
            // Larger distances only cost more.
            if best.is_some_and(|(least, _)| 7.0 * ring as f64 >= least) {
                break;
            }
            for (rank, direction) in DIRECTIONS.into_iter().enumerate() {
                let area = self.area(index, distance, direction);
                if !inside(&area, &self.frame) || placed.iter().flatten().any(|other| overlap(&area, other)) {
                    continue;
                }
                let point_area = |[x, y]: &[f64; 2]| [x - POINT, y - POINT, 2.0 * POINT, 2.0 * POINT];
                let covered = self.points.iter().filter(|point| overlap(&area, &point_area(point))).count();
                let crossed = self.lines.iter().filter(|place| holds(&area, place)).count();
                let cost =
                    60.0 * covered as f64 + 2.0 * crossed as f64 + 7.0 * ring as f64 + 0.5 * rank as f64;
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, area));
                }
            }
        }
        best.map(|(_, area)| area)
    }

    /// The area of a name at this offset from its point.
    fn area(&self, index: usize, distance: f64, [dx, dy]: [f64; 2]) -> Area {
        let ([x, y], width) = (self.points[index], self.widths[index]);
        let sideways =
            if dx.abs() < 0.5 { dx * width } else { dx.signum() * (dx.abs() * distance + width / 2.0) };
        let upright = if dy == 0.0 { 0.0 } else { dy * distance + dy.signum() * HEIGHT / 2.0 };
        [x + sideways - width / 2.0, y + upright - HEIGHT / 2.0, width, HEIGHT]
    }
}

/// A line from a point to its name, if the name is not directly next to it.
pub(super) fn leader([x, y]: [f64; 2], [left, top, width, height]: Area) -> Option<[[f64; 2]; 2]> {
    let end = [x.clamp(left, left + width), y.clamp(top + 2.0, top + height - 2.0)];
    let (dx, dy) = (end[0] - x, end[1] - y);
    let length = dx.hypot(dy);
    let start = [x + dx / length * POINT, y + dy / length * POINT];
    (length > 13.0).then_some([start, end])
}

pub(super) fn overlap(a: &Area, b: &Area) -> bool {
    a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3]
}

fn inside(area: &Area, frame: &Area) -> bool {
    area[0] >= frame[0]
        && area[1] >= frame[1]
        && area[0] + area[2] <= frame[0] + frame[2]
        && area[1] + area[3] <= frame[1] + frame[3]
}

fn holds([left, top, width, height]: &Area, [x, y]: &[f64; 2]) -> bool {
    (*left..=left + width).contains(x) && (*top..=top + height).contains(y)
}
