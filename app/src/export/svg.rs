//! A drawing as SVG 1.1: shapes as shapes, text as text, textures as embedded PNG.

use super::drawing::{Drawing, Texture};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eframe::egui::epaint::{
    CircleShape, CubicBezierShape, EllipseShape, Mesh, PathShape, PathStroke, QuadraticBezierShape,
    RectShape, Shape, StrokeKind, TextShape, TextureId, color::ColorMode,
};
use eframe::egui::text::TextFormat;
use eframe::egui::{Color32, FontFamily, Pos2, Rect, Stroke, TextureFilter, Vec2, pos2};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::io::Cursor;

/// Faces that look like those on the screen, then whatever there is.
const PROPORTIONAL: &str = "Ubuntu, 'Helvetica Neue', Arial, sans-serif";
const MONOSPACE: &str = "Hack, 'DejaVu Sans Mono', Menlo, monospace";

/// Draws `drawing` upon a colour.
pub(super) fn svg(drawing: &Drawing, background: Color32) -> String {
    let mut writer = Writer { body: String::new(), clips: vec![], textures: &drawing.textures };
    let all = Rect::from_min_size(Pos2::ZERO, drawing.size);
    writer.rect(all, 0.0, &paint(background, Stroke::NONE));
    for clipped in &drawing.shapes {
        writer.clipped(clipped.clip_rect.intersect(all), all, &clipped.shape);
    }
    let mut clips = String::new();
    for (index, clip) in writer.clips.iter().enumerate() {
        let _ = write!(clips, "<clipPath id=\"c{index}\"><rect {}/></clipPath>", place(*clip));
    }
    let Vec2 { x: width, y: height } = drawing.size;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n<defs>{clips}</defs>\n{}</svg>\n",
        writer.body
    )
}

struct Writer<'a> {
    body: String,
    clips: Vec<Rect>,
    textures: &'a BTreeMap<TextureId, Texture>,
}

