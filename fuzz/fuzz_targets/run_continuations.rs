//! Continuations in a run folder.
#![no_main]

use layerscope_diagnostics::run::{CONTINUATIONS, MANIFEST, Run};
use libfuzzer_sys::fuzz_target;

/// A run of the prompts `a` and `b`, of which nothing is recorded yet.
const RUN: &str = r#"{"schema": 1, "layerscope": "0.1.0", "status": "running", "model": {"name": "m", "sha256": "",
    "architecture": "llama", "layers": 2, "heads": 1, "kv_heads": 1, "head_dim": 4, "hidden": 4, "feed_forward": 4,
    "vocab": 9, "context": 9, "bos": null}, "weights": "f32", "device": "cpu", "kv_element_bytes": 4, "settings":
    {"max_new_tokens": 2, "anchors": [], "prompts_file": "", "prompts_sha256": ""}, "prompts": {"ids": ["a", "b"],
    "done": [], "failed": []}, "native_kl": null, "created": "", "updated": ""}"#;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join(MANIFEST), RUN).expect("room for a small file");
    std::fs::write(folder.path().join(CONTINUATIONS), data).expect("room for a small file");
    let run = Run::open(folder.path()).expect("a sound manifest");
    if let Ok(Some(found)) = run.continuations() {
        let _ = found.of_policy("speed:1");
    }
});
