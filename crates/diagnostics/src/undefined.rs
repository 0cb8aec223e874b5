//! Undefined figures: NaN in memory, null in JSON. serde_json writes NaN as null; this reads it back.

use serde::{Deserialize, Deserializer};

/// A number, or NaN where there is null; for `#[serde(deserialize_with = …)]`.
///
/// # Errors
/// Where there is anything else.
pub fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
