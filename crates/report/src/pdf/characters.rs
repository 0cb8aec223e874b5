//! The characters that can be typeset: PDF/UA requires a glyph for each.

use layerscope_figures::visible;
use typst::text::FontBook;
use unicode_segmentation::UnicodeSegmentation;

/// Most characters that are drawn as one. The PDF says of each glyph which text it stands for, and Poppler reads at most 63
/// UTF-16 units of it.
const LONGEST_CLUSTER: usize = 16;

/// The characters of some fonts.
pub(super) struct Characters<'a> {
    fonts: Option<&'a FontBook>,
}

impl<'a> Characters<'a> {
    /// The characters of all fonts.
    pub(super) fn of(fonts: &'a FontBook) -> Self {
        Self { fonts: Some(fonts) }
    }

    /// Characters that the built-in fonts are known to have.
    pub(super) fn built_in() -> Self {
        Self { fonts: None }
    }

    fn have(&self, character: char) -> bool {
        match self.fonts {
            _ if character.is_ascii() => true,
            Some(fonts) => {
                let mut fonts = (0..).map_while(|index| fonts.info(index));
                fonts.any(|font| font.coverage.contains(character.into()))
            }
            None => matches!(
                character,
                '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{17f}' | 'α'..='ω' | 'Α'..='Ω' | '–' | '—' | '‘' | '’' | '“' | '”'
                    | '…' | '•' | '−' | '≤' | '≥' | '∞' | '‖' | 'ℓ' | '₀' | 'ⱼ' | 'ₖ'
            ),
        }
    }

    /// A text with missing characters replaced by their code points.
    pub(super) fn settable(&self, text: &str) -> String {
        let text = visible(text);
        let mut settable = String::with_capacity(text.len());
        for (character, fits) in in_clusters(&text) {
            match character {
                // The built-in fonts may lack these brackets.
                '⟨' => settable.push('<'),
                '⟩' => settable.push('>'),
                '\n' => settable.push('\n'),
                '\t' => settable.push_str("    "),
                known if fits && self.have(known) => settable.push(known),
                unknown => settable.push_str(&format!("<U+{:04X}>", u32::from(unknown))),
            }
        }
        settable
    }

    /// The same for XML, where `<` would begin an element.
    pub(super) fn settable_xml(&self, xml: &str) -> String {
        let mut settable = String::with_capacity(xml.len());
        for (character, fits) in in_clusters(xml) {
            match character {
                known if fits && self.have(known) => settable.push(known),
                unknown => settable.push_str(&format!("(U+{:04X})", u32::from(unknown))),
            }
        }
        settable
    }
}

/// The characters of a text, and whether each is among the first of what is drawn as one, a letter with its marks.
fn in_clusters(text: &str) -> impl Iterator<Item = (char, bool)> {
    let clusters = text.graphemes(true);
    clusters.flat_map(|cluster| {
        cluster.chars().enumerate().map(|(at, character)| (character, at < LONGEST_CLUSTER))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_glyph_is_spelt_out() {
        let built_in = Characters::built_in();
        assert_eq!(built_in.settable("naïve – 日本\u{202e}"), "naïve – <U+65E5><U+672C><U+202E>");
        assert_eq!(built_in.settable_xml("<a>日</a>"), "<a>(U+65E5)</a>");
        let fonts = Characters::of(super::super::world::fonts().book());
        assert_eq!(fonts.settable("‖ℓΣ≤"), "‖ℓΣ≤");
        // Sixteen marks are no longer a letter's own.
        let marks = "\u{301}".repeat(17);
        assert_eq!(fonts.settable(&format!("a{marks}b")), format!("a{}<U+0301><U+0301>b", &marks[..30]));
        // A private-use character that no text font has.
        assert!(fonts.settable("\u{10fff0}").starts_with("<U+10FFF0>"));
    }
}
