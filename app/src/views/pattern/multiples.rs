//! All heads of a layer, or of all layers, side by side: each a small pattern to click into.

use super::image::{hashed, key, pixels, show as put, whole};
use super::{LEGEND, Subject, cells, legend, scale, select, source, windows};
use crate::data::{CellFigure, Scale, Sight};
use crate::design::{self, size, space};
use crate::state::PatternLayout;
use crate::views::{Action, Scene};
use crate::widgets::axis;
use eframe::egui::{
    Align2, Color32, Id, Rect, ScrollArea, Sense, Stroke, StrokeKind, TextureHandle, Ui, Vec2, WidgetInfo,
    accesskit::Role, pos2, vec2,
};
use layerscope_engine::PatternHeads;
use layerscope_figures::{Cells, ColumnRange, matrix_pixels};
use std::sync::{Arc, Mutex, PoisonError};

/// Height of a head's name above its pattern.
const NAME: f32 = 18.0;
/// Least height of a pattern.
const LEAST: f32 = 18.0;
/// Cells of a small pattern, each way, at most.
const CELLS: f32 = 256.0;

#[derive(Default)]
struct Kept {
    key: u64,
    scale: Option<Arc<Scale>>,
    texture: Option<TextureHandle>,
}

#[derive(Clone, Default)]
struct Cache(Arc<Mutex<Kept>>);

/// Where the small patterns are, from the upper left corner of the grid.
struct Grid {
    subjects: Vec<Subject>,
    columns: usize,
    /// Of one pattern with the space around it.
    step: Vec2,
    /// Of one pattern.
    size: Vec2,
    /// Room above each.
    above: f32,
}

impl Grid {
    fn new(scene: &Scene<'_>, room: Vec2) -> Self {
        let (layers, heads) = (scene.run.layers(), scene.run.heads());
        let one = |layer: usize, head: usize| Subject { layer, heads: PatternHeads::One(head) };
        let [queries, keys] = windows(scene);
        // Wide where few queries read many keys.
        let wide = (keys.width() / queries.width()).clamp(1.0, 3.0) as f32;
        if scene.state.pattern.layout == PatternLayout::Layers {
            let subjects = (0..layers).flat_map(|layer| (0..heads).map(move |head| one(layer, head)));
            let gap = if room.x / heads as f32 > 20.0 { 2.0 } else { 1.0 };
            let step = vec2(room.x / heads as f32, (room.y / layers as f32).max(LEAST));
            let size = (step - Vec2::splat(gap)).max(Vec2::splat(2.0));
            return Self { subjects: subjects.collect(), columns: heads, step, size, above: 0.0 };
        }
        let layer = Subject::of(scene).layer;
        // The number of columns that leaves least room empty.
        let fit = |columns: usize| {
            let rows = heads.div_ceil(columns);
            let across = room.x / columns as f32 - space::MEDIUM;
            let down = room.y / rows as f32 - space::MEDIUM - NAME;
            let height = down.min(across / wide * 1.6).max(LEAST);
            vec2(across.max(LEAST), height)
        };
        let best = (1..=heads.max(1)).max_by(|a, b| {
            // As large as possible; of equal ones, those that fill the room.
            let shape = |columns: usize| {
                let size = fit(columns);
                size.x.min(size.y * wide) * size.y.min(size.x / wide) + size.x * size.y / 1e3
            };
            shape(*a).total_cmp(&shape(*b))
        });
        let columns = best.unwrap_or(1);
        let size = fit(columns);
        let step = size + vec2(space::MEDIUM, space::MEDIUM + NAME);
        let subjects = (0..heads).map(|head| one(layer, head)).collect();
        Self { subjects, columns, step, size, above: NAME }
    }

    fn all(&self) -> Vec2 {
        vec2(
            self.step.x * self.columns as f32,
            self.step.y * self.subjects.len().div_ceil(self.columns.max(1)) as f32,
        )
    }

