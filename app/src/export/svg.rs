//! A drawing as SVG 1.1: shapes as shapes, text as text, textures as embedded PNG.

mod attributes;
mod mesh;
mod text;

use super::drawing::{Drawing, Texture};
use attributes::{number, paint, place, point, points, rounded, turned};
use eframe::egui::emath::Rot2;
use eframe::egui::epaint::{
    BandPoint, BandShape, CircleShape, CornerRadiusF32, CubicBezierShape, EllipseShape, PathShape,
    PathStroke, QuadraticBezierShape, RectShape, Shape, StrokeKind, TextureId, color::ColorMode,
};
use eframe::egui::{Color32, Pos2, Rect, Stroke, Vec2, pos2};
use mesh::Placement;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// Draws `drawing` on a background colour.
pub(super) fn svg(drawing: &Drawing, background: Color32) -> String {
    let mut writer = Writer { body: String::new(), definitions: vec![], textures: &drawing.textures };
    let all = Rect::from_min_size(Pos2::ZERO, drawing.size);
    writer.rect(all, CornerRadiusF32::ZERO, "", &paint(background, Stroke::NONE));
    for clipped in &drawing.shapes {
        writer.clipped(clipped.clip_rect.intersect(all), all, &clipped.shape);
    }
    let mut definitions = String::new();
    for (index, Definition { element, attributes, content }) in writer.definitions.iter().enumerate() {
        let _ = write!(definitions, "<{element} id=\"d{index}\"{attributes}>{content}</{element}>");
    }
    let Vec2 { x: width, y: height } = drawing.size;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n<defs>{definitions}</defs>\n{}</svg>\n",
        writer.body
    )
}

struct Writer<'a> {
    body: String,
    definitions: Vec<Definition>,
    textures: &'a BTreeMap<TextureId, Texture>,
}

/// A definition that shapes refer to: a clip, a gradient, a blur.
#[derive(PartialEq)]
struct Definition {
    element: &'static str,
    attributes: String,
    content: String,
}

