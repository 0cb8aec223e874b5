//! Renders SVG to pixels without a graphics driver.

use eframe::egui::{FontData, FontDefinitions, FontFamily};
use layerscope_engine::{Error, Result};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query, Source};
use resvg::usvg::{Options, Tree};
use std::sync::{Arc, OnceLock};

/// Renders an SVG image as PNG at this many pixels per point.
///
/// # Errors
/// [`Error::Failure`] if it is not an SVG image, or if memory does not suffice.
pub fn png(svg: &str, pixels_per_point: f32) -> Result<Vec<u8>> {
    let failed =
        |error: &dyn std::fmt::Display| Error::failure(format!("the picture cannot be drawn: {error}"));
    let options = Options { fontdb: fonts(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| failed(&error))?;
    let [width, height] =
        [tree.size().width(), tree.size().height()].map(|points| (points * pixels_per_point).ceil() as u32);
    let mut pixels = Pixmap::new(width, height)
        .ok_or_else(|| failed(&format!("{width} × {height} pixels are too many")))?;
    let scale = Transform::from_scale(pixels_per_point, pixels_per_point);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(&error))
}

/// The system's fonts, and the window's fonts as fallback; read once.
fn fonts() -> Arc<Database> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let read = || {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        add_window_fonts(&mut fonts);
        Arc::new(fonts)
    };
    FONTS.get_or_init(read).clone()
}

fn add_window_fonts(fonts: &mut Database) {
    let mut window = FontDefinitions::default();
    let first = |window: &FontDefinitions, family| {
        window.families.get(&family).and_then(|names| names.first()).cloned()
    };
    let [text, figures] =
        [FontFamily::Proportional, FontFamily::Monospace].map(|family| first(&window, family));
    let lacks =
        |fonts: &Database, family| fonts.query(&Query { families: &[family], ..Query::default() }).is_none();
    let (no_text, no_figures) = (lacks(fonts, Family::SansSerif), lacks(fonts, Family::Monospace));
    for (name, data) in std::mem::take(&mut window.font_data) {
        let Some(family) = add(fonts, &data) else { continue };
        if no_text && text.as_ref() == Some(&name) {
            fonts.set_sans_serif_family(&family);
            // usvg's fallback if no requested family exists.
            fonts.set_serif_family(&family);
        }
        if no_figures && figures.as_ref() == Some(&name) {
            fonts.set_monospace_family(&family);
        }
    }
}

/// Adds a font; returns its family name.
fn add(fonts: &mut Database, data: &FontData) -> Option<String> {
    let ids = fonts.load_font_source(Source::Binary(data.font.clone()));
    let face = fonts.face(*ids.first()?)?;
    face.families.first().map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_drawn_where_the_system_has_no_fonts() {
        let mut fonts = Database::new();
        add_window_fonts(&mut fonts);
        for family in [Family::SansSerif, Family::Serif, Family::Monospace] {
            assert!(fonts.query(&Query { families: &[family], ..Query::default() }).is_some(), "{family:?}");
        }
        let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"40\" height=\"20\" \
                   font-family=\"system-ui, sans-serif\"><text x=\"2\" y=\"15\">layer</text></svg>";
        let tree = Tree::from_str(svg, &options).expect("SVG");
        let mut pixels = Pixmap::new(40, 20).expect("pixels");
        resvg::render(&tree, Transform::identity(), &mut pixels.as_mut());
        assert!(pixels.pixels().iter().any(|pixel| pixel.alpha() > 200));
    }

    #[test]
    fn a_picture_has_its_pixels_and_colours() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"30\" height=\"20\">\
                   <rect width=\"30\" height=\"20\" fill=\"#0072b2\"/></svg>";
        let image = image::load_from_memory(&png(svg, 2.0).expect("a picture")).expect("PNG").to_rgba8();
        assert_eq!((image.dimensions(), image.get_pixel(59, 39).0), ((60, 40), [0, 0x72, 0xb2, 255]));
        assert!(png("<svg", 2.0).is_err());
    }
}
