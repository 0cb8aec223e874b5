//! The byte alphabet of GPT-2 vocabularies, and bytes shown as text.

/// The byte that `character` stands for in a byte-level vocabulary.
///
/// Bytes that print stand for themselves; the other 68 are moved up to U+0100 … U+0143, in order.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x143 => {
            let moved = u8::try_from(code - 0x100).ok()?;
            Some(match moved {
                0..=0x20 => moved,
                0x21..=0x42 => moved - 0x21 + 0x7F,
                _ => 0xAD,
            })
        }
        _ => None,
    }
}

/// Adds the bytes of `token`, written in the byte alphabet; a token with other characters is plain text, as in the
/// tokenizers crate.
pub(super) fn append_from_alphabet(token: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for character in token.chars() {
        let Some(byte) = byte_of(character) else {
            out.truncate(start);
            out.extend_from_slice(token.as_bytes());
            return;
        };
        out.push(byte);
    }
}

/// The byte that a SentencePiece byte token such as `<0x0A>` stands for.
pub(super) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// `bytes` as text, each byte outside a whole character as `<0xE4>`.
pub(super) fn show(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("<0x{byte:02X}>"));
        }
    }
    text
}

/// Takes the text out of `buffer` that no later byte can change, and leaves the start of an unfinished character.
///
/// What is taken, and the rest at the end, is together what `String::from_utf8_lossy` makes of the whole.
pub(super) fn take_complete(buffer: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(buffer.len());
    let mut taken = 0;
    for chunk in buffer.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let unfinished = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none())
            && taken + chunk.invalid().len() == buffer.len();
        if unfinished {
            break;
        }
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += chunk.invalid().len();
        }
    }
    buffer.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn the_alphabet_is_that_of_the_tokenizers_crate() {
        let mut bytes: Vec<u8> = ByteLevel::alphabet().into_iter().filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('ġ'), Some(0x7F));
        assert_eq!(byte_of('Ń'), Some(0xAD));
        assert_eq!(byte_of('ń'), None);
    }

    #[test]
    fn pieces_make_what_the_whole_makes() {
        // Every way of cutting a text with whole, broken and unfinished characters in two.
        let all = b"a\xE4\xBD\xA0\xFFb\xE4\xBDc\xF0\x9F\x98\x80\xE4\xF0\x9F";
        for cut in 0..=all.len() {
            let mut buffer = all[..cut].to_vec();
            let mut text = take_complete(&mut buffer);
            buffer.extend_from_slice(&all[cut..]);
            text.push_str(&take_complete(&mut buffer));
            text.push_str(&String::from_utf8_lossy(&buffer));
            assert_eq!(text, String::from_utf8_lossy(all), "cut at {cut}");
        }
    }

    #[test]
    fn parts_of_characters_are_shown_as_bytes() {
        assert_eq!(show("a你".as_bytes()), "a你");
        assert_eq!(show(b"\xE4\xBDx"), "<0xE4><0xBD>x");
        assert_eq!(fallback_byte("<0x0A>"), Some(b'\n'));
        assert_eq!(fallback_byte("<0x+A>"), None);
        assert_eq!(fallback_byte("<0x0A"), None);
    }
}