impl Writer<'_> {
    /// The number of a definition; equal definitions are written once.
    fn define(&mut self, element: &'static str, attributes: &str, content: String) -> usize {
        let definition = Definition { element, attributes: attributes.into(), content };
        self.definitions.iter().position(|known| *known == definition).unwrap_or_else(|| {
            self.definitions.push(definition);
            self.definitions.len() - 1
        })
    }

    /// A clipped shape; shapes fully inside need no clip.
    fn clipped(&mut self, clip: Rect, all: Rect, shape: &Shape) {
        let bounds = shape.visual_bounding_rect();
        if !clip.is_positive() || (bounds.is_finite() && !bounds.intersects(clip)) {
            return;
        }
        if clip == all || clip.contains_rect(bounds) {
            return self.shape(shape);
        }
        let (before, known) = (self.body.len(), self.definitions.len());
        let index = self.define("clipPath", "", format!("<rect {}/>", place(clip)));
        self.line(format_args!("<g clip-path=\"url(#d{index})\">"));
        let opened = self.body.len();
        self.shape(shape);
        if self.body.len() == opened {
            self.body.truncate(before);
            self.definitions.truncate(known);
        } else {
            self.line("</g>");
        }
    }

    fn line(&mut self, line: impl Display) {
        let _ = writeln!(self.body, "{line}");
    }

    /// An element of a name and geometry; omitted without paint, because SVG's default is black.
    fn element(&mut self, geometry: impl Display, paint: &str) {
        if !paint.is_empty() {
            self.line(format_args!("<{geometry}{paint}/>"));
        }
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Noop | Shape::Callback(_) => {}
            Shape::Vec(shapes) => shapes.iter().for_each(|shape| self.shape(shape)),
            Shape::Circle(CircleShape { center, radius, fill, stroke }) => {
                // egui draws the outlines of circles outside.
                let (x, y, r) = (number(center.x), number(center.y), number(radius + 0.5 * stroke.width));
                let circle = format!("circle cx=\"{x}\" cy=\"{y}\" r=\"{r}\"");
                self.element(circle, &paint(*fill, *stroke));
            }
            Shape::Ellipse(ellipse) => self.ellipse(ellipse),
            Shape::LineSegment { points, stroke } => {
                self.polyline(points, false, &paint(Color32::TRANSPARENT, *stroke));
            }
            Shape::Path(path) => self.path(path),
            Shape::Band(band) => self.band(band),
            Shape::Rect(rect) => self.rect_shape(rect),
            Shape::Text(text) => self.text(text),
            Shape::Mesh(mesh) => self.mesh(mesh),
            Shape::QuadraticBezier(QuadraticBezierShape { points: [a, b, c], closed, fill, stroke }) => {
                self.curve(format!("M{} Q{} {}", point(*a), point(*b), point(*c)), *closed, *fill, stroke);
            }
            Shape::CubicBezier(CubicBezierShape { points: [a, b, c, d], closed, fill, stroke }) => {
                let path = format!("M{} C{} {} {}", point(*a), point(*b), point(*c), point(*d));
                self.curve(path, *closed, *fill, stroke);
            }
        }
    }

    fn ellipse(&mut self, ellipse: &EllipseShape) {
        let EllipseShape { center, radius, fill, stroke, angle } = *ellipse;
        let geometry = format!(
            "ellipse cx=\"{}\" cy=\"{}\" rx=\"{}\" ry=\"{}\"{}",
            number(center.x),
            number(center.y),
            number(radius.x + 0.5 * stroke.width),
            number(radius.y + 0.5 * stroke.width),
            turned(angle, center)
        );
        self.element(geometry, &paint(fill, stroke));
    }

    fn curve(&mut self, mut path: String, closed: bool, fill: Color32, stroke: &PathStroke) {
        if closed {
            path.push('Z');
        }
        self.element(format_args!("path d=\"{path}\""), &paint(fill, plain(stroke)));
    }

    fn path(&mut self, PathShape { points, closed, fill, stroke }: &PathShape) {
        self.polyline(points, *closed, &paint(*fill, plain(stroke)));
        // A varying colour is constant per segment.
        let ColorMode::UV(colour_at) = &stroke.color else { return };
        let bounds = Rect::from_points(points).expand(stroke.width * 0.5);
        let last = points.last().zip(points.first()).filter(|_| *closed);
        let pieces = points.iter().zip(points.iter().skip(1)).chain(last);
        for (from, to) in pieces {
            let stroke = Stroke::new(stroke.width, colour_at(bounds, from.lerp(*to, 0.5)));
            // Round ends leave no gap between segments at an angle.
            let paint = paint(Color32::TRANSPARENT, stroke);
            let round = if paint.is_empty() { "" } else { " stroke-linecap=\"round\"" };
            self.polyline(&[*from, *to], false, &(paint + round));
        }
    }

    fn band(&mut self, BandShape { points, fill, stroke, stroke_kind, angle }: &BandShape) {
        let outside = match stroke_kind {
            StrokeKind::Inside => -0.5,
            StrokeKind::Middle => 0.0,
            StrokeKind::Outside => 0.5,
        } * stroke.width;
        let rotation = Rot2::from_angle(*angle);
        let turned = |x: f32, y: f32| (rotation * pos2(x, y).to_vec2()).to_pos2();
        // An undefined point splits the band.
        let is_gap = |point: &BandPoint| !point.is_finite() || point.y.min > point.y.max;
        for run in points.split(is_gap) {
            let half = |point: &BandPoint| (0.5 * point.y.span() + outside).max(0.0);
            let upper = run.iter().map(|point| turned(point.x, point.y.center() - half(point)));
            let lower = run.iter().rev().map(|point| turned(point.x, point.y.center() + half(point)));
            let outline: Vec<Pos2> = upper.chain(lower).collect();
            self.polyline(&outline, true, &paint(*fill, *stroke));
        }
    }

    fn polyline(&mut self, corners: &[Pos2], closed: bool, paint: &str) {
        if corners.len() < 2 || corners.iter().any(|corner| corner.any_nan()) {
            return;
        }
        let element = if closed { "polygon" } else { "polyline" };
        self.element(format_args!("{element} points=\"{}\"", points(corners)), paint);
    }

    /// A rectangle; `more` are further attributes.
    fn rect(&mut self, rect: Rect, radii: CornerRadiusF32, more: &str, paint: &str) {
        if rect.is_positive() {
            self.element(format_args!("{}{more}", rounded(rect, radii)), paint);
        }
    }

    fn rect_shape(&mut self, shape: &RectShape) {
        let RectShape { rect, fill, stroke, stroke_kind, angle, .. } = *shape;
        let radii = CornerRadiusF32::from(shape.corner_radius);
        let turned = turned(angle, rect.center());
        let more = format!("{turned}{}", self.blur(shape.blur_width));
        let outside = match stroke_kind {
            StrokeKind::Inside => 0.0,
            StrokeKind::Middle => 0.5 * stroke.width,
            StrokeKind::Outside => stroke.width,
        };
        let outer = rect.expand(outside);
        if !stroke.is_empty() && outer.size().min_elem() <= 2.0 * stroke.width {
            // The stroke covers the fill.
            return self.rect(outer, grown(radii, outside), &more, &paint(stroke.color, Stroke::NONE));
        }
        match &shape.brush {
            Some(brush) if brush.uv.is_positive() => {
                let bare = radii == CornerRadiusF32::ZERO;
                let clip = if bare { String::new() } else { format!("<{}{turned}/>", rounded(rect, radii)) };
                let placement = Placement::of(rect).turned(angle, rect.center());
                self.image(brush.fill_texture_id, brush.uv, placement, fill, clip);
            }
            _ => {
                // The fill must not be visible through the stroke.
                let inner = if stroke.color.is_opaque() { 0.0 } else { outside - stroke.width };
                let radii = grown(radii, inner);
                self.rect(rect.expand(inner), radii, &more, &paint(fill, Stroke::NONE));
            }
        }
        let middle = outside - 0.5 * stroke.width;
        let outline = paint(Color32::TRANSPARENT, stroke);
        self.rect(rect.expand(middle), grown(radii, middle), &more, &outline);
    }

    /// The attribute that blurs edges over a width, points.
    fn blur(&mut self, width: f32) -> String {
        if width <= 0.0 {
            return String::new();
        }
        // The standard deviation of a ramp is its width divided by √12.
        let content = format!("<feGaussianBlur stdDeviation=\"{}\"/>", number(width / 12.0_f32.sqrt()));
        let room = " x=\"-1\" y=\"-1\" width=\"3\" height=\"3\"";
        format!(" filter=\"url(#d{})\"", self.define("filter", room, content))
    }
}

