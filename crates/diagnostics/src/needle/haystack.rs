//! The text around a needle: plain sentences without digits.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Kinds of text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Haystack {
    /// Everyday sentences from templates with randomly filled slots, so that few occur twice.
    #[default]
    Sentences,
    /// The same five sentences, repeated.
    Noise,
}

/// Keys of the numbers. No haystack contains these words.
pub(super) const KEYS: [&str; 48] = [
    "amber",
    "anchor",
    "basalt",
    "beacon",
    "bison",
    "cactus",
    "canyon",
    "cobalt",
    "comet",
    "coral",
    "crater",
    "cypress",
    "delta",
    "dolphin",
    "ember",
    "falcon",
    "fjord",
    "galaxy",
    "glacier",
    "granite",
    "harpoon",
    "hurricane",
    "iceberg",
    "indigo",
    "jasmine",
    "jungle",
    "koala",
    "lagoon",
    "lantern",
    "magnet",
    "meteor",
    "nebula",
    "obsidian",
    "octopus",
    "orchid",
    "panther",
    "pelican",
    "quartz",
    "reef",
    "saffron",
    "scorpion",
    "tundra",
    "turbine",
    "velvet",
    "volcano",
    "walrus",
    "zenith",
    "zeppelin",
];

const NOISE: [&str; 5] = [
    "The road is long.",
    "The river is wide.",
    "The night is cool.",
    "We walk on and rest a while.",
    "Then we walk on again.",
];

const TEMPLATES: [&str; 48] = [
    "{person} walked to the {place} {time}.",
    "{person} bought some {food} at the {place} and carried it home.",
    "The {place} was {adjective} and {adjective} {time}.",
    "{time_first}, {person} wrote a letter to {person} about the {place}.",
    "There is a {adjective} {thing} in the {place}.",
    "{person} and {person} cooked {food} for their neighbours {time}.",
    "Nobody had expected the {animal} to sleep under the {thing}.",
    "{person} keeps a {adjective} {thing} beside the {thing} in the hall.",
    "The {animal} belonged to {person}, who lived near the {place}.",
    "It rained on the {place} {time}, so {person} stayed in and mended a {thing}.",
    "{person} asked whether the {place} would be open {time}.",
    "A {adjective} wind blew through the {place} and moved the {thing}.",
    "{time_first} the {place} smelled of {food}.",
    "{person} painted the {thing} {colour}, although {person} had wanted it {colour}.",
    "The road from the {place} to the {place} is {adjective}.",
    "{person} learned to play a {adjective} tune {time}.",
    "Everyone at the {place} likes the {food} that {person} makes.",
    "A {colour} {animal} sat on the {thing} and watched {person}.",
    "{person} lost a {thing} near the {place} and found it again {time}.",
    "The {colour} house beside the {place} has stood empty for years.",
    "{person} says that {food} tastes best {time}.",
    "In the {place}, somebody had left a {colour} {thing}.",
    "{person} took the {adjective} way home and met {person} there.",
    "The {thing} on the table was {colour}, {adjective} and rather old.",
    "{time_first}, {person} opened the window and listened to the {animal}.",
    "Children from the {place} fed the {animal} with {food}.",
    "{person} borrowed a {thing} from {person} and forgot to bring it back.",
    "The owner of the {place} sold a {adjective} {thing} to {person}.",
    "If it is {adjective} enough, {person} will sit outside the {place} {time}.",
    "{person} told a {adjective} story about a {animal} and a {thing}.",
    "They repaired the roof of the {place} and painted its door {colour}.",
    "{person} never eats {food} before going to the {place}.",
    "The {animal} followed {person} all the way to the {place}.",
    "{person} sat down by the {place} and read a book about {food}.",
    "Somebody knocked at the door {time}, but it was only {person} with a {thing}.",
    "A {adjective} light shone over the {place} {time}.",
    "{person} planted {colour} flowers in front of the {place}.",
    "Most visitors come to the {place} for its {food}.",
    "{person} swept the floor, fed the {animal} and went to the {place}.",
    "The {thing} that {person} made is {adjective}, but it works.",
    "{time_first} a {adjective} {animal} ran across the yard of the {place}.",
    "{person} promised {person} a basket of {food}.",
    "Behind the {place} there is a {adjective} path that {person} likes.",
    "{person} dreamed of a {colour} {thing} and woke up {time}.",
    "The people of the {place} are known for being {adjective}.",
    "{person} cleaned the {thing} with a {colour} cloth {time}.",
    "Neither {person} nor {person} could say who had moved the {thing}.",
    "The {animal} was {adjective} {time}, and so was {person}.",
];

