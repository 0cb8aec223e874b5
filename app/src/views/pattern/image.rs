//! Cells as a texture of the size of the screen's area, kept until anything changes.

use super::{Source, cells, scale, source, windows};
use crate::data::{CellFigure, Scale, Sight, StepFigure};
use crate::design;
use crate::views::Scene;
use eframe::egui::{Color32, ColorImage, Id, Painter, Rect, TextureHandle, TextureOptions, Ui, Vec2, pos2};
use layerscope_figures::{Cells, ColumnRange, matrix_pixels};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// What is drawn: the cells in sight with their colours.
pub(super) struct Shown {
    pub(super) cells: Arc<Cells>,
    pub(super) scale: Arc<Scale>,
}

#[derive(Default)]
struct Kept {
    key: u64,
    shown: Option<(Arc<Cells>, Arc<Scale>)>,
    image: u64,
    texture: Option<TextureHandle>,
}

#[derive(Clone, Default)]
struct Cache(Arc<Mutex<Kept>>);

fn cache(ui: &Ui) -> Cache {
    ui.data_mut(|data| data.get_temp_mut_or_default::<Cache>(Id::unique("pattern image")).clone())
}

/// What the colours of all cells follow from, apart from the cells.
pub(super) fn key(scene: &Scene<'_>) -> impl Hash {
    let tiles = &scene.tiles;
    let state = &scene.state;
    let maps = scene.maps.map(|maps| {
        (maps.tokens(Default::default()).id(), maps.steps(StepFigure::BosMass).id(), maps.reads().is_some())
    });
    (
        (tiles.tiles.version(), tiles.policy.clone(), source(scene) == Source::Tiles, state.prompt),
        (state.pattern.scale.name(), state.leave_out_bos, state.colour_map.name(), maps),
        scene.run.folder.clone(),
    )
}

pub(super) fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Shown {
    /// The cells in sight; `None` where nothing is recorded.
    pub(super) fn of(ui: &Ui, scene: &Scene<'_>, sight: &Sight) -> Option<Self> {
        let Cache(cache) = cache(ui);
        let mut kept = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let key = hashed((key(scene), format!("{sight:?}")));
        if kept.key != key || kept.shown.is_none() {
            let cells = cells(scene, sight, CellFigure::Max)?;
            let scale = scale(scene, [&cells].into_iter());
            (kept.key, kept.shown) = (key, Some((Arc::new(cells), Arc::new(scale))));
        }
        let (cells, scale) = kept.shown.clone()?;
        Some(Self { cells, scale })
    }

    /// Paints the queries and keys in sight into an area.
    pub(super) fn paint(&self, ui: &Ui, painter: &Painter, area: Rect, scene: &Scene<'_>) {
        let Cache(cache) = cache(ui);
        let mut kept = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let span = windows(scene).map(|window| ColumnRange { start: window.start, end: window.end });
        let size = pixels(ui, area.size());
        let bits = span.map(|span| [span.start.to_bits(), span.end.to_bits()]);
        let image = hashed((kept.key, size, bits, ui.theme() == eframe::egui::Theme::Dark));
        if kept.image != image || kept.texture.is_none() {
            let palette = design::figure_theme(ui.theme()).palette();
            let (map, blank) = (scene.state.colour_map, palette.background);
            let pixels = matrix_pixels(&self.cells, span, size, &self.scale, map, palette.undefined, blank);
            show(ui, &mut kept.texture, size, pixels.into_iter().map(design::colour32).collect());
            kept.image = image;
        }
        if let Some(texture) = &kept.texture {
            whole(painter, texture, area);
        }
    }
}

/// Pixels of an area, at most what a texture may have.
pub(super) fn pixels(ui: &Ui, size: Vec2) -> [usize; 2] {
    let widest = ui.input(|input| input.max_texture_side);
    let size = size * ui.ctx().pixels_per_point();
    [size.x, size.y].map(|points| (points.round() as usize).clamp(1, widest))
}

/// Puts pixels into a texture.
pub(super) fn show(ui: &Ui, texture: &mut Option<TextureHandle>, size: [usize; 2], pixels: Vec<Color32>) {
    let image = ColorImage::new(size, pixels);
    match texture {
        Some(texture) => texture.set(image, TextureOptions::NEAREST),
        None => *texture = Some(ui.ctx().load_texture("pattern", image, TextureOptions::NEAREST)),
    }
}

/// Paints a whole texture.
pub(super) fn whole(painter: &Painter, texture: &TextureHandle, area: Rect) {
    let all = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
    painter.image(texture.id(), area, all, Color32::WHITE);
}