/// Radii of an outline further outside; a sharp corner stays sharp.
fn grown(radii: CornerRadiusF32, by: f32) -> CornerRadiusF32 {
    let grown = |radius: f32| if radius > 0.0 { (radius + by).max(0.0) } else { 0.0 };
    let CornerRadiusF32 { nw, ne, sw, se } = radii;
    CornerRadiusF32 { nw: grown(nw), ne: grown(ne), sw: grown(sw), se: grown(se) }
}

/// A stroke of one colour; `None` for a varying colour.
fn plain(stroke: &PathStroke) -> Stroke {
    match stroke.color {
        ColorMode::Solid(colour) => Stroke::new(stroke.width, colour),
        ColorMode::UV(_) => Stroke::NONE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use eframe::egui::epaint::{Mesh, TextShape};
    use eframe::egui::text::{LayoutJob, TextFormat};
    use eframe::egui::{
        self, ColorImage, Context, CornerRadius, FontId, Label, Painter, RichText, Sense, TextureOptions,
        vec2,
    };

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

    /// A painter's drawing at 100 × 100 points, as SVG.
    fn drawn(mut draw: impl FnMut(&Painter)) -> String {
        let drawing = Drawing::of(Context::default(), vec2(100.0, 100.0), 1.0, 2, |ui| draw(ui.painter()));
        let svg = drawing.to_svg(Color32::WHITE);
        assert_well_formed(&svg);
        svg
    }

    /// Asserts that elements are closed in order and that `<` and `&` are escaped.
    fn assert_well_formed(svg: &str) {
        let mut open = vec![];
        for piece in svg.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').expect("a tag that ends");
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = |tag: &str| tag.split_whitespace().next().map(String::from);
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name(closed)), "{svg}");
            } else if !tag.ends_with('/') {
                open.push(name(tag));
            }
            for entity in text.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;"].iter().any(|known| entity.starts_with(known)),
                    "{text}"
                );
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    fn has(svg: &str, parts: &[&str]) {
        for part in parts {
            assert!(svg.contains(part), "{part} in {svg}");
        }
    }

    #[test]
    fn text_shapes_and_textures_are_in_the_svg() {
        let svg = sample().to_svg(Color32::WHITE);
        assert_well_formed(&svg);
        let parts = [
            ">a &lt; b &amp; &quot;c&quot;</text>",
            "fill=\"#0072b2\"",
            "rotate(-90",
            ">layer</text>",
            "<image x=\"10\" y=\"80\" width=\"40\" height=\"20\"",
            "image-rendering:pixelated",
            "data:image/png;base64,",
        ];
        has(&svg, &parts);
        assert_eq!(svg, sample().to_svg(Color32::WHITE), "the same drawing, the same file");
    }

    #[test]
    fn what_egui_does_not_paint_is_left_out() {
        let svg = drawn(|painter| {
            painter.circle(pos2(50.0, 50.0), 20.0, Color32::TRANSPARENT, Stroke::NONE);
            let points = [pos2(0.0, 0.0), pos2(50.0, 50.0), pos2(99.0, 0.0)];
            let none = PathStroke::NONE;
            painter.add(QuadraticBezierShape::from_points_stroke(points, false, Color32::TRANSPARENT, none));
            painter.rect_filled(Rect::NAN, 0.0, Color32::RED);
            let broken = vec![pos2(f32::NAN, 0.0), pos2(1.0, 1.0)];
            painter.add(Shape::line(broken, Stroke::new(1.0, Color32::RED)));
            let mut mesh = Mesh::default();
            mesh.add_triangle(0, 1, 2);
            painter.add(Shape::Mesh(mesh.into()));
        });
        assert_eq!(svg.lines().count(), 4, "only the background: {svg}");
    }

    #[test]
    fn rectangles_keep_corners_strokes_and_angles() {
        let svg = drawn(|painter| {
            let rect = Rect::from_min_size(pos2(10.0, 10.0), vec2(40.0, 20.0));
            let corners = CornerRadius { nw: 0, ne: 5, sw: 0, se: 0 };
            painter.rect_filled(rect, corners, Color32::RED);
            painter.rect_stroke(rect, 4.0, Stroke::new(2.0, Color32::BLUE), StrokeKind::Outside);
            painter.add(RectShape::filled(rect, 0.0, Color32::GREEN).with_angle(std::f32::consts::FRAC_PI_2));
            painter.add(RectShape::filled(rect, 0.0, Color32::BLACK).with_blur_width(6.0));
        });
        let parts = [
            "<path d=\"M10 10H45A5 5 0 0 1 50 15V30",
            "<rect x=\"9\" y=\"9\" width=\"42\" height=\"22\" rx=\"5\" fill=\"none\"",
            "transform=\"rotate(90 30 20)\"",
            "<feGaussianBlur stdDeviation=\"1.73\"/>",
        ];
        has(&svg, &parts);
    }

    #[test]
    fn meshes_become_gradients_areas_and_cells() {
        let svg = drawn(|painter| {
            let rect = Rect::from_min_size(pos2(10.0, 10.0), vec2(40.0, 20.0));
            let fade = [Color32::TRANSPARENT, Color32::RED];
            painter.add(Shape::gradient_rect(rect, egui::Direction::TopDown, fade));
            let mut mesh = Mesh::default();
            mesh.add_colored_rect(rect, Color32::BLUE);
            for (x, y) in [(0.0, 50.0), (20.0, 90.0), (40.0, 60.0), (60.0, 95.0)] {
                mesh.colored_vertex(pos2(x, y), Color32::GREEN);
            }
            mesh.add_triangle(4, 5, 6);
            mesh.add_triangle(5, 6, 7);
            painter.add(Shape::mesh(mesh));
        });
        let parts = [
            "<stop offset=\"0\" stop-color=\"#ff0000\" stop-opacity=\"0\"/>",
            "fill=\"url(#d0)\"",
            "shape-rendering=\"crispEdges\" fill=\"#0000ff\"",
            "<path d=\"M0,50 40,60 20,90ZM20,90 40,60 60,95Z\" fill=\"#00ff00\"",
        ];
        has(&svg, &parts);
    }

    #[test]
    fn parts_of_textures_are_tinted_turned_and_clipped() {
        let svg = drawn(|painter| {
            let pixels = vec![Color32::WHITE, Color32::BLUE];
            let image = ColorImage::new([2, 1], pixels);
            let texture = painter.ctx().load_texture("two", image, TextureOptions::LINEAR);
            let place = Rect::from_min_size(pos2(10.0, 10.0), vec2(40.0, 20.0));
            let mirrored = Rect::from_min_max(pos2(1.0, 0.0), pos2(0.0, 1.0));
            painter.image(texture.id(), place, mirrored, Color32::RED);
            let inside = Rect::from_min_max(pos2(0.25, 0.0), pos2(1.0, 1.0));
            painter.image(texture.id(), place.translate(vec2(0.0, 40.0)), inside, Color32::WHITE);
        });
        let parts = [
            "transform=\"matrix(-40 0 0 20 50 10)\"",
            "<polygon points=\"10,50 50,50 50,70 10,70\"/>",
            "<image x=\"-3.33\" y=\"50\" width=\"53.33\"",
        ];
        has(&svg, &parts);
        let data = svg.split("base64,").nth(1).and_then(|rest| rest.split('"').next()).expect("an image");
        let png = BASE64_STANDARD.decode(data).expect("base64");
        let image = image::load_from_memory(&png).expect("a PNG").to_rgba8();
        assert_eq!(image.get_pixel(0, 0).0, [255, 0, 0, 255], "white, tinted red");
        assert_eq!(image.get_pixel(1, 0).0, [0, 0, 0, 255], "blue, tinted red");
    }

    #[test]
    fn text_keeps_its_formats_and_is_legal_xml() {
        let svg = drawn(|painter| {
            let plain = TextFormat::simple(FontId::monospace(10.0), Color32::PLACEHOLDER);
            let line = Stroke::new(1.0, Color32::BLUE);
            let mut job = LayoutJob::default();
            job.append("a\u{ffff}\tb", 0.0, plain.clone());
            job.append("c", 0.0, TextFormat { background: Color32::RED, ..plain.clone() });
            job.append("d", 0.0, TextFormat { underline: line, italics: true, ..plain });
            let galley = painter.layout_job(job);
            let shape = TextShape::new(pos2(10.0, 10.0), galley, Color32::GREEN).with_opacity_factor(0.5);
            painter.add(shape);
        });
        let parts = [
            "fill=\"#00ff00\" fill-opacity=\"0.5\">a</text>",
            ">b</text>",
            "fill=\"#ff0000\" fill-opacity=\"0.5\"/>",
            "stroke=\"#0000ff\" stroke-opacity=\"0.5\"",
            "font-style=\"italic\"",
            "font-family=\"Hack",
        ];
        has(&svg, &parts);
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