const PERSONS: [&str; 24] = [
    "Anna", "Bruno", "Clara", "David", "Emil", "Farida", "Greta", "Hassan", "Ines", "Jonas", "Karim", "Lena",
    "Mateo", "Nadia", "Oscar", "Paula", "Quentin", "Rosa", "Samir", "Tessa", "Ulrich", "Vera", "Wanda",
    "Yusuf",
];
const PLACES: [&str; 20] = [
    "market",
    "library",
    "mill",
    "harbour",
    "school",
    "bakery",
    "garden",
    "station",
    "bridge",
    "chapel",
    "orchard",
    "theatre",
    "workshop",
    "museum",
    "post office",
    "village square",
    "barn",
    "vineyard",
    "old inn",
    "town hall",
];
const THINGS: [&str; 20] = [
    "chair",
    "clock",
    "ladder",
    "kettle",
    "mirror",
    "basket",
    "bicycle",
    "umbrella",
    "blanket",
    "drum",
    "shelf",
    "bucket",
    "cupboard",
    "wheelbarrow",
    "candle",
    "broom",
    "teapot",
    "carpet",
    "barrel",
    "bench",
];
const ANIMALS: [&str; 14] = [
    "cat", "dog", "goat", "donkey", "hen", "goose", "rabbit", "sparrow", "pony", "hedgehog", "duck", "sheep",
    "owl", "squirrel",
];
const FOODS: [&str; 16] = [
    "soup",
    "bread",
    "plum jam",
    "cheese",
    "lentils",
    "apple cake",
    "honey",
    "mushrooms",
    "rice",
    "roasted nuts",
    "pears",
    "onion pie",
    "porridge",
    "noodles",
    "pickles",
    "gingerbread",
];
const COLOURS: [&str; 10] =
    ["red", "blue", "green", "yellow", "white", "brown", "grey", "purple", "pink", "black"];
const ADJECTIVES: [&str; 18] = [
    "quiet", "narrow", "gentle", "crooked", "bright", "dusty", "cheerful", "heavy", "warm", "strange",
    "simple", "tidy", "lively", "damp", "pleasant", "curious", "slow", "friendly",
];
const TIMES: [&str; 14] = [
    "in the morning",
    "at noon",
    "after dinner",
    "on Sunday",
    "late at night",
    "last autumn",
    "before sunrise",
    "during the holidays",
    "in early spring",
    "on the way home",
    "after the long winter",
    "once a month",
    "as usual",
    "every other evening",
];

/// An infinite text.
pub(super) struct Filler {
    kind: Haystack,
    random: ChaCha8Rng,
    /// Remaining templates or noise, last first.
    deck: Vec<&'static str>,
}

impl Filler {
    pub(super) fn new(kind: Haystack, random: ChaCha8Rng) -> Self {
        Self { kind, random, deck: vec![] }
    }

    pub(super) fn sentence(&mut self) -> String {
        if self.deck.is_empty() {
            self.deck = match self.kind {
                Haystack::Noise => NOISE.iter().rev().copied().collect(),
                Haystack::Sentences => shuffled(&mut self.random, &TEMPLATES),
            };
        }
        let template = self.deck.pop().unwrap_or_default();
        fill(&mut self.random, template)
    }
}