    /// The place of a pattern, counted from the grid's corner.
    fn place(&self, index: usize) -> Rect {
        let corner =
            vec2((index % self.columns) as f32 * self.step.x, (index / self.columns) as f32 * self.step.y);
        Rect::from_min_size((corner + vec2(0.0, self.above)).to_pos2(), self.size)
    }

    /// The pattern at a point.
    fn at(&self, point: Vec2) -> Option<usize> {
        let (column, row) = ((point.x / self.step.x) as usize, (point.y / self.step.y) as usize);
        let index = row * self.columns + column;
        let is_there = point.x >= 0.0 && point.y >= 0.0 && column < self.columns;
        (is_there && index < self.subjects.len()).then_some(index)
    }
}

/// Draws the small patterns.
pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>) {
    let is_layers = scene.state.pattern.layout == PatternLayout::Layers;
    let area = ui.available_rect_before_wrap();
    let (left, foot) = if is_layers { (size::AXIS, 38.0) } else { (0.0, 0.0) };
    let room = vec2(area.width() - left - space::LARGE, area.height() - LEGEND - foot - space::SMALL);
    let grid = Grid::new(scene, room.max(Vec2::splat(40.0)));
    let sights = sights(scene, &grid);
    if source(scene) == super::Source::Tiles && !scene.is_picture {
        let tiles = sights.iter().flat_map(Sight::tiles);
        let lacking = tiles.filter(|key| !scene.tiles.tiles.has(key)).collect();
        scene.actions.push(Action::Tiles(lacking));
    }
    let Cache(cache) =
        ui.data_mut(|data| data.get_temp_mut_or_default::<Cache>(Id::unique("small patterns")).clone());
    let mut kept = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let size = pixels(ui, grid.all().max(Vec2::splat(1.0)));
    let is_dark = ui.theme() == eframe::egui::Theme::Dark;
    let now = hashed((key(scene), format!("{sights:?}"), size, is_dark, grid.columns));
    if kept.key != now || kept.texture.is_none() {
        let all: Option<Vec<Cells>> =
            sights.iter().map(|sight| cells(scene, sight, CellFigure::Max)).collect();
        let Some(all) = all else { return super::not_recorded(ui, scene) };
        let scale = scale(scene, all.iter());
        put(ui, &mut kept.texture, size, draw(ui, scene, &grid, &all, &scale, size));
        (kept.key, kept.scale) = (now, Some(Arc::new(scale)));
    }
    let (Some(scale), Some(texture)) = (kept.scale.clone(), kept.texture.clone()) else { return };
    drop(kept);
    let name = match is_layers {
        true => "all heads of all layers".to_owned(),
        false => format!("layer {}, all heads", Subject::of(scene).layer),
    };
    legend(ui, scene, &scale, super::unit(grid.subjects[0]), &name);
    ScrollArea::vertical().auto_shrink(false).show(ui, |ui| patterns(ui, scene, &grid, &texture, left));
    if scene.tiles.reading.is_some() && !scene.is_picture {
        super::invite(ui, scene, area);
    }
}

/// What is in sight of each pattern.
fn sights(scene: &Scene<'_>, grid: &Grid) -> Vec<Sight> {
    let points = [grid.size.y.clamp(24.0, CELLS), grid.size.x.clamp(24.0, CELLS)];
    let windows = windows(scene);
    grid.subjects.iter().map(|subject| Sight::new(subject.layer, subject.heads, windows, points)).collect()
}

