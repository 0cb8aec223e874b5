//! SVG attributes and values.

use eframe::egui::epaint::CornerRadiusF32;
use eframe::egui::{Color32, Pos2, Rect, Stroke};
use std::fmt::Write;

/// Attributes of fill and stroke; empty if there is neither.
pub(super) fn paint(fill: Color32, stroke: Stroke) -> String {
    if fill == Color32::TRANSPARENT && stroke.is_empty() {
        return String::new();
    }
    let mut attributes = colour("fill", fill);
    if !stroke.is_empty() {
        attributes += &colour("stroke", stroke.color);
        let _ = write!(attributes, " stroke-width=\"{}\"", number(stroke.width));
    }
    attributes
}

/// A colour as the attributes `{name}` and, unless opaque, `{name}-opacity`.
pub(super) fn colour(name: &str, colour: Color32) -> String {
    if colour == Color32::TRANSPARENT {
        return format!(" {name}=\"none\"");
    }
    format!(" {name}=\"{}\"{}", hex(colour), opacity(&format!("{name}-opacity"), colour))
}

/// The end of a gradient. A transparent end takes the other's hue, so that the colours between do not turn
/// dark.
pub(super) fn stop(offset: u8, colour: Color32, other: Color32) -> String {
    let visible = if colour.a() == 0 { other } else { colour };
    let opacity = opacity("stop-opacity", colour);
    format!("<stop offset=\"{offset}\" stop-color=\"{}\"{opacity}/>", hex(visible))
}

fn hex(colour: Color32) -> String {
    let [r, g, b, _] = colour.to_srgba_unmultiplied();
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn opacity(name: &str, colour: Color32) -> String {
    match colour.a() {
        255 => String::new(),
        alpha => format!(" {name}=\"{}\"", number(f32::from(alpha) / 255.0)),
    }
}

/// The attribute that rotates clockwise about a point; empty for angle 0.
pub(super) fn turned(radians: f32, about: Pos2) -> String {
    if radians == 0.0 || !radians.is_finite() {
        return String::new();
    }
    format!(" transform=\"rotate({} {} {})\"", number(radians.to_degrees()), number(about.x), number(about.y))
}

pub(super) fn place(rect: Rect) -> String {
    let (x, y) = (number(rect.left()), number(rect.top()));
    format!("x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"", number(rect.width()), number(rect.height()))
}

/// Name and geometry of a rectangle: a `rect` if its corners are equal, otherwise a `path`.
pub(super) fn rounded(rect: Rect, radii: CornerRadiusF32) -> String {
    let most = 0.5 * rect.size().min_elem();
    let CornerRadiusF32 { nw, ne, sw, se } = radii.at_most(most);
    if [ne, sw, se] == [nw; 3] {
        let rx = if nw > 0.0 { format!(" rx=\"{}\"", number(nw)) } else { String::new() };
        return format!("rect {}{rx}", place(rect));
    }
    let arc = |radius: f32, x: f32, y: f32| {
        let radius = number(radius);
        format!("A{radius} {radius} 0 0 1 {} {}", number(x), number(y))
    };
    let (left, right, top, bottom) = (rect.left(), rect.right(), rect.top(), rect.bottom());
    format!(
        "path d=\"M{} {}H{}{}V{}{}H{}{}V{}{}Z\"",
        number(left + nw),
        number(top),
        number(right - ne),
        arc(ne, right, top + ne),
        number(bottom - se),
        arc(se, right - se, bottom),
        number(left + sw),
        arc(sw, left, bottom - sw),
        number(top + nw),
        arc(nw, left + nw, top)
    )
}

pub(super) fn points(points: &[Pos2]) -> String {
    points.iter().map(|at| point(*at)).collect::<Vec<_>>().join(" ")
}

pub(super) fn point(at: Pos2) -> String {
    format!("{},{}", number(at.x), number(at.y))
}

/// A number with at most two decimals, limited to SVG's range.
pub(super) fn number(value: f32) -> String {
    let value = if value.is_nan() { 0.0 } else { value.clamp(-1e7, 1e7) };
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

/// Text escaped for XML, without characters that XML cannot represent.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            control if control.is_control() => {}
            other => escaped.push(other),
        }
    }
    escaped
}
