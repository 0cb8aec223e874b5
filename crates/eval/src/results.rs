//! `eval.json`: what each item of a task file came to under each policy.

use crate::likelihood::Likelihood;
use crate::summary::Scored;
use layerscope_engine::{Error, Model, Result, write_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The file's name in its folder.
pub const EVAL: &str = "eval.json";

const SCHEMA: u32 = 1;

/// What an evaluation depends on beside items and policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// The model's name.
    pub model: String,
    /// SHA-256 of its weights, lower-case hexadecimal.
    pub model_sha256: String,
    /// SHA-256 of its adapter's matrices; `None` without one.
    pub adapter_sha256: Option<String>,
    /// Precision of its weights.
    pub weights: String,
    /// Name of the task file.
    pub tasks: String,
    /// SHA-256 of its bytes.
    pub tasks_sha256: String,
    /// Whether prompts are not put into the chat template.
    pub raw: bool,
    /// Most tokens of a generated text, where the item says nothing.
    pub max_new_tokens: usize,
}

impl Settings {
    /// Of a model and a task file.
    pub fn new(model: &Model, tasks: &crate::TaskFile, raw: bool, max_new_tokens: usize) -> Self {
        Self {
            model: model.name.clone(),
            model_sha256: model.sha256().to_owned(),
            adapter_sha256: model.adapter.as_ref().map(|adapter| adapter.sha256.clone()),
            weights: model.precision.name().to_owned(),
            tasks: tasks.name.clone(),
            tasks_sha256: tasks.sha256.clone(),
            raw,
            max_new_tokens,
        }
    }
}

/// An evaluation, finished or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    schema: u32,
    /// Version of layerscope that wrote it.
    pub layerscope: String,
    /// What it depends on.
    #[serde(flatten)]
    pub settings: Settings,
    /// In the order in which they were done.
    pub results: Vec<ItemResult>,
}

/// An item under a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ItemResult {
    /// The item's id.
    pub id: String,
    /// Its category.
    pub category: String,
    /// The policy's name.
    pub policy: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// By metric, 0 to 1.
    pub scores: BTreeMap<String, f64>,
    /// The generated text, where the item asks for one.
    pub text: Option<String>,
    /// Of each choice, where it has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Likelihood>,
}

impl Evaluation {
    /// Without results.
    pub fn new(settings: Settings) -> Self {
        let layerscope = env!("CARGO_PKG_VERSION").to_owned();
        Self { schema: SCHEMA, layerscope, settings, results: vec![] }
    }

    /// The one in a folder, or an empty one where there is none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged, of a newer version, or of other settings.
    pub fn resume(folder: &Path, settings: Settings) -> Result<Self> {
        let path = folder.join(EVAL);
        if !path.exists() {
            return Ok(Self::new(settings));
        }
        let found = Self::read(&path)?;
        if found.settings != settings {
            return Err(Error::input(format!(
                "{} is of other tasks, another model or other settings; give another folder with --out, or delete it",
                path.display()
            )));
        }
        Ok(found)
    }

    /// The one in a run folder; `None` where there is none.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_of_run(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(EVAL);
        if layerscope_files::exists(&path) { Self::read(&path).map(Some) } else { Ok(None) }
    }

    /// The scores of each item under each policy.
    pub fn scored(&self) -> impl Iterator<Item = Scored<'_>> {
        self.results.iter().map(|ItemResult { id, category, policy, scores, .. }| Scored {
            policy,
            id,
            category,
            scores,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Input`] if it cannot be read, is damaged or of a newer version.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = layerscope_files::read(path).map_err(|error| Error::io("read", path, &error))?;
        let found: Self = serde_json::from_slice(&bytes).map_err(|error| {
            Error::input(format!("{} is no evaluation of layerscope ({error}); delete it", path.display()))
        })?;
        if found.schema > SCHEMA {
            return Err(Error::input(format!(
                "{} was written by a newer layerscope; update layerscope",
                path.display()
            )));
        }
        Ok(found)
    }

    /// Writes it into a folder, which is made where there is none.
    ///
    /// # Errors
    /// [`Error::Failure`] where that is not possible.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        let text = serde_json::to_string(self).map_err(|error| Error::failure(error.to_string()))?;
        write_file(&folder.join(EVAL), format!("{text}\n").as_bytes())
    }
}
