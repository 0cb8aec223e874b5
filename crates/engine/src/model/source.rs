//! Where a model comes from.

use std::path::PathBuf;

/// A model's files, its name, and its architecture and adapter if the user names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    /// Display name.
    pub name: String,
    /// Where the files are.
    pub files: ModelFiles,
    /// The architecture to assume instead of the one in the file.
    pub architecture: Option<String>,
    /// An adapter to run beside its weights: a folder of PEFT's, or a GGUF file.
    pub adapter: Option<PathBuf>,
}

/// Where a model's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFiles {
    /// A GGUF file, or a folder with config.json, tokenizer.json and safetensors.
    Path(PathBuf),
    /// A GGUF file that is part of the program.
    Embedded(&'static [u8]),
}

impl ModelSource {
    /// A file or folder under its own name.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        Self::named(name, path)
    }

    /// A file or folder under another name.
    pub fn named(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), files: ModelFiles::Path(path.into()), architecture: None, adapter: None }
    }

    /// A GGUF file that is part of the program.
    pub fn embedded(name: &str, bytes: &'static [u8]) -> Self {
        Self { name: name.to_owned(), files: ModelFiles::Embedded(bytes), architecture: None, adapter: None }
    }

    /// The known model of that name, e.g. the one in a run's manifest.
    pub fn find<'a>(known: &'a [Self], name: &str) -> Option<&'a Self> {
        known.iter().find(|source| source.name == name)
    }

    /// The same model with an adapter, or without one.
    pub fn with_adapter(self, adapter: Option<PathBuf>) -> Self {
        Self { adapter, ..self }
    }

    /// The same model with an assumed architecture.
    pub fn of_architecture(self, architecture: Option<&str>) -> Self {
        Self { architecture: architecture.map(str::to_owned), ..self }
    }
}
