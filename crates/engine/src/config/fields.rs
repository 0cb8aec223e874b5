//! Fields of a model's config by name, from the metadata of a GGUF file or from `config.json`.

use crate::weights::GgufValue as Value;
use crate::{Error, Result};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::path::Path;

/// A field's names: in `config.json`, and in GGUF metadata after the architecture's prefix. `|` separates alternatives, of which
/// the first present one counts; an empty name means that such files do not have the field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key(pub(crate) &'static str, pub(crate) &'static str);

/// The fields of a config, and the file to name in errors.
pub(crate) struct Fields<'a> {
    pub(crate) path: &'a Path,
    pub(crate) source: FieldSource<'a>,
}

/// Where fields are read from.
#[derive(Clone, Copy)]
pub(crate) enum FieldSource<'a> {
    /// Metadata of a GGUF file, and the rotary factors in its tensors.
    Gguf { metadata: &'a HashMap<String, Value>, architecture: &'a str, rope_factors: &'a RopeFactors },
    /// `config.json`.
    Json(&'a Json),
}

/// Factors of rotary frequencies, which GGUF files have as tensors.
#[derive(Debug, Clone, Default)]
pub struct RopeFactors {
    /// `rope_freqs.weight` (Llama 3.1).
    pub all: Option<Vec<f32>>,
    /// `rope_factors_short.weight` and `rope_factors_long.weight` (Phi-3).
    pub short_and_long: Option<[Vec<f32>; 2]>,
}

/// A field's value.
enum FieldValue<'a> {
    Gguf(String, &'a Value),
    Json(&'a str, &'a Json),
}

impl<'a> Fields<'a> {
    /// Whether this is a `config.json`.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.source, FieldSource::Json(_))
    }

    /// "FILE: `key` problem".
    pub(crate) fn error(&self, key: Key, problem: &str) -> Error {
        let name = match self.source {
            FieldSource::Gguf { architecture, .. } => {
                format!("metadata `{architecture}.{}`", key.1.split('|').next().unwrap_or_default())
            }
            FieldSource::Json(_) => format!("`{}`", key.0.split('|').next().unwrap_or_default()),
        };
        Error::malformed(self.path, format_args!("{name} {problem}"))
    }

    fn find(&self, key: Key) -> Option<FieldValue<'a>> {
        let names = |names: &'static str| names.split('|').filter(|name| !name.is_empty());
        match self.source {
            FieldSource::Gguf { metadata, architecture, .. } => names(key.1).find_map(|name| {
                let name = format!("{architecture}.{name}");
                let value = metadata.get(&name)?;
                Some(FieldValue::Gguf(name, value))
            }),
            FieldSource::Json(json) => names(key.0).find_map(|name| {
                let value = json.get(name).filter(|value| !value.is_null())?;
                Some(FieldValue::Json(name, value))
            }),
        }
    }

    fn wrong(&self, field: &FieldValue<'_>, expected: &str) -> Error {
        let name = match field {
            FieldValue::Gguf(name, _) => format!("metadata `{name}`"),
            FieldValue::Json(name, _) => format!("`{name}`"),
        };
        Error::malformed(self.path, format_args!("{name} is not {expected}"))
    }

    /// Whether `config.json` has the field with the value null.
    pub(crate) fn is_null(&self, key: Key) -> bool {
        match self.source {
            FieldSource::Gguf { .. } => false,
            FieldSource::Json(json) => key.0.split('|').any(|name| json.get(name).is_some_and(Json::is_null)),
        }
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.find(key).is_some()
    }

    /// A whole number of 0 or more. A GGUF file may have one for each layer; they must be equal.
    pub(crate) fn optional_number_from_zero(&self, key: Key) -> Result<Option<usize>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        let count = match &field {
            FieldValue::Gguf(_, Value::Array(values)) => {
                let counts: Vec<Option<u64>> = values.iter().map(|value| value.as_u64()).collect();
                match counts.split_first() {
                    Some((first, rest)) if rest.iter().all(|count| count == first) => *first,
                    _ => return Err(self.wrong(&field, "the same for every layer, which is not supported")),
                }
            }
            FieldValue::Gguf(_, value) => value.as_u64(),
            FieldValue::Json(_, value) => value.as_u64(),
        };
        match count.and_then(|count| usize::try_from(count).ok()) {
            Some(count) => Ok(Some(count)),
            None => Err(self.wrong(&field, "a whole number of 0 or more")),
        }
    }

    pub(crate) fn optional_count(&self, key: Key) -> Result<Option<usize>> {
        match self.optional_number_from_zero(key)? {
            Some(0) => Err(self.error(key, "is not a count above 0")),
            count => Ok(count),
        }
    }

    pub(crate) fn count(&self, key: Key) -> Result<usize> {
        self.optional_count(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    pub(crate) fn optional_number(&self, key: Key) -> Result<Option<f64>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        let number = match &field {
            FieldValue::Gguf(_, Value::F32(number)) => Some(f64::from(*number)),
            FieldValue::Gguf(_, Value::F64(number)) => Some(*number),
            FieldValue::Gguf(_, value) => value.as_u64().map(|number| number as f64),
            FieldValue::Json(_, value) => value.as_f64(),
        };
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(&field, "a number")),
        }
    }

    pub(crate) fn number(&self, key: Key) -> Result<f64> {
        self.optional_number(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    pub(crate) fn number_or(&self, key: Key, otherwise: f64) -> Result<f64> {
        Ok(self.optional_number(key)?.unwrap_or(otherwise))
    }

    pub(crate) fn optional_boolean(&self, key: Key) -> Result<Option<bool>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        match &field {
            FieldValue::Gguf(_, Value::Bool(value)) | FieldValue::Json(_, Json::Bool(value)) => {
                Ok(Some(*value))
            }
            _ => Err(self.wrong(&field, "true or false")),
        }
    }

    pub(crate) fn optional_text(&self, key: Key) -> Result<Option<&'a str>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        match field {
            FieldValue::Gguf(_, Value::String(text)) | FieldValue::Json(_, Json::String(text)) => {
                Ok(Some(text))
            }
            _ => Err(self.wrong(&field, "a text")),
        }
    }

    /// A list of numbers.
    pub(crate) fn optional_numbers(&self, key: Key) -> Result<Option<Vec<f64>>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        let numbers: Option<Vec<f64>> = match &field {
            FieldValue::Json(_, Json::Array(values)) => values.iter().map(Json::as_f64).collect(),
            FieldValue::Gguf(_, Value::Array(values)) => values
                .iter()
                .map(|value| match *value {
                    Value::Bool(value) => Some(f64::from(u8::from(value))),
                    ref value => value.as_u64().map(|number| number as f64),
                })
                .collect(),
            _ => None,
        };
        numbers.map(Some).ok_or_else(|| self.wrong(&field, "a list of numbers"))
    }

    /// A list of texts.
    pub(crate) fn optional_texts(&self, key: Key) -> Result<Option<Vec<&'a str>>> {
        let Some(field) = self.find(key) else { return Ok(None) };
        let texts: Option<Vec<&str>> = match &field {
            FieldValue::Json(_, Json::Array(values)) => values.iter().map(Json::as_str).collect(),
            _ => None,
        };
        texts.map(Some).ok_or_else(|| self.wrong(&field, "a list of texts"))
    }

    /// The object at one of the key's JSON names.
    pub(crate) fn object(&self, key: Key) -> Option<Fields<'a>> {
        match self.find(key)? {
            FieldValue::Json(_, json) if json.is_object() => {
                Some(Fields { path: self.path, source: FieldSource::Json(json) })
            }
            _ => None,
        }
    }
}
