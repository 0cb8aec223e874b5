//! The cache is shared with `huggingface_hub`. Needs `LAYERSCOPE_PYTHON`, a Python that has the package.

use crate::server::COMMIT;
use crate::{Bench, ID, checkpoint, gguf};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a script that prints a path; `None` without `LAYERSCOPE_PYTHON`.
fn python(bench: &Bench, cache: &Path, script: &str, offline: bool) -> Option<PathBuf> {
    let Some(python) = std::env::var_os("LAYERSCOPE_PYTHON") else {
        eprintln!("skipped: LAYERSCOPE_PYTHON names no Python with huggingface_hub");
        return None;
    };
    let output = Command::new(python)
        .args(["-c", &format!("import huggingface_hub as hub\nprint({script})")])
        .env("HF_ENDPOINT", bench.hub.endpoint())
        .env("HF_HUB_CACHE", cache)
        .env("HF_HOME", cache.with_file_name("home"))
        .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" })
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("NO_PROXY", "*")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
}

const SNAPSHOT: &str = "hub.snapshot_download('owner/model', allow_patterns=\
    ['*.json', '*.safetensors', 'chat_template.jinja'])";
const FILE: &str = "hub.hf_hub_download('owner/model', 'model-Q8_0.gguf')";

/// Links and model files of a repository's folder, with their targets or lengths.
fn layout(repository: &Path) -> Vec<(String, String)> {
    let mut entries = vec![];
    let mut folders: Vec<PathBuf> = ["blobs", "refs", "snapshots"].map(|name| repository.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(repository).unwrap().display().to_string();
            if let Ok(target) = path.read_link() {
                entries.push((name, target.display().to_string()));
            } else if path.is_dir() {
                folders.push(path);
            } else {
                entries.push((name, std::fs::metadata(path).unwrap().len().to_string()));
            }
        }
    }
    entries.sort();
    entries
}

#[test]
fn both_lay_out_the_same_and_use_what_the_other_fetched() {
    for (files, script) in [(checkpoint(), SNAPSHOT), (gguf().to_vec(), FILE)] {
        let mut bench = Bench::new();
        bench.hub.has(ID, COMMIT, &files);
        let theirs = bench.folder.path().join("theirs");
        let Some(their_path) = python(&bench, &theirs, script, false) else { return };
        let our_path = bench.fetch(ID).unwrap();
        assert_eq!(layout(&theirs.join("models--owner--model")), layout(&bench.repository()));

        // Python finds files that Layerscope fetched.
        bench.hub.log();
        assert_eq!(python(&bench, &bench.cache(), script, true).unwrap(), our_path);
        assert!(bench.hub.log().is_empty());

        // And the reverse.
        bench.places.hub.cache = Some(theirs.clone());
        assert_eq!(bench.fetch(ID).unwrap(), their_path);
        assert_eq!(bench.hub.log().len(), 1);
        bench.offline();
        assert_eq!(bench.fetch(ID).unwrap(), their_path);
        assert!(bench.hub.log().is_empty());
        let models = layerscope_models::local_models(&bench.places);
        assert_eq!(models.iter().map(|model| &model.path).collect::<Vec<_>>(), [&their_path]);
    }
}
