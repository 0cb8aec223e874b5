//! Triangles: areas of one colour, gradients, and parts of textures.

use super::attributes::{number, paint, place, point, points, stop};
use super::{Texture, Writer};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use eframe::egui::emath::Rot2;
use eframe::egui::epaint::{Mesh, TextureId, Vertex, WHITE_UV};
use eframe::egui::{Color32, Pos2, Rect, Stroke, TextureFilter, Vec2, pos2, vec2};
use std::io::Cursor;

/// Mesh edges are sharp on the screen too; without antialiasing, the cells of a grid have no seams.
const SHARP: &str = " shape-rendering=\"crispEdges\"";

/// The placement of a part of a texture: its top left corner, and its top and left edges.
#[derive(Clone, Copy)]
pub(super) struct Placement {
    corner: Pos2,
    right: Vec2,
    down: Vec2,
}

impl Placement {
    pub(super) fn of(rect: Rect) -> Self {
        Self { corner: rect.min, right: vec2(rect.width(), 0.0), down: vec2(0.0, rect.height()) }
    }

    pub(super) fn turned(self, radians: f32, about: Pos2) -> Self {
        if radians == 0.0 {
            return self;
        }
        let rotation = Rot2::from_angle(radians);
        let corner = about + rotation * (self.corner - about);
        Self { corner, right: rotation * self.right, down: rotation * self.down }
    }

    fn at(self, share: Pos2) -> Pos2 {
        self.corner + self.right * share.x + self.down * share.y
    }

    /// Of the part `share` of this one.
    fn part(self, share: Rect) -> Self {
        let Self { right, down, .. } = self;
        Self { corner: self.at(share.min), right: right * share.width(), down: down * share.height() }
    }

    /// Of the whole texture, given three of its points.
    fn of_texture([a, b, c]: [Vertex; 3]) -> Option<Self> {
        let ((u, v), (p, q)) = ((b.uv - a.uv, c.uv - a.uv), (b.pos - a.pos, c.pos - a.pos));
        let area = u.x * v.y - u.y * v.x;
        let (right, down) = ((p * v.y - q * u.y) / area, (q * u.x - p * v.x) / area);
        let corner = a.pos - right * a.uv.x - down * a.uv.y;
        (area.abs() > 1e-12 && right.is_finite() && down.is_finite()).then_some(Self { corner, right, down })
    }

    fn attributes(self) -> String {
        let Self { corner, right, down } = self;
        let upright = right.y == 0.0 && down.x == 0.0 && right.x >= 0.0 && down.y >= 0.0;
        if upright {
            return place(Rect::from_min_size(corner, vec2(right.x, down.y)));
        }
        let matrix = [right.x, right.y, down.x, down.y, corner.x, corner.y].map(number).join(" ");
        format!("x=\"0\" y=\"0\" width=\"1\" height=\"1\" transform=\"matrix({matrix})\"")
    }
}