/// Shuffled, so that every template is used once before any repeats (Fisher & Yates 1938).
fn shuffled(random: &mut ChaCha8Rng, list: &[&'static str]) -> Vec<&'static str> {
    let mut deck = list.to_vec();
    for index in (1..deck.len()).rev() {
        deck.swap(index, below(random, index + 1));
    }
    deck
}

/// A template with its slots filled.
fn fill(random: &mut ChaCha8Rng, template: &str) -> String {
    let mut sentence = String::with_capacity(80);
    let mut rest = template;
    while let Some((before, slot, after)) = rest
        .split_once('{')
        .and_then(|(before, tail)| tail.split_once('}').map(|(slot, after)| (before, slot, after)))
    {
        sentence.push_str(before);
        sentence.push_str(&value(random, slot));
        rest = after;
    }
    sentence + rest
}

/// A word for a slot; `_first` slots start a sentence.
fn value(random: &mut ChaCha8Rng, slot: &str) -> String {
    if let Some(slot) = slot.strip_suffix("_first") {
        let word = value(random, slot);
        let (first, rest) = word.split_at(1);
        return first.to_uppercase() + rest;
    }
    let words: &[&str] = match slot {
        "person" => &PERSONS,
        "place" => &PLACES,
        "thing" => &THINGS,
        "animal" => &ANIMALS,
        "food" => &FOODS,
        "colour" => &COLOURS,
        "adjective" => &ADJECTIVES,
        _ => &TIMES,
    };
    pick(random, words).to_owned()
}

/// A random item of a list.
pub(super) fn pick(random: &mut ChaCha8Rng, list: &[&'static str]) -> &'static str {
    list[below(random, list.len())]
}

fn below(random: &mut ChaCha8Rng, count: usize) -> usize {
    // u32, so that 32- and 64-bit machines draw the same numbers.
    random.random_range(0..count as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::HashSet;

    fn sentences(kind: Haystack, count: usize) -> Vec<String> {
        let mut filler = Filler::new(kind, ChaCha8Rng::seed_from_u64(7));
        (0..count).map(|_| filler.sentence()).collect()
    }

    #[test]
    fn sentences_are_whole_and_hardly_repeat() {
        let text = sentences(Haystack::Sentences, 4_000);
        for sentence in &text {
            assert!(sentence.starts_with(char::is_uppercase) && sentence.ends_with('.'), "{sentence}");
            assert!(
                !sentence.contains(['{', '}']) && !sentence.contains(|c: char| c.is_ascii_digit()),
                "{sentence}"
            );
        }
        let different: HashSet<&String> = text.iter().collect();
        assert!(different.len() > 3_800, "{}", different.len());
    }

    #[test]
    fn every_slot_has_words_of_its_own() {
        let known =
            ["person", "place", "thing", "animal", "food", "colour", "adjective", "time", "time_first"];
        for template in TEMPLATES {
            for slot in template.split('{').skip(1).filter_map(|tail| tail.split('}').next()) {
                assert!(known.contains(&slot), "{slot} in {template}");
            }
        }
    }

    #[test]
    fn noise_goes_round() {
        let text = sentences(Haystack::Noise, 7);
        assert_eq!(text[..5], NOISE);
        assert_eq!(text[5..], NOISE[..2]);
    }

    #[test]
    fn no_key_is_in_a_haystack() {
        let lists: [&[&str]; 10] =
            [&TEMPLATES, &NOISE, &PERSONS, &PLACES, &THINGS, &ANIMALS, &FOODS, &COLOURS, &ADJECTIVES, &TIMES];
        let all = lists.concat().join(" ");
        for key in KEYS {
            assert!(!all.contains(key), "{key}");
        }
        assert_eq!(KEYS.iter().collect::<HashSet<_>>().len(), KEYS.len());
    }
}
