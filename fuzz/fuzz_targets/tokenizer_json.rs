//! A checkpoint's tokenizer.json.
#![no_main]

use layerscope_engine::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join("tokenizer.json"), data).expect("room for a small file");
    if let Ok(tokenizer) = Tokenizer::from_directory(folder.path()) {
        let _ = tokenizer.encode("one 2 drei 四");
    }
});
