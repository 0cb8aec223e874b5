//! Models on this disk.

mod folders;
mod hub_cache;
mod ollama;

use crate::places::Places;
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// A model on this disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// Unique name that a user can type.
    pub name: String,
    /// The program or folder that it belongs to.
    pub origin: Origin,
    /// The GGUF file, or the folder with safetensors.
    pub path: PathBuf,
    /// Size of the weights.
    pub bytes: u64,
    /// The file format of the weights.
    pub format: ModelFormat,
}

/// The program or folder that a model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The current folder.
    CurrentFolder,
    /// Layerscope's own folder of models.
    Layerscope,
    /// The Hugging Face cache.
    HuggingFace,
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// llama.cpp.
    LlamaCpp,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CurrentFolder => "this folder",
            Self::Layerscope => "layerscope",
            Self::HuggingFace => "Hugging Face",
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::LlamaCpp => "llama.cpp",
        })
    }
}

/// The file format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelFormat {
    /// One GGUF file.
    Gguf,
    /// A folder with safetensors.
    Safetensors,
}

impl fmt::Display for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gguf => "GGUF",
            Self::Safetensors => "safetensors",
        })
    }
}

impl LocalModel {
    /// Whether `text` names this model: its name, with or without `.gguf`, `:latest` or `ollama:`.
    pub fn is_called(&self, text: &str) -> bool {
        let text = match self.origin {
            Origin::Ollama => text.strip_prefix("ollama:").unwrap_or(text),
            _ => text,
        };
        text == self.name
            || self.name.strip_suffix(":latest") == Some(text)
            || self.name.strip_suffix(".gguf") == Some(text)
    }
}

/// Models on this disk: of the current folder, Layerscope's own, the Hugging Face cache, Ollama, LM Studio and
/// llama.cpp, in this order. Models that are unreadable or incomplete are skipped.
pub fn local_models(places: &Places) -> Vec<LocalModel> {
    let mut all = folders::models_of(&places.current_folder, Origin::CurrentFolder);
    if let Some(folder) = &places.models_folder {
        all.extend(folders::models_of(folder, Origin::Layerscope));
    }
    if let Some(cache) = &places.hub.cache {
        all.extend(hub_cache::models_of(cache));
    }
    all.extend(places.ollama.iter().flat_map(|folder| ollama::models_of(folder)));
    all.extend(places.lm_studio.iter().flat_map(|folder| folders::models_of_publishers(folder)));
    all.extend(places.llama_cpp.iter().flat_map(|folder| folders::models_of(folder, Origin::LlamaCpp)));

    // The first model keeps a name that occurs twice; the others are named by their path.
    let mut names = HashSet::new();
    all.retain_mut(|model| {
        if names.contains(&model.name) {
            model.name = model.path.display().to_string();
        }
        names.insert(model.name.clone())
    });
    all
}

/// The entries of a folder by name; empty if it cannot be read.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut entries: Vec<(String, PathBuf)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().into_string().ok()?, entry.path()))
        })
        .collect();
    entries.sort();
    entries
}

/// Size of a file; `None` if it does not exist.
fn file_size(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
}
