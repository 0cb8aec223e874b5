//! A safetensors file of a checkpoint.
#![no_main]

use layerscope_engine::{SafetensorsFiles, Weight, WeightSource, WeightsPrecision};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join("model.safetensors"), data).expect("room for a small file");
    let Ok(files) = SafetensorsFiles::open(folder.path()) else { return };
    let _ = files.linear(Weight::Embedding, (4, 4), WeightsPrecision::F32);
    let _ = files.vector(Weight::FinalNorm, 4);
});