impl Writer<'_> {
    /// A shape within a clip; what lies inside anyway is not clipped.
    fn clipped(&mut self, clip: Rect, all: Rect, shape: &Shape) {
        let bounds = shape.visual_bounding_rect();
        if !clip.is_positive() || (bounds.is_finite() && !bounds.intersects(clip)) {
            return;
        }
        if clip == all || clip.contains_rect(bounds) {
            return self.shape(shape);
        }
        let index = self.clips.iter().position(|known| *known == clip).unwrap_or_else(|| {
            self.clips.push(clip);
            self.clips.len() - 1
        });
        let before = self.body.len();
        self.line(format_args!("<g clip-path=\"url(#c{index})\">"));
        let opened = self.body.len();
        self.shape(shape);
        if self.body.len() == opened {
            self.body.truncate(before);
        } else {
            self.line("</g>");
        }
    }

    fn line(&mut self, line: impl Display) {
        let _ = writeln!(self.body, "{line}");
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Noop | Shape::Callback(_) => {}
            Shape::Vec(shapes) => shapes.iter().for_each(|shape| self.shape(shape)),
            Shape::Circle(CircleShape { center, radius, fill, stroke }) => {
                let paint = paint(*fill, *stroke);
                self.line(format_args!(
                    "<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{paint}/>",
                    number(center.x),
                    number(center.y),
                    number(*radius)
                ));
            }
            Shape::Ellipse(ellipse) => self.ellipse(ellipse),
            Shape::LineSegment { points, stroke } => {
                self.polyline(points, false, &paint(Color32::TRANSPARENT, *stroke))
            }
            Shape::Path(PathShape { points, closed, fill, stroke }) => {
                self.polyline(points, *closed, &paint(*fill, plain(stroke)));
            }
            Shape::Band(band) => {
                let upper = band.points.iter().map(|point| pos2(point.x, point.y.min));
                let lower = band.points.iter().rev().map(|point| pos2(point.x, point.y.max));
                let outline: Vec<Pos2> = upper.chain(lower).collect();
                self.polyline(&outline, true, &paint(band.fill, band.stroke));
            }
            Shape::Rect(rect) => self.rect_shape(rect),
            Shape::Text(text) => self.text(text),
            Shape::Mesh(mesh) => self.mesh(mesh),
            Shape::QuadraticBezier(QuadraticBezierShape { points: [a, b, c], fill, stroke, .. }) => {
                let path = format!("M{} Q{} {}", point(*a), point(*b), point(*c));
                self.line(format_args!("<path d=\"{path}\"{}/>", paint(*fill, plain(stroke))));
            }
            Shape::CubicBezier(CubicBezierShape { points: [a, b, c, d], fill, stroke, .. }) => {
                let path = format!("M{} C{} {} {}", point(*a), point(*b), point(*c), point(*d));
                self.line(format_args!("<path d=\"{path}\"{}/>", paint(*fill, plain(stroke))));
            }
        }
    }

    fn ellipse(&mut self, ellipse: &EllipseShape) {
        let EllipseShape { center, radius, fill, stroke, angle } = *ellipse;
        let (x, y) = (number(center.x), number(center.y));
        self.line(format_args!(
            "<ellipse cx=\"{x}\" cy=\"{y}\" rx=\"{}\" ry=\"{}\" transform=\"rotate({} {x} {y})\"{}/>",
            number(radius.x),
            number(radius.y),
            number(angle.to_degrees()),
            paint(fill, stroke)
        ));
    }

    fn polyline(&mut self, points: &[Pos2], closed: bool, paint: &str) {
        if points.len() < 2 || paint.is_empty() {
            return;
        }
        let points: Vec<String> = points.iter().map(|at| point(*at)).collect();
        let element = if closed { "polygon" } else { "polyline" };
        self.line(format_args!("<{element} points=\"{}\"{paint}/>", points.join(" ")));
    }

    fn rect(&mut self, rect: Rect, radius: f32, paint: &str) {
        if rect.is_negative() || paint.is_empty() {
            return;
        }
        let rounded = if radius > 0.0 { format!(" rx=\"{}\"", number(radius)) } else { String::new() };
        self.line(format_args!("<rect {}{rounded}{paint}/>", place(rect)));
    }

    fn rect_shape(&mut self, shape: &RectShape) {
        if let Some(brush) = &shape.brush {
            return self.image(shape.rect, brush.uv, brush.fill_texture_id);
        }
        // A blurred rectangle is a shadow, which pictures do without.
        if shape.blur_width > 0.0 {
            return;
        }
        let radius = f32::from(shape.corner_radius.nw);
        self.rect(shape.rect, radius, &paint(shape.fill, Stroke::NONE));
        let half = shape.stroke.width / 2.0;
        let outline = match shape.stroke_kind {
            StrokeKind::Inside => shape.rect.shrink(half),
            StrokeKind::Middle => shape.rect,
            StrokeKind::Outside => shape.rect.expand(half),
        };
        self.rect(outline, radius, &paint(Color32::TRANSPARENT, shape.stroke));
    }

    /// A part of a texture, as an embedded PNG.
    fn image(&mut self, rect: Rect, uv: Rect, id: TextureId) {
        let Some(texture) = self.textures.get(&id) else { return };
        let [width, height] = texture.image.size;
        let at = |share: f32, size: usize| ((share * size as f32).round().max(0.0) as usize).min(size);
        let (left, right) = (at(uv.left(), width), at(uv.right(), width));
        let (top, bottom) = (at(uv.top(), height), at(uv.bottom(), height));
        let sharp = texture.options.magnification == TextureFilter::Nearest;
        // Programs that smooth every picture they enlarge are given sharp edges to begin with.
        let repeated = |points: f32, pixels: usize| {
            if sharp { (2.0 * points / pixels as f32).ceil().max(1.0) } else { 1.0 }
        };
        let (columns, rows) = (right.saturating_sub(left), bottom.saturating_sub(top));
        let (wide, high) = (repeated(rect.width(), columns) as usize, repeated(rect.height(), rows) as usize);
        let part = image::RgbaImage::from_fn((columns * wide) as u32, (rows * high) as u32, |x, y| {
            let pixel = texture.image.pixels[(top + y as usize / high) * width + left + x as usize / wide];
            image::Rgba(pixel.to_srgba_unmultiplied())
        });
        let mut png = Cursor::new(vec![]);
        // Writing into memory fails for no size that a texture can have but none.
        if part.write_to(&mut png, image::ImageFormat::Png).is_err() {
            return;
        }
        let rendering = if sharp { " style=\"image-rendering:pixelated\"" } else { "" };
        self.line(format_args!(
            "<image {} preserveAspectRatio=\"none\"{rendering} xlink:href=\"data:image/png;base64,{}\"/>",
            place(rect),
            BASE64_STANDARD.encode(png.into_inner())
        ));
    }

    fn mesh(&mut self, mesh: &Mesh) {
        if mesh.texture_id != TextureId::default() {
            let uv = Rect::from_points(&mesh.vertices.iter().map(|vertex| vertex.uv).collect::<Vec<_>>());
            return self.image(mesh.calc_bounds(), uv, mesh.texture_id);
        }
        // Two triangles that make up a rectangle of one colour are one.
        let mut triangles = mesh.indices.chunks_exact(3).peekable();
        while let Some(triangle) = triangles.next() {
            let corners = |indices: &[u32]| {
                indices.iter().map(|index| mesh.vertices[*index as usize]).collect::<Vec<_>>()
            };
            let first = corners(triangle);
            let colour = first[0].color;
            let pair: Vec<Pos2> = first.iter().map(|vertex| vertex.pos).collect();
            let bounds = Rect::from_points(&pair);
            let completes = triangles.peek().is_some_and(|next| {
                let next = corners(next);
                let corner = |at: Pos2| {
                    [bounds.min, bounds.max, bounds.left_bottom(), bounds.right_top()].contains(&at)
                };
                next.iter().all(|vertex| corner(vertex.pos) && vertex.color == colour)
                    && pair.iter().all(|at| corner(*at))
            });
            if completes {
                triangles.next();
                self.rect(bounds, 0.0, &paint(colour, Stroke::NONE));
            } else {
                self.polyline(&pair, true, &paint(colour, Stroke::NONE));
            }
        }
    }

    /// Each stretch of one format in a line is one `<text>`, stretched to the width that it has on the screen, so that
    /// another face does not run into its neighbour.
    fn text(&mut self, shape: &TextShape) {
        let job = &shape.galley.job;
        let turned = if shape.angle == 0.0 {
            String::new()
        } else {
            let (angle, x, y) = (number(shape.angle.to_degrees()), number(shape.pos.x), number(shape.pos.y));
            format!(" transform=\"rotate({angle} {x} {y})\"")
        };
        let mut byte = 0;
        for row in &shape.galley.rows {
            let mut run = Run::default();
            for glyph in &row.row.glyphs {
                let length = glyph.chr.len_utf8();
                let section = job.sections.iter().position(|section| {
                    let range = &section.byte_range;
                    (range.start.0..range.end.0).contains(&byte)
                });
                byte += length;
                if section != run.section {
                    self.run(shape, &turned, std::mem::take(&mut run));
                    run.section = section;
                }
                if run.text.is_empty() {
                    run.left = shape.pos.x + row.pos.x + glyph.pos.x;
                    run.baseline = shape.pos.y + row.pos.y + glyph.pos.y;
                }
                run.right = shape.pos.x + row.pos.x + glyph.pos.x + glyph.advance_width;
                run.text.push(glyph.chr);
            }
            self.run(shape, &turned, run);
            byte += usize::from(row.ends_with_newline);
        }
    }

    fn run(&mut self, shape: &TextShape, turned: &str, run: Run) {
        let (Some(section), false) = (run.section, run.text.trim().is_empty()) else { return };
        let TextFormat { font_id, color, background, .. } = &shape.galley.job.sections[section].format;
        let colour = match shape.override_text_color {
            Some(colour) => colour,
            None if *color == Color32::PLACEHOLDER => shape.fallback_color,
            None => *color,
        };
        let family = if font_id.family == FontFamily::Monospace { MONOSPACE } else { PROPORTIONAL };
        if *background != Color32::TRANSPARENT {
            let top = run.baseline - font_id.size;
            let behind =
                Rect::from_min_max(pos2(run.left, top), pos2(run.right, run.baseline + font_id.size * 0.3));
            self.rect(behind, 0.0, &paint(*background, Stroke::NONE));
        }
        self.line(format_args!(
            "<text x=\"{}\" y=\"{}\" font-family=\"{family}\" font-size=\"{}\" textLength=\"{}\" \
             lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\"{}{turned}>{}</text>",
            number(run.left),
            number(run.baseline),
            number(font_id.size),
            number(run.right - run.left),
            paint(colour.gamma_multiply(shape.opacity_factor), Stroke::NONE),
            escaped(&run.text)
        ));
    }
}

