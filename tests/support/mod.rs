//! Helpers of the end-to-end tests: running the binary and finding models.

#![allow(dead_code, clippy::print_stderr, clippy::unwrap_used, missing_docs, unreachable_pub)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The tables of a run folder that a recording with policies writes.
pub const TABLES: [&str; 7] = [
    "layers.parquet",
    "heads.parquet",
    "frontier.parquet",
    "knockout.parquet",
    "steps.parquet",
    "tokens.parquet",
    "policies.parquet",
];

pub fn layerscope() -> Command {
    Command::new(env!("CARGO_BIN_EXE_layerscope"))
}

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

pub fn tiny_model() -> PathBuf {
    fixtures().join("tiny/layerscope-tiny.gguf")
}

pub fn demo_prompts() -> PathBuf {
    fixtures().join("tiny/demo.jsonl")
}

/// SmolLM2-135M-Instruct, as [`fetched`].
pub fn smollm2() -> Option<PathBuf> {
    fetched("SmolLM2-135M-Instruct.Q4_1.gguf", "SMOLLM2", "fetch-smollm2.sh")
}

/// Gemma 3 270M, as [`fetched`].
pub fn gemma3() -> Option<PathBuf> {
    fetched("gemma-3-270m-q4_k_m.gguf", "GEMMA3", "fetch-gemma3.sh")
}

/// A real model, or `None` with a message if it is missing; with `LAYERSCOPE_REQUIRE_…`, a failure.
fn fetched(file: &str, name: &str, script: &str) -> Option<PathBuf> {
    let path = match std::env::var_os(format!("LAYERSCOPE_{name}")) {
        Some(path) => PathBuf::from(path),
        None => {
            let cache = std::env::var_os("LAYERSCOPE_CACHE").map(PathBuf::from).unwrap_or_else(|| {
                let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
                base.unwrap_or_else(|| std::env::home_dir().unwrap().join(".cache")).join("layerscope")
            });
            cache.join("models").join(file)
        }
    };
    if path.exists() {
        return Some(path);
    }
    let message = format!("{} is absent; run fixtures/{script}", path.display());
    assert!(std::env::var_os(format!("LAYERSCOPE_REQUIRE_{name}")).is_none(), "{message}");
    eprintln!("skipped: {message}");
    None
}

/// A family's checkpoint with a tokenizer of few enough tokens.
pub fn with_tokenizer(family: &str, home: &Path) -> PathBuf {
    let folder = home.join(family);
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixtures().join("families").join(family).join(name), folder.join(name)).unwrap();
    }
    let vocab: serde_json::Map<String, Value> =
        (0..32u32).map(|id| (char::from_u32(97 + id).unwrap().to_string(), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

pub fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a command that succeeds.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).unwrap()
}

/// Asserts that a command fails with this exit code and one sentence that names all of `names`.
pub fn refuse(command: &mut Command, code: i32, names: &[&str]) {
    let output = run(command);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {message}");
    let lines: Vec<&str> = message.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 1, "one sentence, not {message}");
    assert!(!message.contains("panicked"), "{message}");
    for name in names {
        assert!(message.contains(name), "`{name}` is not in: {message}");
    }
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect()
}
