//! The targets: what each reads, its seeds and the form of its mutants.

pub mod adapter;
pub mod chat_template;
pub mod config_json;
pub mod eval;
pub mod frames;
pub mod gguf;
pub mod hub_listing;
pub mod model_reference;
pub mod needle;
pub mod policies;
pub mod prompts;
pub mod reports;
pub mod requests;
pub mod run_files;
pub mod safetensors;
pub mod tokenizer_json;

use crate::Target;

/// Every target.
pub static TARGETS: [Target; 27] = [
    adapter::ADAPTER,
    chat_template::TARGET,
    config_json::TARGET,
    eval::EVALUATION,
    frames::TARGET,
    gguf::TARGET,
    adapter::HEAD_PATTERNS,
    hub_listing::TARGET,
    eval::HARNESS,
    model_reference::TARGET,
    needle::TARGET,
    policies::TARGET,
    prompts::TARGET,
    reports::REPORT,
    reports::COMPARISON,
    requests::TARGET,
    run_files::BENCH_REPORT,
    run_files::CONTINUATIONS,
    run_files::SETS,
    run_files::MANIFEST,
    run_files::PATCHES,
    run_files::POLICIES,
    run_files::SPANS,
    run_files::TABLE,
    safetensors::TARGET,
    eval::TASKS,
    tokenizer_json::TARGET,
];

/// A fixture of the repository.
fn fixture(path: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The input as text where it is some.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}
