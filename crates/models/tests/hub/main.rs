//! Fetching from a local test Hub, with every failure.

#![allow(clippy::print_stderr, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod broken;
mod cached;
mod disk;
mod python;
mod refused;
mod server;
mod whole;

use layerscope_models::{Error, HubReference, Places, Progress, Result, Token, fetch};
use server::Hub;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const ID: &str = "owner/model";

/// A Hub and an empty cache.
struct Bench {
    hub: Hub,
    folder: tempfile::TempDir,
    places: Places,
}

impl Bench {
    fn new() -> Self {
        let (hub, folder) = (Hub::start(), tempfile::tempdir().unwrap());
        let places = places(folder.path(), &hub.endpoint());
        Self { hub, folder, places }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    fn repository(&self) -> PathBuf {
        self.cache().join("models--owner--model")
    }

    fn fetch(&self, reference: &str) -> Result<PathBuf> {
        fetch(&hub(reference), &self.places, &mut |_| {}, &AtomicBool::new(false))
    }

    fn error(&self, reference: &str) -> Error {
        self.fetch(reference).unwrap_err()
    }

    fn offline(&mut self) {
        self.places.hub.offline = true;
    }

    fn token(&mut self, token: &str) {
        self.places.hub.token = Token::new(token);
    }

    /// The partial files in the cache.
    fn partials(&self) -> Vec<PathBuf> {
        let blobs = std::fs::read_dir(self.repository().join("blobs")).into_iter().flatten().flatten();
        blobs
            .map(|blob| blob.path())
            .filter(|path| path.extension().is_some_and(|e| e == "incomplete"))
            .collect()
    }

    fn partial_length(&self) -> u64 {
        let partials = self.partials();
        assert_eq!(partials.len(), 1, "{partials:?}");
        std::fs::metadata(&partials[0]).unwrap().len()
    }
}

fn places(folder: &Path, endpoint: &str) -> Places {
    let mut places = Places::from_variables(Some(folder), &|_| None);
    places.hub.cache = Some(folder.join("hub"));
    places.hub.endpoint = endpoint.to_owned();
    places.hub.timeout = Duration::from_secs(20);
    places
}

fn hub(reference: &str) -> HubReference {
    HubReference::parse(reference).unwrap().unwrap()
}

/// Compares files without printing megabytes.
fn assert_holds(path: impl AsRef<Path>, content: &[u8]) {
    let path = path.as_ref();
    let is = std::fs::read(path).unwrap();
    assert!(is == content, "{}: {} bytes, or others, for {}", path.display(), is.len(), content.len());
}

/// Pseudo-random bytes.
fn content(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(step).collect()
}

/// A GGUF repository with one large file.
fn gguf() -> [(&'static str, Vec<u8>); 2] {
    [("README.md", b"a model".to_vec()), ("model-Q8_0.gguf", content(3 << 20, 1))]
}

/// A safetensors repository in two shards, with files that must not be fetched.
fn checkpoint() -> Vec<(&'static str, Vec<u8>)> {
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    vec![
        (".gitattributes", b"x".to_vec()),
        ("README.md", b"a model".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("generation_config.json", b"{ }".to_vec()),
        ("tokenizer.json", content(50_000, 2)),
        ("tokenizer_config.json", b"{  }".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", content(700_000, 3)),
        ("model-00002-of-00002.safetensors", content(300_000, 4)),
        ("pytorch_model.bin", content(1000, 5)),
        ("onnx/model.onnx", content(1000, 6)),
    ]
}

/// Collects the progress of a fetch.
#[derive(Default)]
struct Told {
    notes: Vec<String>,
    bytes: Vec<(String, u64, u64)>,
}

impl Told {
    fn hear(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Note(note) => self.notes.push(note.to_owned()),
            Progress::Bytes { file, done, all } => self.bytes.push((file.to_owned(), done, all)),
        }
    }
}