impl Writer<'_> {
    pub(super) fn mesh(&mut self, mesh: &Mesh) {
        let corner = |index: &u32| mesh.vertices.get(*index as usize).copied();
        let triangles: Vec<[Vertex; 3]> = mesh
            .indices
            .chunks_exact(3)
            .filter_map(|indices| Some([corner(&indices[0])?, corner(&indices[1])?, corner(&indices[2])?]))
            .collect();
        let plain = mesh.texture_id == TextureId::default()
            && mesh.vertices.iter().all(|vertex| vertex.uv == WHITE_UV);
        let mut area = Area::default();
        let mut rest = triangles.as_slice();
        while let [first, after @ ..] = rest {
            rest = after;
            let quad = after.first().and_then(|second| Quad::of(first, second));
            if !plain {
                self.textured(mesh.texture_id, first, quad.as_ref());
                rest = &after[usize::from(quad.is_some())..];
            } else if let Some((bounds, fill)) = quad.and_then(|quad| self.upright(&quad)) {
                self.area(std::mem::take(&mut area));
                self.rect(bounds, 0.0.into(), SHARP, &fill);
                rest = &after[1..];
            } else {
                if area.colour != mean(first) {
                    self.area(std::mem::take(&mut area));
                    area.colour = mean(first);
                }
                area.add(first.map(|vertex| vertex.pos));
            }
        }
        self.area(area);
    }

    fn area(&mut self, area: Area) {
        let fill = paint(area.colour, Stroke::NONE);
        if !area.path.is_empty() {
            self.element(format_args!("path d=\"{}\"", area.path), &fill);
        }
    }

    /// An upright rectangle and its fill: one colour, or two with what lies between.
    fn upright(&mut self, quad: &Quad) -> Option<(Rect, String)> {
        let corners = quad.0.map(|vertex| vertex.pos);
        let bounds = Rect::from_points(&corners);
        let at = |at: Pos2| quad.0.iter().find(|vertex| vertex.pos == at).map(|vertex| vertex.color);
        let (left_top, right_top) = (at(bounds.left_top())?, at(bounds.right_top())?);
        let (left_bottom, right_bottom) = (at(bounds.left_bottom())?, at(bounds.right_bottom())?);
        let fill = match (left_top == right_top, left_top == left_bottom) {
            (true, true) if left_top == right_bottom => paint(left_top, Stroke::NONE),
            (true, false) if left_bottom == right_bottom => {
                self.gradient(" x2=\"0\" y2=\"1\"", left_top, left_bottom)
            }
            (false, true) if right_top == right_bottom => self.gradient("", left_top, right_top),
            _ => return None,
        };
        Some((bounds, fill))
    }

    fn gradient(&mut self, direction: &str, from: Color32, to: Color32) -> String {
        let stops = format!("{}{}", stop(0, from, to), stop(1, to, from));
        let index = self.define("linearGradient", direction, stops);
        format!(" fill=\"url(#d{index})\"")
    }

    /// A triangle or a quad of a texture.
    fn textured(&mut self, id: TextureId, triangle: &[Vertex; 3], quad: Option<&Quad>) {
        let corners: &[Vertex] = quad.map_or(triangle, |quad| &quad.0);
        let tint = mean(corners);
        let outline: Vec<Pos2> = corners.iter().map(|vertex| vertex.pos).collect();
        let uvs: Vec<Pos2> = corners.iter().map(|vertex| vertex.uv).collect();
        let Some(whole) = Placement::of_texture(*triangle) else {
            // A single texel.
            let colour = self.texel(id, uvs[0]).map_or(Color32::TRANSPARENT, |texel| texel * tint);
            return self.polyline(&outline, true, &paint(colour, Stroke::NONE));
        };
        let uv = Rect::from_points(&uvs);
        let clip = if quad.is_none() {
            format!("<polygon points=\"{}\"/>", points(&outline))
        } else {
            String::new()
        };
        self.image(id, uv, whole.part(uv), tint, clip);
    }

    fn texel(&self, id: TextureId, uv: Pos2) -> Option<Color32> {
        let image = &self.textures.get(&id)?.image;
        let [width, height] = image.size;
        let at =
            |share: f32, size: usize| ((share * size as f32).max(0.0) as usize).min(size.saturating_sub(1));
        image.pixels.get(at(uv.y, height) * width + at(uv.x, width)).copied()
    }

    /// A part of a texture as an embedded PNG; `clip` is the element that clips it, if any.
    pub(super) fn image(&mut self, id: TextureId, uv: Rect, at: Placement, tint: Color32, clip: String) {
        let Some(texture) = self.textures.get(&id) else { return };
        if tint == Color32::TRANSPARENT || !uv.is_positive() {
            return;
        }
        let part = Part::around(uv, texture.image.size);
        let share = part.share(uv, texture.image.size);
        let whole = Rect::from_min_max(pos2(0.0, 0.0), pos2(1.0, 1.0));
        let clip = if clip.is_empty() && !whole.expand(1e-3).contains_rect(share) {
            let corners = [whole.left_top(), whole.right_top(), whole.right_bottom(), whole.left_bottom()];
            format!("<polygon points=\"{}\"/>", points(&corners.map(|share| at.at(share))))
        } else {
            clip
        };
        let at = at.part(share);
        let Some(png) = part.png(texture, tint, vec2(at.right.length(), at.down.length())) else { return };
        let sharp = texture.options.magnification == TextureFilter::Nearest;
        let rendering = if sharp { " style=\"image-rendering:pixelated\"" } else { "" };
        let image = format!(
            "<image {} preserveAspectRatio=\"none\"{rendering} xlink:href=\"data:image/png;base64,{}\"/>",
            at.attributes(),
            BASE64_STANDARD.encode(png)
        );
        if clip.is_empty() {
            return self.line(image);
        }
        let index = self.define("clipPath", "", clip);
        self.line(format_args!("<g clip-path=\"url(#d{index})\">{image}</g>"));
    }
}

/// Triangles of one colour as one path, so that no seams are visible.
struct Area {
    colour: Color32,
    path: String,
}

impl Default for Area {
    fn default() -> Self {
        Self { colour: Color32::TRANSPARENT, path: String::new() }
    }
}

