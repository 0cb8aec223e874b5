//! Prompt files.

use super::fixture;
use crate::Target;
use crate::mutate::json;
use layerscope_diagnostics::prompts::parse_prompts;

/// A prompt file.
pub const TARGET: Target = Target { name: "prompts", read, mutate: json::changed_lines, seeds };

fn read(input: &[u8]) {
    if let Ok(prompts) = parse_prompts("fuzzed.jsonl", input) {
        assert!(!prompts.is_empty());
        prompts.iter().for_each(|prompt| _ = prompt.text());
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let own = br#"{"id": "a", "category": "qa", "prompt": "Hi"}
{"id": "b", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "answer": "Ho"}
{"id": "c", "prompt": "The key is under the mat.", "answer": null, "span": "under the mat"}"#;
    vec![own.to_vec(), fixture("tiny/demo.jsonl"), fixture("golden/prompts.jsonl")]
}