fn draw(
    ui: &Ui,
    scene: &Scene<'_>,
    grid: &Grid,
    all: &[Cells],
    scale: &Scale,
    [width, height]: [usize; 2],
) -> Vec<Color32> {
    let palette = design::figure_theme(ui.theme()).palette();
    let span = windows(scene).map(|window| ColumnRange { start: window.start, end: window.end });
    let factors = vec2(width as f32 / grid.all().x.max(1.0), height as f32 / grid.all().y.max(1.0));
    let mut image = vec![design::colour32(palette.background); width * height];
    for (index, cells) in all.iter().enumerate() {
        let place = grid.place(index);
        let edge = |points: f32, factor: f32, most: usize| ((points * factor).round() as usize).min(most);
        let [left, right] = [place.left(), place.right()].map(|x| edge(x, factors.x, width));
        let [top, bottom] = [place.top(), place.bottom()].map(|y| edge(y, factors.y, height));
        let size = [right.saturating_sub(left), bottom.saturating_sub(top)];
        if size.contains(&0) {
            continue;
        }
        let (map, blank) = (scene.state.colour_map, palette.background);
        let pixels = matrix_pixels(cells, span, size, scale, map, palette.undefined, blank);
        for (line, pixels) in pixels.chunks_exact(size[0]).enumerate() {
            let to = &mut image[(top + line) * width + left..][..size[0]];
            to.iter_mut().zip(pixels).for_each(|(to, colour)| *to = design::colour32(*colour));
        }
    }
    image
}

fn patterns(ui: &mut Ui, scene: &mut Scene<'_>, grid: &Grid, texture: &TextureHandle, left: f32) {
    let foot = if grid.above == 0.0 { 38.0 } else { 0.0 };
    let (area, _) = ui.allocate_exact_size(grid.all() + vec2(left, foot), Sense::hover());
    let corner = pos2(area.left() + left, area.top());
    let whole_area = Rect::from_min_size(corner, grid.all());
    let response = ui.interact(whole_area, ui.scope_id().with("small patterns"), Sense::click());
    response.widget_info(|| {
        let label = format!("Small patterns: {} heads", grid.subjects.len());
        WidgetInfo::labeled(Role::Canvas, true, label)
    });
    let palette = design::palette(ui);
    let painter = ui.painter();
    whole(painter, texture, whole_area);
    let place = |index: usize| grid.place(index).translate(corner.to_vec2());
    if grid.above > 0.0 {
        for (index, subject) in grid.subjects.iter().enumerate() {
            let place = place(index);
            painter.rect_stroke(place, 0.0, Stroke::new(1.0, palette.line), StrokeKind::Outside);
            if let PatternHeads::One(head) = subject.heads {
                let at = pos2(place.left(), place.top() - 3.0);
                let text = format!("head {head}");
                painter.text(at, Align2::LEFT_BOTTOM, text, design::caption(), palette.text);
            }
        }
    } else {
        let layers = grid.subjects.len() / grid.columns.max(1);
        axis::layers(painter, palette, whole_area, layers);
        let step = axis::step(f64::from(grid.step.x), 26.0);
        let share = |head: usize| (head as f32 + 0.5) / grid.columns as f32;
        axis::foot(
            painter,
            palette,
            whole_area,
            (0..grid.columns).step_by(step).map(|head| (share(head), head.to_string())),
        );
        let below = pos2(whole_area.center().x, whole_area.bottom() + 20.0);
        painter.text(below, Align2::CENTER_TOP, "query head", design::caption(), palette.weak_text);
    }
    let chosen = &scene.state.selection.heads;
    for (index, subject) in grid.subjects.iter().enumerate() {
        if matches!(subject.heads, PatternHeads::One(head) if chosen.contains(&(subject.layer, head))) {
            let place = place(index);
            painter.rect_stroke(place, 0.0, Stroke::new(3.0, palette.halo), StrokeKind::Outside);
            painter.rect_stroke(place, 0.0, Stroke::new(1.5, palette.selection), StrokeKind::Outside);
        }
    }
    let pointed = response.hover_pos().and_then(|pointer| grid.at(pointer - corner));
    let Some(index) = pointed else { return };
    let subject = grid.subjects[index];
    painter.rect_stroke(place(index), 0.0, Stroke::new(1.5, palette.accent), StrokeKind::Outside);
    let text = format!("{}: click to look into it", subject.name());
    *scene.readout = Some(text.clone());
    let was_clicked = response.clicked();
    response.on_hover_text_at_pointer(text);
    if was_clicked {
        select(scene, subject);
        scene.state.pattern.layout = PatternLayout::One;
    }
}