/// Characters of one format in one line.
#[derive(Default)]
struct Run {
    section: Option<usize>,
    text: String,
    left: f32,
    right: f32,
    baseline: f32,
}

/// A stroke of one colour; of one that varies, none is drawn here.
fn plain(stroke: &PathStroke) -> Stroke {
    match stroke.color {
        ColorMode::Solid(colour) => Stroke::new(stroke.width, colour),
        ColorMode::UV(_) => Stroke::NONE,
    }
}

/// Attributes of fill and stroke; empty where there is neither.
fn paint(fill: Color32, stroke: Stroke) -> String {
    let stroked = !stroke.is_empty() && stroke.color != Color32::TRANSPARENT;
    if fill == Color32::TRANSPARENT && !stroked {
        return String::new();
    }
    let mut attributes = colour("fill", fill);
    if stroked {
        attributes += &colour("stroke", stroke.color);
        let _ = write!(attributes, " stroke-width=\"{}\"", number(stroke.width));
    }
    attributes
}

fn colour(attribute: &str, colour: Color32) -> String {
    if colour == Color32::TRANSPARENT {
        return format!(" {attribute}=\"none\"");
    }
    let [r, g, b, a] = colour.to_srgba_unmultiplied();
    let opacity = match a {
        255 => String::new(),
        _ => format!(" {attribute}-opacity=\"{}\"", number(f32::from(a) / 255.0)),
    };
    format!(" {attribute}=\"#{r:02x}{g:02x}{b:02x}\"{opacity}")
}

