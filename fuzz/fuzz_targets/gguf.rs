//! A GGUF file: header, architecture numbers, tokenizer, weights.
#![no_main]

use layerscope_engine::{Decoder, GgufFile, Tokenizer, WeightsPrecision, gguf_config};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(file) = GgufFile::in_memory("fuzzed.gguf", data.to_vec()) else { return };
    if let Ok(tokenizer) = Tokenizer::from_gguf(file.metadata(), file.path()) {
        let _ = tokenizer.encode("one 2  drei 四");
    }
    let Ok(config) = gguf_config(&file, None) else { return };
    let Ok(weights) = file.weights(&config) else { return };
    let _ = Decoder::load(config.clone(), &weights, WeightsPrecision::Native, &mut |_, _| Ok(()));
});
