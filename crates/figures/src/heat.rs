//! What heat maps share: cells, images of them, the bar of their colours.

use crate::colour::{Colour, ColourMap, Ink, Theme};
use crate::scale::Scale;
use crate::svg::{Colours, Pen, SMALL, Svg, TextAnchor, number, text_width};
use base64::{Engine, prelude::BASE64_STANDARD};
use png::{ColorType, Compression, Encoder, Filter};

/// A filled rectangle.
pub(crate) fn cell(svg: &mut Svg, place: [f64; 4], fill: &str) {
    let [x, y, width, height] = place.map(number);
    svg.raw(format_args!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
    ));
}

/// Images cannot use CSS custom properties: on pages with both themes, stripes have the light theme's
/// colours.
pub(crate) fn undefined(colours: Colours) -> [Colour; 2] {
    match colours {
        Colours::Of(theme) => theme.palette().undefined,
        Colours::Properties => Theme::Light.palette().undefined,
    }
}

/// A bar of the scale's colours with its ticks: left, top, width and height.
pub(crate) fn scale_bar(svg: &mut Svg, place: [f64; 4], colours: ColourMap, scale: &Scale) {
    let [left, top, width, height] = place;
    let colours = colours.colours();
    const STEPS: usize = 64;
    let step = width / STEPS as f64;
    for index in 0..STEPS {
        let colour = colours[index * 255 / (STEPS - 1)];
        // Slightly wider, so that no gap is visible between two.
        cell(svg, [left + index as f64 * step, top, step + 0.5, height], &colour.to_string());
    }
    svg.frame(place, Pen::new(Ink::Line, 1.0));
    let mut free_from = f64::NEG_INFINITY;
    for (position, text) in scale.ticks() {
        let half = text_width(&text, SMALL) / 2.0;
        let x = left + f64::from(position) * width;
        if x - half >= free_from {
            svg.line([x, top + height], [x, top + height + 3.0], Pen::new(Ink::Line, 1.0));
            svg.text([x, top + height + 14.0], TextAnchor::Middle, Ink::WeakText, &text);
            free_from = x + half + 6.0;
        }
    }
}

/// A sample of stripes and what they mean: left, top and height.
pub(crate) fn striped(svg: &mut Svg, colours: Colours, [left, top, height]: [f64; 3], meaning: &str) {
    let stripes = undefined(colours);
    for (index, colour) in [0, 1, 0, 1].map(|stripe| stripes[stripe]).iter().enumerate() {
        cell(svg, [left + 4.0 * index as f64, top, 4.0, height], &colour.to_string());
    }
    svg.text([left + 21.0, top + height], TextAnchor::Start, Ink::WeakText, meaning);
}

/// Pixels, row by row, as an image over an area.
pub(crate) fn image(svg: &mut Svg, area: [f64; 4], pixels: &[Colour], [columns, rows]: [usize; 2]) {
    let png = png(pixels, columns, rows);
    let [x, y, width, height] = area.map(number);
    svg.raw(format_args!(
        "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
         image-rendering=\"optimizeSpeed\" style=\"image-rendering:pixelated\" \
         href=\"data:image/png;base64,{png}\"/>"
    ));
}

/// Pixels as PNG in Base64.
fn png(pixels: &[Colour], width: usize, height: usize) -> String {
    let bytes: Vec<u8> = pixels.iter().flat_map(|colour| colour.rgb).collect();
    let mut png = vec![];
    let mut encoder = Encoder::new(&mut png, width as u32, height as u32);
    encoder.set_color(ColorType::Rgb);
    encoder.set_compression(Compression::Fast);
    encoder.set_filter(Filter::Adaptive);
    // Encoding into memory with matching sizes does not fail; if it did, the image would be empty.
    let _ = encoder.write_header().and_then(|mut writer| writer.write_image_data(&bytes));
    BASE64_STANDARD.encode(png)
}
