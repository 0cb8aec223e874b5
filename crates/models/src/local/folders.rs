//! Plain folders: files are named by their file name, checkpoints by their folder name.

use super::{LocalModel, ModelFormat, Origin, entries, file_size};
use crate::checkpoint;
use crate::file_names::{is_language_model, split_part};
use std::path::{Path, PathBuf};

/// The GGUF files and checkpoint folders directly in `folder`.
pub(super) fn models_of(folder: &Path, origin: Origin) -> Vec<LocalModel> {
    entries(folder)
        .into_iter()
        .filter_map(|(name, path)| gguf(&name, &path, origin).or_else(|| checkpoint_at(name, path, origin)))
        .collect()
}

/// The GGUF files in folders `publisher/repository`, LM Studio's layout.
pub(super) fn models_of_publishers(folder: &Path) -> Vec<LocalModel> {
    let mut models = vec![];
    for (publisher, path) in entries(folder) {
        for (repository, path) in entries(&path) {
            for (file, path) in entries(&path) {
                models.extend(gguf(&format!("{publisher}/{repository}/{file}"), &path, Origin::LmStudio));
            }
        }
    }
    models
}

/// The GGUF file of that name, if it is a complete language model.
pub(super) fn gguf(name: &str, path: &Path, origin: Origin) -> Option<LocalModel> {
    if !is_language_model(name) || split_part(name).is_some() {
        return None;
    }
    let bytes = file_size(path)?;
    Some(LocalModel {
        name: name.to_owned(),
        origin,
        path: path.to_owned(),
        bytes,
        format: ModelFormat::Gguf,
    })
}

/// The folder, if it holds a complete checkpoint.
pub(super) fn checkpoint_at(name: String, path: PathBuf, origin: Origin) -> Option<LocalModel> {
    let weights = checkpoint::weights(&path).ok()?;
    let bytes = weights.iter().filter_map(|file| file_size(file)).sum();
    Some(LocalModel { name, origin, path, bytes, format: ModelFormat::Safetensors })
}
