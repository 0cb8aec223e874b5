//! Task files and evaluations.

use super::fixture;
use crate::Target;
use crate::mutate::json;
use layerscope_eval::{Evaluation, HarnessScores, parse_tasks, read_harness, summarise};

/// A task file.
pub const TASKS: Target =
    Target { name: "tasks", read: read_tasks, mutate: json::changed_lines, seeds: tasks };

/// An `eval.json`.
pub const EVALUATION: Target =
    Target { name: "evaluation", read: read_evaluation, mutate: json::changed, seeds: evaluations };

/// Result files of lm-evaluation-harness: results on the first line, samples on the others.
pub const HARNESS: Target =
    Target { name: "lm_eval", read: read_results, mutate: json::changed_lines, seeds: results };

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
        let rows = summarise(evaluation.scored(), &policies);
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

fn read_results(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let first = first_line(input);
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("a file");
    write("results_x.json", first);
    write("samples_quiz_x.jsonl", &input[first.len()..]);
    // The same without samples, under the policy of the seed.
    write("results_y.json", first_line(&results()[0]));
    if let Ok(scores) = read_harness(&[folder.path().to_owned()]) {
        assert!(scores.rows.iter().all(|row| row.cells.len() == scores.policies.len()));
        scores.write(folder.path()).expect("a file");
        let read = HarnessScores::read(&folder.path().join("lm-eval.json")).expect("what was written");
        assert_eq!(read.rows.len(), scores.rows.len());
    }
}

fn first_line(input: &[u8]) -> &[u8] {
    input.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

fn results() -> Vec<Vec<u8>> {
    let one = br#"{"results": {"quiz": {"alias": "quiz", "acc,none": 0.5, "acc_stderr,none": 0.25, "ppl,none": 7.5, "em,strict": 0.5, "em_stderr,strict": "N/A"}, "all": {"acc,none": 0.5}}, "configs": {"quiz": {}}, "config": {"model": "layerscope", "model_args": {"policy": "speed:4", "model": "m"}}, "n-samples": {"quiz": {"original": 2, "effective": 2}}, "higher_is_better": {"quiz": {"acc": true, "em": null, "ppl": false}}, "lm_eval_version": "0.4.13"}
{"doc_id": 0, "doc_hash": "a", "filter": "none", "metrics": ["acc"], "acc": 1.0, "f1": [1, 0]}
{"doc_id": 1, "doc_hash": "b", "filter": "none", "metrics": ["acc"], "acc": NaN}
{"doc_id": 1, "doc_hash": "b", "filter": "strict", "metrics": ["em"], "em": true}"#;
    vec![one.to_vec()]
}
