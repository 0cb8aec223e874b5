//! The characters that can be typeset: PDF/UA requires a glyph for each.

use layerscope_figures::visible;
use std::borrow::Cow;
use typst::text::FontBook;

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
        for character in text.chars() {
            match character {
                // The built-in fonts may lack these brackets.
                '⟨' => settable.push('<'),
                '⟩' => settable.push('>'),
                '\n' => settable.push('\n'),
                '\t' => settable.push_str("    "),
                known if self.have(known) => settable.push(known),
                unknown => settable.push_str(&format!("<U+{:04X}>", u32::from(unknown))),
            }
        }
        settable
    }

    /// The same for XML, without `<`.
    pub(super) fn settable_xml<'b>(&self, xml: &'b str) -> Cow<'b, str> {
        if xml.chars().all(|character| self.have(character)) {
            return Cow::Borrowed(xml);
        }
        let set = |character: char| match character {
            known if self.have(known) => known.to_string(),
            unknown => format!("(U+{:04X})", u32::from(unknown)),
        };
        Cow::Owned(xml.chars().map(set).collect())
    }
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
        // A private-use character, which text fonts lack.
        assert!(fonts.settable("\u{10fff0}").starts_with("<U+10FFF0>"));
    }
}
