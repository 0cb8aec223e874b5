//! The JSON Schema of the report's JSON.

use crate::data::Report;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

/// The schema (JSON Schema, draft 2020-12) of the JSON that [`crate::render`] writes, for programs that read
/// it. Published as `docs/report.schema.json`.
pub fn schema() -> Value {
    // Undefined figures are null.
    let nullable = RecursiveTransform(|schema: &mut Schema| {
        if schema.get("type") == Some(&json!("number")) {
            schema.insert("type".into(), json!(["number", "null"]));
        }
    });
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(nullable);
    settings.into_generator().into_root_schema_for::<Report>().to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE_SCHEMA=1 cargo test --workspace schema` updates the published schema.
    #[test]
    fn the_published_schema_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/report.schema.json");
        let ours = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, &ours).expect("written");
        }
        let published = std::fs::read_to_string(path).expect("the published schema");
        assert!(published == ours, "docs/report.schema.json is not this report's; see the test's comment");
    }
}
