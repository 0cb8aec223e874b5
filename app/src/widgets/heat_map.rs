//! Layers × columns as one texture of the size of the screen's area, whatever the number of columns.

use crate::data::{Pyramid, Scale, ScaleKind};
use crate::design::{self, ColourMap};
use crate::state::Window;
use eframe::egui::{Color32, ColorImage, Id, Painter, Rect, TextureHandle, TextureOptions, Ui, pos2};
use layerscope_figures::{Colour, ColumnRange};
use std::sync::{Arc, Mutex, PoisonError};

/// The colouring of a pyramid.
#[derive(Debug, Clone, Copy)]
pub struct HeatMap<'a> {
    /// Values, a row for each layer.
    pub values: &'a Pyramid,
    /// The scale of the colours.
    pub scale: ScaleKind,
    /// The colours.
    pub colours: ColourMap,
    /// Whether each layer has its own scale.
    pub per_row: bool,
    /// Whether the first column is omitted.
    pub without_first: bool,
    /// Where there is one, the scale goes evenly from −limit to limit instead.
    pub limit: Option<f32>,
}

/// The inputs of a heat map's image.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    values: u64,
    columns: usize,
    window: Window,
    pixels: usize,
    without_first: bool,
    colours: ColourMap,
    undefined: [Colour; 2],
    scale: (ScaleKind, bool, Option<f32>),
}

#[derive(Default)]
struct Cache {
    key: Option<Key>,
    texture: Option<TextureHandle>,
    scale: Option<(ScaleKey, Arc<Scale>)>,
}

/// The inputs of a fitted scale: values, columns, kind, whether per row, whether without the first column.
type ScaleKey = (u64, usize, ScaleKind, bool, bool);

/// A heat map's image, cached until an input changes.
#[derive(Clone, Default)]
pub struct HeatMapImage(Arc<Mutex<Cache>>);

impl HeatMapImage {
    /// The cached image under an id of the context.
    pub fn of(ui: &Ui, id: Id) -> Self {
        ui.data_mut(|data| data.get_temp_mut_or_default::<Self>(id).clone())
    }

    /// The scale fitted to a map's values.
    pub fn scale(&self, map: &HeatMap<'_>) -> Arc<Scale> {
        if let Some(limit) = map.limit {
            return Arc::new(Scale::symmetric(limit));
        }
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // While columns stream in, percentiles are refitted only occasionally.
        let columns = match map.scale {
            ScaleKind::Percentile => map.values.columns().checked_ilog2().map_or(0, |log| log as usize + 1),
            _ => map.values.columns(),
        };
        let key = (map.values.id(), columns, map.scale, map.per_row, map.without_first);
        match &cache.scale {
            Some((known, scale)) if *known == key => scale.clone(),
            _ => {
                let scale = Arc::new(Scale::fit(map.scale, map.values, map.per_row, map.without_first));
                cache.scale = Some((key, scale.clone()));
                scale
            }
        }
    }

    /// Paints the columns of `window` into `area`.
    pub fn paint(&self, ui: &Ui, painter: &Painter, area: Rect, map: &HeatMap<'_>, window: Window) {
        let scale = self.scale(map);
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pixels = pixels_across(ui, area);
        let key = Key {
            values: map.values.id(),
            columns: map.values.columns(),
            window,
            pixels,
            without_first: map.without_first,
            colours: map.colours,
            undefined: design::figure_theme(ui.theme()).palette().undefined,
            scale: (map.scale, map.per_row, map.limit),
        };
        if cache.key.as_ref() != Some(&key) {
            let image = draw(map, &scale, window, pixels, key.undefined);
            match &mut cache.texture {
                Some(texture) => texture.set(image, TextureOptions::NEAREST),
                None => {
                    cache.texture = Some(ui.ctx().load_texture("heat map", image, TextureOptions::NEAREST));
                }
            }
            cache.key = Some(key);
        }
        if let Some(texture) = &cache.texture {
            let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
            painter.image(texture.id(), area, whole, Color32::WHITE);
        }
    }
}

/// Pixels of a heat map across an area.
pub fn pixels_across(ui: &Ui, area: Rect) -> usize {
    let widest = ui.input(|input| input.max_texture_side);
    ((area.width() * ui.ctx().pixels_per_point()).round() as usize).clamp(1, widest)
}

/// One pixel a row, `pixels` wide.
fn draw(
    map: &HeatMap<'_>,
    scale: &Scale,
    window: Window,
    pixels: usize,
    undefined: [Colour; 2],
) -> ColorImage {
    let span = ColumnRange { start: window.start, end: window.end };
    let colours = layerscope_figures::pixels(
        map.values,
        scale,
        map.colours,
        span,
        pixels,
        map.without_first,
        undefined,
    );
    let rows = map.values.rows().max(1);
    ColorImage::new([pixels, rows], colours.into_iter().map(design::colour32).collect())
}
