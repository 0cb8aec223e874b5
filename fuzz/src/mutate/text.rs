//! Text, by characters and words.

use super::{Random, below, integer, one_in, pick};
use rand::RngExt;

/// Text that terminals, documents, paths and numbers may stumble over.
pub const HOSTILE: [&str; 26] = [
    "",
    " ",
    "\n",
    "\0",
    "\u{1b}[2J",
    "\u{1b}]0;x\u{7}",
    "\u{9b}31m",
    "\u{202e}",
    "\u{2066}",
    "\u{feff}",
    "\u{fffd}",
    "\u{10ffff}",
    "\u{301}\u{301}\u{301}",
    "👩‍👩‍👧‍👦",
    "ß",
    "İ",
    "<script>",
    "&amp;",
    "]]>",
    "../../etc/passwd",
    "/",
    "%00",
    "-1",
    "1e999",
    "99999999999999999999",
    "NaN",
];

/// A text with a place or two changed; words from `words` come in as well as hostile ones.
pub fn changed(text: &str, words: &[&str], random: &mut Random) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..=below(3, random) {
        let at = below(characters.len() + 1, random);
        let end = (at + 1 + below(12, random)).min(characters.len());
        match random.random_range(0..7) {
            0 => drop(characters.drain(at.min(end)..end)),
            1 => insert(&mut characters, at, pick(&HOSTILE, random)),
            2 | 3 if !words.is_empty() => insert(&mut characters, at, pick(words, random)),
            4 => {
                let copy: String = characters[at.min(end)..end].iter().collect();
                let times = 1 << below(if one_in(8, random) { 10 } else { 3 }, random);
                let to = below(characters.len() + 1, random);
                insert(&mut characters, to, &copy.repeat(times));
            }
            5 => change_number(&mut characters, random),
            _ => match characters.get_mut(at) {
                Some(character) => *character = char::from(random.random_range(0u8..128)),
                None => characters.push(char::from(random.random_range(32u8..127))),
            },
        }
    }
    characters.into_iter().collect()
}

fn insert(characters: &mut Vec<char>, at: usize, text: &str) {
    characters.splice(at..at, text.chars());
}

/// Puts another number in the place of one.
fn change_number(characters: &mut Vec<char>, random: &mut Random) {
    let starts = (0..characters.len())
        .filter(|&i| characters[i].is_ascii_digit() && (i == 0 || !characters[i - 1].is_ascii_digit()));
    let starts: Vec<usize> = starts.collect();
    if starts.is_empty() {
        return;
    }
    let start = pick(&starts, random);
    let length = characters[start..].iter().take_while(|c| c.is_ascii_digit()).count();
    let near: String = characters[start..start + length].iter().collect();
    let number = integer(near.parse().unwrap_or(u64::MAX), random).to_string();
    characters.splice(start..start + length, number.chars());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_same_seed_gives_the_same_text_and_others_differ() {
        let of = |seed| changed("speed:24+bos+5", &["pop:"], &mut Random::seed_from_u64(seed));
        assert_eq!(of(1), of(1));
        let different: std::collections::HashSet<String> = (0..100).map(of).collect();
        assert!(different.len() > 80, "{}", different.len());
    }
}
