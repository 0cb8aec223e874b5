//! A checkpoint's config.json.
#![no_main]

use layerscope_engine::ModelConfig;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    if let Ok(config) = ModelConfig::from_json(text, None, Path::new("config.json")) {
        assert!(config.heads.is_multiple_of(config.kv_heads));
    }
});
