//! JSON files of a run folder with a schema version.

use std::fmt::Display;
use std::path::Path;

use layerscope_engine::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A kind of file.
pub(super) struct JsonFile {
    /// Schema version; newer ones are rejected.
    pub(super) schema: u32,
    /// What the file is, e.g. "a run's manifest".
    pub(super) what: &'static str,
    /// What to do about a damaged one.
    pub(super) mend: &'static str,
}

impl JsonFile {
    /// The content of the file at `path`.
    pub(super) fn parse<T: DeserializeOwned>(&self, path: &Path, bytes: &[u8]) -> Result<T> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| self.damaged(path, &error))?;
        match value.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema > u64::from(self.schema) => {
                return Err(Error::input(format!(
                    "{} was written by a newer layerscope (schema {schema}, this one reads {}); update layerscope",
                    path.display(),
                    self.schema
                )));
            }
            Some(1..) => {}
            _ => return Err(self.damaged(path, &"it names no schema version")),
        }
        serde_json::from_value(value).map_err(|error| self.damaged(path, &error))
    }

    /// The error that the file is damaged or was changed.
    pub(super) fn damaged(&self, path: &Path, problem: &dyn Display) -> Error {
        Error::input(format!("{} is not {} ({problem}); {}", path.display(), self.what, self.mend))
    }

    /// The file's bytes.
    pub(super) fn bytes(&self, content: &impl Serialize) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(content)
            .map_err(|error| Error::failure(format!("cannot write {}: {error}", self.what)))?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}
