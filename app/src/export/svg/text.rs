//! Text as SVG text.

use super::Writer;
use super::attributes::{escaped, number, paint, turned};
use eframe::egui::epaint::TextShape;
use eframe::egui::epaint::text::{Glyph, PlacedRow};
use eframe::egui::text::{LayoutJob, TextFormat};
use eframe::egui::{Color32, FontFamily, Rect, Stroke, Vec2, pos2};

/// The window's fonts, similar fonts, then generic families.
const PROPORTIONAL: &str = "'Ubuntu Light', Ubuntu, 'Helvetica Neue', Arial, sans-serif";
const MONOSPACE: &str = "Hack, 'DejaVu Sans Mono', Menlo, monospace";

/// Characters of one format in one line.
struct TextRun<'a> {
    format: &'a TextFormat,
    text: String,
    /// From ascent to descent, points.
    area: Rect,
    baseline: f32,
}

impl Writer<'_> {
    /// Each run of one format in a line is one `<text>`, stretched to its width on the screen, so that
    /// another font does not overlap its neighbour.
    pub(super) fn text(&mut self, shape: &TextShape) {
        if shape.opacity_factor <= 0.0 {
            return;
        }
        let turned = turned(shape.angle, shape.pos);
        let turns = !turned.is_empty();
        if turns {
            self.line(format_args!("<g{turned}>"));
        }
        let mut byte = 0;
        for row in &shape.galley.rows {
            let offset = shape.pos.to_vec2() + row.pos.to_vec2();
            let runs = runs(row, &shape.galley.job, &mut byte, offset);
            self.backgrounds(shape, &runs);
            runs.iter().for_each(|run| self.run(shape, run));
            let below = row.row.visuals.mesh_bounds.translate(offset);
            if below.is_positive() {
                self.horizontal(below, below.bottom(), shape.underline);
            }
        }
        if turns {
            self.line("</g>");
        }
    }

    fn backgrounds(&mut self, shape: &TextShape, runs: &[TextRun<'_>]) {
        for TextRun { format, area, .. } in runs {
            let colour = shown(shape, format.background);
            self.rect(area.expand(format.expand_bg), 0.0.into(), "", &paint(colour, Stroke::NONE));
        }
    }

    fn run(&mut self, shape: &TextShape, TextRun { format, text, area, baseline }: &TextRun<'_>) {
        let colour = shape.override_text_color.unwrap_or(format.color);
        let (colour, width) = (shown(shape, colour), area.width());
        if !text.trim().is_empty() && width > 0.0 && colour != Color32::TRANSPARENT {
            let monospace = format.font_id.family == FontFamily::Monospace;
            let family = if monospace { MONOSPACE } else { PROPORTIONAL };
            let slant = if format.italics { " font-style=\"italic\"" } else { "" };
            self.line(format_args!(
                "<text x=\"{}\" y=\"{}\" font-family=\"{family}\" font-size=\"{}\"{slant} textLength=\"{}\" \
                 lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\"{}>{}</text>",
                number(area.left()),
                number(*baseline),
                number(format.font_id.size),
                number(width),
                paint(colour, Stroke::NONE),
                escaped(text)
            ));
        }
        for (stroke, y) in [(format.underline, area.bottom()), (format.strikethrough, area.center().y)] {
            self.horizontal(*area, y, Stroke { color: shown(shape, stroke.color), ..stroke });
        }
    }

    fn horizontal(&mut self, along: Rect, y: f32, stroke: Stroke) {
        let ends = [pos2(along.left(), y), pos2(along.right(), y)];
        self.polyline(&ends, false, &paint(Color32::TRANSPARENT, stroke));
    }
}

/// A colour of the galley as displayed by the shape.
fn shown(shape: &TextShape, colour: Color32) -> Color32 {
    let colour = if colour == Color32::PLACEHOLDER { shape.fallback_color } else { colour };
    // Unchanged without opacity.
    if shape.opacity_factor < 1.0 { colour.gamma_multiply(shape.opacity_factor) } else { colour }
}

/// A line's runs at their place; `byte` is where the line starts in the job's text, and is moved to its end.
fn runs<'a>(row: &PlacedRow, job: &'a LayoutJob, byte: &mut usize, offset: Vec2) -> Vec<TextRun<'a>> {
    let mut runs: Vec<TextRun<'a>> = vec![];
    let mut goes_on = false;
    for glyph in &row.row.glyphs {
        let section = job.sections.partition_point(|section| section.byte_range.end.0 <= *byte);
        *byte += glyph.chr.len_utf8();
        // The ellipsis is after the last section.
        let Some(section) = job.sections.get(section).or(job.sections.last()) else { break };
        // A tab's width depends on its position.
        if glyph.chr == '\t' {
            goes_on = false;
            continue;
        }
        match runs.last_mut() {
            Some(run) if goes_on && *run.format == section.format => {
                run.text.push(glyph.chr);
                run.area.max.x = glyph.max_x() + offset.x;
            }
            _ => runs.push(begun(glyph, &section.format, offset)),
        }
        goes_on = true;
    }
    *byte += usize::from(row.ends_with_newline);
    runs
}

fn begun<'a>(glyph: &Glyph, format: &'a TextFormat, offset: Vec2) -> TextRun<'a> {
    let area = glyph.logical_rect().translate(offset);
    TextRun { format, text: glyph.chr.into(), area, baseline: glyph.pos.y + offset.y }
}