fn place(rect: Rect) -> String {
    let (x, y) = (number(rect.left()), number(rect.top()));
    format!("x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"", number(rect.width()), number(rect.height()))
}

fn point(at: Pos2) -> String {
    format!("{},{}", number(at.x), number(at.y))
}

/// At most two decimals.
fn number(value: f32) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Text as XML may hold it: control characters are left out, which XML has no way to write.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design;
    use eframe::egui::{ColorImage, Context, Label, RichText, Sense, TextureOptions, vec2};

    fn sample() -> Drawing {
        let ctx = Context::default();
        design::apply(&ctx);
        Drawing::of(ctx, vec2(200.0, 120.0), 2.0, 2, |ui| {
            ui.add(Label::new(RichText::new("a < b & \"c\"").monospace()));
            let (rect, _) = ui.allocate_exact_size(vec2(40.0, 20.0), Sense::hover());
            ui.painter().rect_filled(rect, 0.0, Color32::from_rgb(0, 114, 178));
            ui.painter().line_segment([rect.min, rect.max], Stroke::new(1.0, Color32::RED));
            crate::widgets::axis::vertical_name(
                ui.painter(),
                design::palette(ui),
                pos2(150.0, 60.0),
                "layer",
            );
            let image = ColorImage::new([2, 1], vec![Color32::RED, Color32::BLUE]);
            let texture = ui.ctx().load_texture("two", image, TextureOptions::NEAREST);
            let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
            let place = Rect::from_min_size(pos2(10.0, 80.0), vec2(40.0, 20.0));
            ui.painter().image(texture.id(), place, whole, Color32::WHITE);
        })
    }

    #[test]
    fn text_shapes_and_textures_are_in_the_svg() {
        let svg = sample().to_svg(Color32::WHITE);
        for part in [
            ">a &lt; b &amp; &quot;c&quot;</text>",
            "fill=\"#0072b2\"",
            "rotate(-90",
            ">layer</text>",
            "<image x=\"10\" y=\"80\" width=\"40\" height=\"20\"",
            "image-rendering:pixelated",
            "data:image/png;base64,",
        ] {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        let opened = svg.matches("<g ").count();
        assert_eq!(opened, svg.matches("</g>").count());
        assert_eq!(svg, sample().to_svg(Color32::WHITE), "the same drawing, the same file");
    }

    #[test]
    fn pixels_have_the_colours_drawn() {
        let png = sample().to_png(Color32::WHITE).expect("a graphics driver, in software will do");
        let picture = image::load_from_memory(&png).expect("a PNG").to_rgba8();
        assert_eq!(picture.dimensions(), (400, 240));
        assert_eq!(picture.get_pixel(398, 238).0, [255, 255, 255, 255]);
        assert_eq!(picture.get_pixel(30, 180).0, [255, 0, 0, 255]);
        assert_eq!(picture.get_pixel(90, 180).0, [0, 0, 255, 255]);
    }
}
