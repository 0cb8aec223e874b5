//! A safetensors file of a checkpoint.
#![no_main]

use layerscope_engine::{ModelConfig, SafetensorsFiles, Weight, WeightSource, WeightsPrecision};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

const CONFIG: &str = r#"{"model_type": "gpt2", "n_embd": 4, "n_head": 1, "n_layer": 1, "n_positions": 4, "vocab_size": 4,
    "layer_norm_epsilon": 1e-5}"#;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join("model.safetensors"), data).expect("room for a small file");
    let Ok(files) = SafetensorsFiles::open(folder.path()) else { return };
    let config = ModelConfig::from_json(CONFIG, None, Path::new("config.json")).expect("a config");
    let weights = files.weights(&config).expect("a family");
    let _ = weights.linear(Weight::Embedding, (4, 4), WeightsPrecision::F32);
    let _ = weights.linear(Weight::Key(0), (4, 4), WeightsPrecision::Native);
    let _ = weights.vector(Weight::FinalNorm, 4);
    let _ = weights.bias(Weight::Query(0), 4);
    let _ = weights.check_all_read();
});