impl Area {
    fn add(&mut self, [a, b, c]: [Pos2; 3]) {
        // All in the same orientation, because overlapping triangles of different orientation would leave
        // holes.
        let (u, v) = (b - a, c - a);
        let (b, c) = if u.x * v.y < u.y * v.x { (c, b) } else { (b, c) };
        self.path += &format!("M{} {} {}Z", point(a), point(b), point(c));
    }
}

/// The corners of a parallelogram formed by two triangles, in order.
struct Quad([Vertex; 4]);

impl Quad {
    fn of(first: &[Vertex; 3], second: &[Vertex; 3]) -> Option<Self> {
        let alone = |vertex: &&Vertex, others: &[Vertex; 3]| !others.contains(vertex);
        let mut tips = first.iter().filter(|vertex| alone(vertex, second));
        let mut others = second.iter().filter(|vertex| alone(vertex, first));
        let (tip, None) = (tips.next()?, tips.next()) else { return None };
        let (other, None) = (others.next()?, others.next()) else { return None };
        let mut shared = first.iter().filter(|vertex| *vertex != tip);
        let (a, b) = (shared.next()?, shared.next()?);
        let close = |p: Vec2, q: Vec2| (p - q).length() <= 1e-3 * (1.0 + p.length());
        let parallel = close(tip.pos - a.pos, b.pos - other.pos)
            && close((tip.uv - a.uv) * 1e3, (b.uv - other.uv) * 1e3);
        parallel.then_some(Self([*tip, *a, *other, *b]))
    }
}

/// A rectangle of whole texels of a texture.
struct Part {
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
}

impl Part {
    /// The texels that an area touches.
    fn around(uv: Rect, [width, height]: [usize; 2]) -> Self {
        // Ignores texels beyond an edge by a rounding error.
        let from =
            |share: f32, size: usize| ((share * size as f32 + 0.01).floor().max(0.0) as usize).min(size);
        let to = |share: f32, size: usize| ((share * size as f32 - 0.01).ceil().max(0.0) as usize).min(size);
        let (left, right) = (from(uv.left(), width), to(uv.right(), width));
        let (top, bottom) = (from(uv.top(), height), to(uv.bottom(), height));
        Self { left, right, top, bottom }
    }

    /// The part's place, seen from the area that it was made for.
    fn share(&self, uv: Rect, [width, height]: [usize; 2]) -> Rect {
        let along =
            |texel: usize, size: usize, from: f32, span: f32| (texel as f32 / size as f32 - from) / span;
        let x = |texel: usize| along(texel, width, uv.left(), uv.width());
        let y = |texel: usize| along(texel, height, uv.top(), uv.height());
        Rect::from_min_max(pos2(x(self.left), y(self.top)), pos2(x(self.right), y(self.bottom)))
    }

    /// The tinted texels for a picture of `size` points; `None` if there are none.
    fn png(&self, texture: &Texture, tint: Color32, size: Vec2) -> Option<Vec<u8>> {
        let sharp = texture.options.magnification == TextureFilter::Nearest;
        // Enlarges the picture, because some programs smooth pictures when they enlarge them.
        let repeated = |points: f32, texels: usize| {
            if sharp { (2.0 * points / texels as f32).ceil().clamp(1.0, 4096.0) as usize } else { 1 }
        };
        let (columns, rows) = (self.right.checked_sub(self.left)?, self.bottom.checked_sub(self.top)?);
        let (wide, high) = (repeated(size.x, columns), repeated(size.y, rows));
        let width = texture.image.size[0];
        let picture = image::RgbaImage::from_fn((columns * wide) as u32, (rows * high) as u32, |x, y| {
            let at = (self.top + y as usize / high) * width + self.left + x as usize / wide;
            let texel = texture.image.pixels.get(at).copied().unwrap_or_default();
            image::Rgba((if tint == Color32::WHITE { texel } else { texel * tint }).to_srgba_unmultiplied())
        });
        let mut png = Cursor::new(vec![]);
        // Encoding into memory fails only for an empty picture.
        picture.write_to(&mut png, image::ImageFormat::Png).ok()?;
        Some(png.into_inner())
    }
}

/// The mean colour.
fn mean(vertices: &[Vertex]) -> Color32 {
    let channel = |index: usize| {
        let sum: usize = vertices.iter().map(|vertex| usize::from(vertex.color[index])).sum();
        (sum / vertices.len().max(1)) as u8
    };
    Color32::from_rgba_premultiplied(channel(0), channel(1), channel(2), channel(3))
}
