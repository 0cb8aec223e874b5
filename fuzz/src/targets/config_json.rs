//! A checkpoint's `config.json`.

use super::{fixture, text};
use crate::Target;
use crate::mutate::json;
use layerscope_engine::ModelConfig;
use std::path::Path;

/// A config, as its own architecture and as Llama.
pub const TARGET: Target = Target { name: "config_json", read, mutate: json::changed, seeds };

pub(super) const FAMILIES: [&str; 20] = [
    "gemma",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_neox",
    "gpt_neox_sequential",
    "granite",
    "llama2",
    "llama31",
    "mistral",
    "olmo2",
    "olmoe",
    "phi3",
    "phi4",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
];

fn read(input: &[u8]) {
    let Some(text) = text(input) else { return };
    for architecture in [None, Some("llama")] {
        if let Ok(config) = ModelConfig::from_json(text, architecture, Path::new("config.json")) {
            assert!(config.heads.is_multiple_of(config.kv_heads));
            assert_eq!(config.windows.len(), config.layers);
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let names =
        FAMILIES.iter().flat_map(|family| ["config.json", "config.hub.json"].map(|name| (family, name)));
    names.map(|(family, name)| fixture(&format!("families/{family}/{name}"))).collect()
}
