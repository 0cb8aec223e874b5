//! Task files and evaluations.

use super::fixture;
use crate::Target;
use crate::mutate::json;
use layerscope_eval::{Evaluation, parse_tasks, summarise};

/// A task file.
pub const TASKS: Target =
    Target { name: "tasks", read: read_tasks, mutate: json::changed_lines, seeds: tasks };

/// An `eval.json`.
pub const EVALUATION: Target =
    Target { name: "evaluation", read: read_evaluation, mutate: json::changed, seeds: evaluations };

fn read_tasks(input: &[u8]) {
    if let Ok(items) = parse_tasks("fuzzed.jsonl", input) {
        assert!(!items.is_empty());
    }
}

fn tasks() -> Vec<Vec<u8>> {
    let own = br#"{"id": "a", "category": "qa", "prompt": "Hi", "expected": "Ho"}
{"id": "b", "prompt": "Q:", "choices": [" x", " y", " z"], "answer": 2}
{"id": "c", "prompt": "Q:", "choices": [" x", " y"], "answer": " y"}
{"id": "d", "few_shot": "E", "prompt": "Q:", "answers": ["u", "v"], "metric": "f1", "stop": ["\n"], "max_new_tokens": 4}
{"id": "e", "messages": [{"role": "user", "content": "Hi"}], "answer": "Ho", "metric": "rouge_l"}"#;
    vec![own.to_vec(), fixture("tiny/demo.jsonl")]
}

fn read_evaluation(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("eval.json");
    std::fs::write(&path, input).expect("a file");
    if let Ok(evaluation) = Evaluation::read(&path) {
        let mut policies: Vec<String> =
            evaluation.results.iter().map(|result| result.policy.clone()).collect();
        policies.truncate(3);
        let rows = summarise(&evaluation, &policies);
        assert!(rows.iter().all(|row| row.items > 0 && row.cells.len() == policies.len()));
    }
}

fn evaluations() -> Vec<Vec<u8>> {
    let one = br#"{"schema": 1, "layerscope": "0.1.0", "model": "m", "model_sha256": "00", "adapter_sha256": null, "weights": "f32",
"tasks": "t.jsonl", "tasks_sha256": "00", "raw": false, "max_new_tokens": 8, "results": [
{"id": "a", "category": "x", "policy": "full", "prompt_tokens": 5, "scores": {"contains": 1.0}, "text": "Ho"},
{"id": "a", "category": "x", "policy": "speed:4", "prompt_tokens": 5, "scores": {"contains": 0.0}, "text": ""},
{"id": "b", "category": "y", "policy": "full", "prompt_tokens": 7, "scores": {"acc": 1.0, "acc_norm": 0.0}, "text": null,
"choices": [{"log_likelihood": -1.5, "is_greedy": true, "tokens": [-1.5]}, {"log_likelihood": -3.0, "is_greedy": false, "tokens": [-1.0, -2.0]}]},
{"id": "b", "category": "y", "policy": "speed:4", "prompt_tokens": 7, "scores": {"acc": 0.0, "acc_norm": 0.5}, "text": null}]}"#;
    vec![one.to_vec()]
}
