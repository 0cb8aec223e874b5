//! Joins tokens into readable pieces and breaks them into lines.

use eframe::egui::text::LayoutJob;
use eframe::egui::{Color32, FontId, Galley, TextFormat, Ui};
use std::ops::Range;

/// Most pieces measured per frame.
const PER_FRAME: usize = 20_000;

/// Tokens that are displayed together: one, or several whose bytes form one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The tokens.
    pub tokens: Range<usize>,
    /// Their text, without line breaks.
    pub text: String,
    /// Whether the line ends after it.
    pub ends_line: bool,
}

/// Joins tokens into pieces. A token with a partial character is written `<0xE4>`; if the following tokens
/// complete the character, they form one piece.
pub(super) fn pieces(tokens: &[String]) -> Vec<Piece> {
    let mut pieces = vec![];
    let mut index = 0;
    while index < tokens.len() {
        let (end, text) =
            whole_character(tokens, index).unwrap_or_else(|| (index + 1, tokens[index].clone()));
        let ends_line = text.contains('\n');
        let text = text.replace("\r\n", "\n").replace('\n', "¶").replace('\t', "    ").replace('\r', "");
        pieces.push(Piece { tokens: index..end, text, ends_line });
        index = end;
    }
    pieces
}

/// The tokens from `start` that together form one character.
fn whole_character(tokens: &[String], start: usize) -> Option<(usize, String)> {
    let mut bytes = vec![];
    if !append_bytes(&tokens[start], &mut bytes) {
        return None;
    }
    // A character has at most four bytes, so at most three further tokens are needed.
    for (index, token) in tokens.iter().enumerate().skip(start + 1).take(3) {
        append_bytes(token, &mut bytes);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            return Some((index + 1, text.to_owned()));
        }
    }
    None
}

/// Appends a token's bytes and decodes `<0xE4>`; returns whether there were such bytes.
fn append_bytes(token: &str, bytes: &mut Vec<u8>) -> bool {
    let mut rest = token;
    let mut spelt = false;
    while !rest.is_empty() {
        let byte = rest.strip_prefix("<0x").and_then(|rest| {
            let (digits, rest) = rest.split_at_checked(2)?;
            Some((u8::from_str_radix(digits, 16).ok()?, rest.strip_prefix('>')?))
        });
        if let Some((byte, after)) = byte {
            bytes.push(byte);
            spelt = true;
            rest = after;
        } else {
            let next = rest.char_indices().nth(1).map_or(rest.len(), |(at, _)| at);
            bytes.extend_from_slice(&rest.as_bytes()[..next]);
            rest = &rest[next..];
        }
    }
    spelt
}

/// The line breaks.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Width of each piece measured so far, points.
    widths: Vec<f32>,
    /// First piece of each line.
    starts: Vec<usize>,
    /// The width that `starts` are for.
    width: f32,
    /// What `widths` are for.
    font: Option<FontId>,
    scale: f32,
}

impl Flow {
    /// Lays out more pieces, or restarts if the width changed; returns whether all are laid out.
    pub(super) fn lay_out(&mut self, ui: &Ui, pieces: &[Piece], font: &FontId, width: f32) -> bool {
        let scale = ui.ctx().pixels_per_point();
        if self.scale != scale || self.font.as_ref() != Some(font) {
            *self = Self { scale, font: Some(font.clone()), ..Self::default() };
        }
        let measured = self.widths.len();
        if measured < pieces.len() {
            let end = pieces.len().min(measured + PER_FRAME);
            ui.fonts_mut(|fonts| {
                for piece in &pieces[measured..end] {
                    let width = piece.text.chars().map(|character| fonts.glyph_width(font, character)).sum();
                    self.widths.push(width);
                }
            });
        }
        if measured < self.widths.len() || self.width != width {
            self.width = width;
            self.starts = break_lines(&self.widths, &pieces[..self.widths.len()], width);
        }
        self.is_whole(pieces)
    }

    /// Whether all of these pieces are laid out.
    pub(super) fn is_whole(&self, pieces: &[Piece]) -> bool {
        self.widths.len() == pieces.len()
    }

    /// The type that is laid out.
    pub(super) fn font(&self) -> Option<&FontId> {
        self.font.as_ref()
    }

    /// Number of lines.
    pub(super) fn lines(&self) -> usize {
        self.starts.len()
    }

    /// Lines that the same pieces would have with type larger by a factor.
    pub(super) fn lines_enlarged(&self, pieces: &[Piece], factor: f32, width: f32) -> usize {
        break_lines(&self.widths, &pieces[..self.widths.len()], width / factor).len()
    }

