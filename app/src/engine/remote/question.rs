//! Questions about files of the engine's machine, and their answers. They are answered beside the engine's work.

use super::plain;
use crate::data::{Found, Want};
pub use crate::data::{MapPart, MapTops};
use layerscope_cutoff::recommend::Options;
use layerscope_engine::ModelSource;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Files beside a run's own that views show.
pub(crate) const OTHERS: [&str; 3] =
    [layerscope_bench::FILE_NAME, layerscope_eval::EVAL, layerscope_eval::HARNESS];

/// A recorded prompt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PromptOf {
    /// The run folder.
    pub folder: PathBuf,
    /// The manifest's revision.
    pub revision: u64,
    /// The prompt's id.
    pub id: String,
}

/// A question of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Question {
    /// What is at a path, or which model has this name.
    Look {
        /// The path, or the name.
        path: PathBuf,
    },
    /// The models that can be loaded by name.
    Models,
    /// The small files of a run folder.
    Run {
        /// The run folder.
        folder: PathBuf,
    },
    /// The upper levels of a prompt's maps.
    Maps {
        /// The prompt.
        of: PromptOf,
    },
    /// A part of a prompt's maps.
    Part {
        /// The prompt.
        of: PromptOf,
        /// The part.
        want: Want,
    },
    /// The bytes of a prompt file.
    Prompts {
        /// Its path.
        path: PathBuf,
    },
    /// A report of run folders.
    Report {
        /// The run folders.
        folders: Vec<PathBuf>,
        /// Tolerance and anchor.
        options: Options,
        /// Name of the main file, whose extension says the format.
        name: String,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// What is at a path.
    Found {
        /// What it is.
        found: Found,
        /// The model, if it is one.
        #[serde(with = "plain::source_if_any")]
        model: Option<ModelSource>,
    },
    /// Names of models.
    Models(Vec<String>),
    /// Names and sizes of the files whose bytes came before, one after the other.
    Files {
        /// The files.
        files: Vec<(String, u64)>,
        /// The run's model, where it was found.
        #[serde(with = "plain::source_if_any")]
        model: Option<ModelSource>,
    },
    /// Upper levels of maps.
    Maps(MapTops),
    /// A part of maps.
    Part(MapPart),
    /// The bytes came before.
    Bytes,
}

/// An answer with the bytes that came before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Whether a path stays below the folder that it is joined to.
pub(crate) fn is_relative(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_))) && path.file_name().is_some()
}
