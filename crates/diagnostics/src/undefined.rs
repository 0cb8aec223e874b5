//! Undefined numbers: NaN in memory, null in JSON. serde_json writes NaN as null; this reads null as NaN.

use serde::{Deserialize, Deserializer};

/// Deserializes a number, or null as NaN; for `#[serde(deserialize_with = …)]`.
///
/// # Errors
/// Any other JSON value.
pub fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