    /// The pieces of a line.
    pub(super) fn line(&self, index: usize) -> Range<usize> {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.widths.len());
        self.starts.get(index).copied().unwrap_or(end)..end
    }

    /// The line that a token is in.
    pub(super) fn line_of(&self, pieces: &[Piece], token: usize) -> Option<usize> {
        let piece = pieces.partition_point(|piece| piece.tokens.end <= token);
        self.starts.partition_point(|start| *start <= piece).checked_sub(1)
    }
}

/// First piece of each line: a line has as many pieces as fit, at least one, and ends at a line break.
fn break_lines(widths: &[f32], pieces: &[Piece], width: f32) -> Vec<usize> {
    let mut starts = vec![];
    let (mut used, mut fresh) = (0.0, true);
    for (index, (piece, own)) in pieces.iter().zip(widths).enumerate() {
        if fresh || used + own > width {
            starts.push(index);
            used = 0.0;
        }
        used += own;
        fresh = piece.ends_line;
    }
    starts
}

/// A line as one text, so that joined scripts stay joined; the marks of line breaks are weak.
pub(super) fn job(text: &str, font: &FontId, colour: Color32, weak: Color32) -> LayoutJob {
    let mut job = LayoutJob::default();
    job.wrap.max_width = f32::INFINITY;
    let body = text.trim_end_matches('¶');
    job.append(body, 0.0, TextFormat::simple(font.clone(), colour));
    if body.len() < text.len() {
        job.append(&text[body.len()..], 0.0, TextFormat::simple(font.clone(), weak));
    }
    job
}

/// Left and right edge of each piece in a line laid out as one text, points.
pub(super) fn edges(galley: &Galley, pieces: &[Piece]) -> Vec<(f32, f32)> {
    let Some(row) = galley.rows.first() else { return vec![(0.0, 0.0); pieces.len()] };
    let mut at = 0;
    pieces
        .iter()
        .map(|piece| {
            let end = at + piece.text.chars().count();
            let glyphs = row.glyphs.get(at..end.min(row.glyphs.len())).unwrap_or(&[]);
            at = end;
            // In right-to-left scripts, letters are not in text order.
            let left = glyphs.iter().map(|glyph| glyph.pos.x).fold(f32::INFINITY, f32::min);
            let right = glyphs.iter().map(|glyph| glyph.pos.x + glyph.advance_width).fold(0.0, f32::max);
            if left.is_finite() { (left, right) } else { (right, right) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(tokens: &[&str]) -> Vec<String> {
        tokens.iter().map(|token| (*token).to_owned()).collect()
    }

    #[test]
    fn bytes_of_one_character_are_shown_together() {
        let pieces = pieces(&tokens(&["a", " <0xF0><0x9F>", "<0x98>", "<0x80>", "<0xE4>", "b\n", "世"]));
        let shown: Vec<(&str, usize, bool)> =
            pieces.iter().map(|p| (p.text.as_str(), p.tokens.len(), p.ends_line)).collect();
        assert_eq!(
            shown,
            [("a", 1, false), (" 😀", 3, false), ("<0xE4>", 1, false), ("b¶", 1, true), ("世", 1, false)]
        );
    }

    proptest! {
        #[test]
        fn every_token_is_in_one_piece(texts in proptest::collection::vec("(<0x[0-9A-F]{2}>|.|\n){0,3}", 0..30)) {
            let pieces = pieces(&texts);
            let covered: Vec<usize> = pieces.iter().flat_map(|piece| piece.tokens.clone()).collect();
            prop_assert_eq!(covered, (0..texts.len()).collect::<Vec<_>>());
            prop_assert!(pieces.iter().all(|piece| !piece.text.contains('\n')));
        }

        #[test]
        fn lines_hold_every_piece_and_fit(widths in proptest::collection::vec(0.0..60.0_f32, 0..200)) {
            let pieces: Vec<Piece> = (0..widths.len())
                .map(|index| Piece { tokens: index..index + 1, text: "x".into(), ends_line: index % 17 == 3 })
                .collect();
            let starts = break_lines(&widths, &pieces, 100.0);
            for (line, start) in starts.iter().enumerate() {
                let end = starts.get(line + 1).copied().unwrap_or(widths.len());
                prop_assert!(end > *start);
                prop_assert!(widths[*start..end].iter().sum::<f32>() <= 100.1);
                prop_assert!(pieces[*start..end - 1].iter().all(|piece| !piece.ends_line));
            }
            prop_assert_eq!(starts.first().copied(), (!widths.is_empty()).then_some(0));
        }
    }
}
