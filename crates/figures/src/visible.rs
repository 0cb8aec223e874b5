//! Sanitises untrusted text of models, prompts and users.

/// Whether a character acts on a reader instead of being read: control characters, marks that turn the direction of the text
/// around them (Unicode Technical Report 36, 2.6), and code points that are no characters.
pub fn acts(character: char) -> bool {
    match character {
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => true,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{fdd0}'..='\u{fdef}' => true,
        // The last two of every plane are no characters.
        other => u32::from(other) & 0xfffe == 0xfffe,
    }
}

/// The text with everything spelt out that [`acts`]. Line breaks and tabs stay.
pub fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => visible.push(character),
            // The Unicode control pictures are in the order of the control characters.
            '\0'..='\x1f' => visible.extend(char::from_u32(0x2400 + u32::from(character))),
            '\x7f' => visible.push('\u{2421}'),
            acting if acts(acting) => visible.push_str(&format!("⟨U+{:04X}⟩", u32::from(acting))),
            other => visible.push(other),
        }
    }
    visible
}

/// The same in one line.
pub fn visible_line(text: &str) -> String {
    visible(text).replace('\n', "⏎").replace('\t', "⇥")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_is_spelt_out() {
        assert_eq!(visible("a\0b\u{1b}[31m\u{7f}"), "a␀b␛[31m␡");
        assert_eq!(visible("\u{202e}abc\u{2066}"), "⟨U+202E⟩abc⟨U+2066⟩");
        assert_eq!(visible("שלום\n日本\t👩‍👩‍👧"), "שלום\n日本\t👩‍👩‍👧");
        assert_eq!(visible_line("a\r\n\tb"), "a␍⏎⇥b");
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left(text in any::<String>()) {
            for character in visible(&text).chars() {
                prop_assert!(!acts(character) || "\n\t".contains(character));
                prop_assert!(!character.is_control() || acts(character));
            }
        }
    }
}
