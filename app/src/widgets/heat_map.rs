//! Layers × columns as one texture of the size of the screen's area, whatever the number of columns.

use crate::data::{Pyramid, Scale, ScaleKind};
use crate::design::{self, ColourMap};
use crate::state::Window;
use eframe::egui::{Color32, ColorImage, Id, Painter, Rect, TextureHandle, TextureOptions, Ui, pos2};
use std::sync::{Arc, Mutex, PoisonError};

/// Pixels of one stripe of an undefined cell.
const STRIPE: usize = 3;

/// How a pyramid is coloured.
#[derive(Debug, Clone, Copy)]
pub struct HeatMap<'a> {
    /// Values, a row for each layer.
    pub values: &'a Pyramid,
    /// How values are laid out along the colours.
    pub scale: ScaleKind,
    /// The colours.
    pub colours: ColourMap,
    /// Whether each layer has a scale of its own.
    pub per_row: bool,
    /// Whether the first column is left out.
    pub without_first: bool,
}

/// What the image of a heat map depends on.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    values: u64,
    columns: usize,
    window: Window,
    pixels: usize,
    without_first: bool,
    colours: ColourMap,
    undefined: [Color32; 2],
    scale: (ScaleKind, bool),
}

#[derive(Default)]
struct Cache {
    key: Option<Key>,
    texture: Option<TextureHandle>,
    scale: Option<(ScaleKey, Arc<Scale>)>,
}

/// What a fitted scale depends on: values, columns, kind, whether per row, whether without the first column.
type ScaleKey = (u64, usize, ScaleKind, bool, bool);

/// A heat map's image, kept from frame to frame until something changes.
#[derive(Clone, Default)]
pub struct HeatMapImage(Arc<Mutex<Cache>>);

impl HeatMapImage {
    /// The image kept under an id of the context.
    pub fn of(ui: &Ui, id: Id) -> Self {
        ui.data_mut(|data| data.get_temp_mut_or_default::<Self>(id).clone())
    }

    /// The scale fitted to a map's values.
    pub fn scale(&self, map: &HeatMap<'_>) -> Arc<Scale> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // While columns stream in, percentiles are fitted anew only now and then.
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
        let widest = ui.input(|input| input.max_texture_side);
        let pixels = ((area.width() * ui.ctx().pixels_per_point()).round() as usize).clamp(1, widest);
        let key = Key {
            values: map.values.id(),
            columns: map.values.columns(),
            window,
            pixels,
            without_first: map.without_first,
            colours: map.colours,
            undefined: design::palette(ui).undefined,
            scale: (map.scale, map.per_row),
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

/// One pixel a row, `pixels` wide: each pixel column shows the largest of the columns beneath it.
fn draw(
    map: &HeatMap<'_>,
    scale: &Scale,
    window: Window,
    pixels: usize,
    undefined: [Color32; 2],
) -> ColorImage {
    let rows = map.values.rows().max(1);
    let colours = map.colours.colours();
    let mut image = ColorImage::filled([pixels, rows], Color32::TRANSPARENT);
    let mut largest = vec![f32::NAN; rows];
    let mut previous = usize::MAX..usize::MAX;
    let per_pixel = window.width() / pixels as f64;
    for pixel in 0..pixels {
        let start = window.start + pixel as f64 * per_pixel;
        let first = start.max(0.0) as usize;
        let mut columns = first..((start + per_pixel).ceil().max(0.0) as usize).max(first + 1);
        if per_pixel < 1.0 {
            // Zoomed in, a pixel belongs to the one column that its middle is in.
            let column = (start + per_pixel / 2.0).max(0.0) as usize;
            columns = column..column + 1;
        }
        if map.without_first {
            columns.start = columns.start.max(1);
        }
        if columns != previous {
            if columns.is_empty() {
                largest.fill(f32::NAN);
            } else {
                map.values.max_over(columns.clone(), &mut largest);
                if map.without_first && columns.start < 8 {
                    // Near the edge, groups would bring the column back that is left out.
                    exact(map.values, columns.clone(), &mut largest);
                }
            }
            previous = columns;
        }
        let stripe = undefined[(pixel / STRIPE) % 2];
        for (row, &value) in largest.iter().enumerate() {
            let position = scale.position(row, value);
            image.pixels[row * pixels + pixel] =
                if position.is_nan() { stripe } else { colours[(position * 255.0) as usize] };
        }
    }
    image
}

fn exact(values: &Pyramid, columns: std::ops::Range<usize>, largest: &mut [f32]) {
    largest.fill(f32::NAN);
    // The first pixels of a zoomed-out map stand for many columns; a bounded number of them is enough to draw from.
    for column in columns {
        for (largest, &value) in largest.iter_mut().zip(values.column(column)) {
            *largest = largest.max(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(map: &HeatMap<'_>, window: Window, pixels: usize) -> ColorImage {
        let scale = Scale::fit(map.scale, map.values, map.per_row, map.without_first);
        draw(map, &scale, window, pixels, [Color32::RED, Color32::BLUE])
    }

    fn map(values: &Pyramid) -> HeatMap<'_> {
        HeatMap {
            values,
            scale: ScaleKind::Linear,
            colours: ColourMap::Viridis,
            per_row: false,
            without_first: true,
        }
    }

    #[test]
    fn a_hot_column_stays_visible_at_every_zoom_and_bos_does_not_hide_it() {
        let (columns, hot) = (131_072, 77_777);
        let mut values = vec![0.001; 2 * columns];
        (values[0], values[columns]) = (0.9, 0.9);
        values[columns + hot] = 0.5;
        let pyramid = Pyramid::from_rows(&values, 2, columns);
        let brightest = ColourMap::Viridis.colours()[255];
        let mut window = Window::all(columns);
        for _ in 0..40 {
            let image = image(&map(&pyramid), window, 997);
            let bright = image.pixels[997..].iter().filter(|pixel| **pixel == brightest).count();
            assert!(bright >= 1, "{window:?}");
            assert!(image.pixels[..997].iter().all(|pixel| *pixel != brightest));
            window = window.zoomed(1.3, hot as f64 + 0.5, columns);
        }
    }

    #[test]
    fn undefined_cells_are_striped() {
        let pyramid = Pyramid::from_rows(&[1.0, f32::NAN, 1.0, 1.0], 1, 4);
        let image = image(&map(&pyramid), Window::all(4), 40);
        assert!(image.pixels[..20].iter().all(|pixel| [Color32::RED, Color32::BLUE].contains(pixel)));
        assert!(image.pixels[20..].iter().all(|pixel| *pixel == ColourMap::Viridis.colours()[255]));
    }
}
