//! What the full model says of the prompts, kept beside the adapter, so that it is generated once.

use crate::data::Item;
use layerscope_engine::{Error, Result, write_file};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

const NAME: &str = "continuations.json";

/// Tokens of the full model's texts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Continuations {
    /// The model, the prompts and the number of tokens.
    of: String,
    tokens: BTreeMap<String, Vec<u32>>,
}

impl Continuations {
    /// Those of a folder, if they are of the same model and prompts.
    ///
    /// # Errors
    /// [`Error::Input`] where the file is damaged.
    pub(crate) fn read(folder: &Path, of: String) -> Result<Self> {
        let path = folder.join(NAME);
        let text = match layerscope_files::read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let known: Option<Self> = match text.is_empty() {
            true => None,
            false => Some(serde_json::from_str(&text).map_err(|error| {
                Error::input(format!("{} is damaged ({error}); remove it", path.display()))
            })?),
        };
        let tokens = known.filter(|known| known.of == of).map(|known| known.tokens).unwrap_or_default();
        Ok(Self { of, tokens })
    }

    pub(crate) fn of(&self, id: &str) -> Option<&[u32]> {
        self.tokens.get(id).map(Vec::as_slice)
    }

    pub(crate) fn add(&mut self, item: &Item) {
        if item.is_own {
            self.tokens.insert(item.id.clone(), item.continuation.clone());
        }
    }

    /// # Errors
    /// [`Error::Failure`] where the folder cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|error| Error::failure(error.to_string()))?;
        write_file(&folder.join(NAME), text.as_bytes())
    }
}
