//! What a user or a script names as a model: paths, names, Hub ids and addresses.

use super::text;
use crate::Target;
use crate::mutate::{Random, text as words};
use layerscope_models::{HubReference, Places, Reference, Wanted};
use std::path::{Component, Path};
use std::sync::LazyLock;

/// References parse back and stay within their folder.
pub const TARGET: Target = Target { name: "model_reference", read, mutate, seeds };

/// No models on this disk.
static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let mut places = Places::from_variables(None, &|_| None);
    places.current_folder = "/nonexistent".into();
    places.ollama.clear();
    places
});

fn read(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let _ = Reference::parse(text, &PLACES);
    if let Ok(Some(hub)) = HubReference::parse(text) {
        let file = match &hub.wanted {
            Wanted::File(file) => file,
            Wanted::Any | Wanted::Quantization(_) => "",
        };
        // An address can name files that an id cannot.
        let shown = hub.to_string();
        if !file.contains(['@', ':']) {
            assert_eq!(
                HubReference::parse(&shown).ok().flatten().as_ref(),
                Some(&hub),
                "{shown} parses back"
            );
        }
        for name in [hub.id.as_str(), hub.revision.as_str(), file] {
            let inside = |part| matches!(part, Component::Normal(_));
            assert!(Path::new(name).components().all(inside), "{name} leaves its folder");
        }
    }
}

const SEEDS: [&str; 12] = [
    "owner/name",
    "owner/name@revision",
    "owner/name:Q4_K_M",
    "owner/name@main:Q8_0",
    "owner/name/folder/file.gguf",
    "hf.co/owner/name:latest",
    "https://huggingface.co/owner/name/blob/main/file.gguf?download=true",
    "https://huggingface.co/owner/name/resolve/refs/pr/1/model.safetensors",
    "https://huggingface.co/datasets/owner/name",
    "./model.gguf",
    "~/models/a.gguf",
    "llama3.2:1b",
];

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const PARTS: [&str; 14] = [
        "/",
        "@",
        ":",
        "..",
        ".gguf",
        "hf.co/",
        "https://",
        "http://",
        "huggingface.co",
        "/blob/main/",
        "/tree/refs/",
        "%2e%2e",
        "#",
        "?",
    ];
    Some(words::changed(text(input)?, &PARTS, random).into_bytes())
}

fn seeds() -> Vec<Vec<u8>> {
    SEEDS.map(|seed| seed.as_bytes().to_vec()).to_vec()
}
