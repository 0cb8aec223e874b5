//! Sanitises untrusted text of models, prompts and users.

/// The text with visible escapes for control characters and for bidirectional formatting marks (Unicode
/// Technical Report 36, 2.6). Keeps line breaks and tabs.
pub fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => visible.push(character),
            // The Unicode control pictures are in the order of the control characters.
            '\0'..='\x1f' => visible.extend(char::from_u32(0x2400 + u32::from(character))),
            '\x7f' => visible.push('\u{2421}'),
            '\u{80}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => spell(character, &mut visible),
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                spell(character, &mut visible);
            }
            '\u{fdd0}'..='\u{fdef}' => spell(character, &mut visible),
            // The last two code points of every plane are noncharacters.
            other if u32::from(other) & 0xfffe == 0xfffe => spell(other, &mut visible),
            other => visible.push(other),
        }
    }
    visible
}

fn spell(character: char, visible: &mut String) {
    visible.push_str(&format!("⟨U+{:04X}⟩", u32::from(character)));
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
                prop_assert!(!character.is_control() || "\n\t".contains(character));
                let turns = ('\u{202a}'..='\u{202e}').contains(&character);
                prop_assert!(!turns);
            }
        }
    }
}
