//! What is at a path that a user names.

use layerscope_diagnostics::run::MANIFEST;
use std::path::{Path, PathBuf};

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Found {
    /// A run folder, or nothing that is known: reading it says what is wrong.
    Run(PathBuf),
    /// A model.
    Model,
    /// An adapter.
    Adapter,
    /// A prompt file.
    Prompts,
    /// A file that is none of these.
    Other,
    /// Nothing.
    Nothing,
}

/// Looks at a path.
pub fn look(path: &Path) -> Found {
    let is = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
    if path.file_name().is_some_and(|name| name == MANIFEST) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        return Found::Run(folder.unwrap_or(Path::new(".")).to_owned());
    }
    if path.join("config.json").is_file() || is("gguf") {
        return Found::Model;
    }
    if path.join("adapter_config.json").is_file() {
        return Found::Adapter;
    }
    if is("jsonl") {
        return Found::Prompts;
    }
    match path {
        file if file.is_file() => Found::Other,
        folder if folder.exists() => Found::Run(folder.to_owned()),
        _ => Found::Nothing,
    }
}
