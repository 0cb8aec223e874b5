//! Where models were loaded from on this machine, so that a run, which names no folder, finds its model again.

use crate::Places;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Most models that are remembered.
const MOST: usize = 1_000;

/// Remembers where the model of a hash was loaded from. Where that cannot be written, nothing is remembered.
pub fn remember(places: &Places, sha256: &str, path: &Path) {
    let Some(file) = file(places) else { return };
    let mut seen = read(&file);
    if seen.get(sha256).is_some_and(|known| known == path) {
        return;
    }
    if seen.len() >= MOST {
        seen.retain(|_, path| path.exists());
    }
    seen.insert(sha256.to_owned(), path.to_owned());
    if let Ok(text) = serde_json::to_string_pretty(&seen) {
        let _ = write(&file, &text);
    }
}

/// Whether some model was loaded from a path.
pub fn is_known(places: &Places, path: &Path) -> bool {
    file(places).is_some_and(|file| read(&file).values().any(|known| known == path))
}

/// Where the model of a hash was loaded from last, if something is still there.
pub fn remembered(places: &Places, sha256: &str) -> Option<PathBuf> {
    read(&file(places)?).remove(sha256).filter(|path| path.exists())
}

fn file(places: &Places) -> Option<PathBuf> {
    places.models_folder.as_ref()?.parent().map(|cache| cache.join("seen-models.json"))
}

fn read(file: &Path) -> BTreeMap<String, PathBuf> {
    layerscope_files::read(file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Beside it first, so that no other process reads half of it.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = file.with_extension(format!("{}.unfinished", std::process::id()));
    layerscope_files::create(&unfinished)?.write_all(text.as_bytes())?;
    std::fs::rename(&unfinished, file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_where_it_was_loaded_last_while_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache/models");
        let places = Places::from_variables(None, &|name| {
            (name == "LAYERSCOPE_CACHE").then(|| cache.parent().unwrap().as_os_str().to_owned())
        });
        let [a, b] = ["a.gguf", "b.gguf"].map(|name| folder.path().join(name));
        for path in [&a, &b] {
            std::fs::write(path, "x").unwrap();
        }
        assert_eq!(remembered(&places, "1"), None);
        assert!(!is_known(&places, &a));
        remember(&places, "1", &a);
        assert!(is_known(&places, &a) && !is_known(&places, &b));
        remember(&places, "2", &a);
        remember(&places, "1", &b);
        assert_eq!([remembered(&places, "1"), remembered(&places, "2")], [Some(b.clone()), Some(a)]);
        std::fs::remove_file(&b).unwrap();
        assert_eq!(remembered(&places, "1"), None);
        // What is damaged is begun anew.
        std::fs::write(file(&places).unwrap(), "{").unwrap();
        assert_eq!(remembered(&places, "2"), None);
        remember(&places, "2", folder.path());
        assert_eq!(remembered(&places, "2"), Some(folder.path().to_owned()));
        // Where nothing can be written nothing fails.
        remember(&Places::from_variables(None, &|_| None), "1", &b);
    }
}
