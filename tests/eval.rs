//! `layerscope eval` on the embedded model: tables, files that go on, and errors.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{demo_prompts, json, layerscope, refuse, run, stderr, succeed, tiny_model};

fn eval(tasks: &Path, arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("eval").arg(tiny_model()).arg("--tasks").arg(tasks).args(arguments);
    command
}

#[test]
fn policies_are_judged_by_a_prompt_files_answers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let arguments =
        ["--policies", "full,speed:4+bos", "--max-new-tokens", "16", "--out", out.to_str().unwrap()];
    let few = [&arguments[..], &["--limit", "4", "--json"]].concat();
    let found = json(&mut eval(&demo_prompts(), &few));
    assert_eq!(found["rows"][0]["items"], 4);
    // The same folder goes on with the others.
    let found = json(&mut eval(&demo_prompts(), &[&arguments[..], &["--json"]].concat()));
    let all = &found["rows"][0];
    assert_eq!((all["items"].as_u64(), all["metric"].as_str()), (Some(15), Some("contains")));
    let score = |index: usize| all["cells"][index]["score"].as_f64().unwrap();
    assert!(score(0) > score(1), "{all}");
    let difference = &all["cells"][1]["difference"];
    assert!((difference["mean"].as_f64().unwrap() - (score(1) - score(0))).abs() < 1e-9);
    let file: Value = serde_json::from_slice(&std::fs::read(out.join("eval.json")).unwrap()).unwrap();
    let results = file["results"].as_array().unwrap();
    assert_eq!(results.len(), 30);
    assert!(results.iter().all(|result| result["text"].is_string()));
    let text = succeed(&mut eval(&demo_prompts(), &arguments));
    assert!(text.contains("speed:4+bos") && text.contains("knowledge"), "{text}");
    let mut other = eval(&demo_prompts(), &arguments[..2]);
    refuse(other.arg("--raw").arg("--out").arg(&out), 2, &["eval.json", "other settings", "--out"]);
}

#[test]
fn choices_are_judged_by_their_likelihood() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = folder.path().join("tasks.jsonl");
    let fact = "The song of Belelland is Solelbe. The lake of Belelland is Mundanra.\\nQuestion: What is the lake of Belelland?\\nAnswer:";
    let choices = "[\" The lake of Belelland is Solelbe.\", \" The lake of Belelland is Mundanra.\"]";
    let item = |id: &str, answer: &str| {
        format!(
            "{{\"id\": \"{id}\", \"prompt\": \"Facts: {fact}\", \"choices\": {choices}, \"answer\": {answer}}}\n"
        )
    };
    std::fs::write(&tasks, [item("right", "1"), item("wrong", "0")].concat()).unwrap();
    let found = json(&mut eval(&tasks, &["--json"]));
    let rows = found["rows"].as_array().unwrap();
    let metrics: Vec<&str> = rows.iter().map(|row| row["metric"].as_str().unwrap()).collect();
    assert_eq!(metrics, ["acc", "acc_norm"]);
    // One of the two answers is the right one, and both items are the same but for that.
    assert!(rows.iter().all(|row| row["cells"][0]["score"] == 0.5), "{found}");
}

#[test]
fn what_cannot_be_judged_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = folder.path().join("tasks.jsonl");
    refuse(&mut eval(&tasks, &[]), 2, &["tasks.jsonl"]);
    std::fs::write(&tasks, "{\"id\": \"a\", \"prompt\": \"Q\"}\n").unwrap();
    refuse(&mut eval(&tasks, &[]), 2, &["tasks.jsonl line 1", "say what is right"]);
    std::fs::write(&tasks, "{\"id\": \"a\", \"prompt\": \"Q\", \"expected\": \"x\"}\n").unwrap();
    refuse(&mut eval(&tasks, &["--policies", "speed:99"]), 2, &["99"]);
    let out = folder.path().join("eval.json");
    std::fs::write(&out, "{").unwrap();
    let there = folder.path().to_str().unwrap();
    refuse(&mut eval(&tasks, &["--out", there]), 2, &["eval.json is no evaluation", "delete it"]);
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    refuse(&mut eval(&tasks, &["--out", file.to_str().unwrap()]), 1, &["file"]);
    // The second reading does not fit.
    let long = format!("{{\"id\": \"a\", \"prompt\": \"{}\", \"expected\": \"x\"}}\n", "a ".repeat(600));
    std::fs::write(&tasks, long).unwrap();
    let said = stderr(&run(&mut eval(&tasks, &["--raw", "--policies", "kvzip:50%"])));
    assert!(said.contains("reads the prompt twice") && said.contains("context of 1024"), "{said}");
    // An item longer than the context is left out; with no other there is nothing to tell.
    std::fs::write(
        &tasks,
        format!("{{\"id\": \"a\", \"prompt\": \"{}\", \"expected\": \"x\"}}\n", "word ".repeat(90_000)),
    )
    .unwrap();
    let output = run(&mut eval(&tasks, &[]));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(["item a", "left out", "no item of"].iter().all(|words| said.contains(words)), "{said}");
}

/// Result files of one task under a policy, as lm-evaluation-harness writes them.
fn write_results(folder: &Path, policy: &str, scores: &[f64]) {
    std::fs::create_dir_all(folder).unwrap();
    let accuracy = scores.iter().sum::<f64>() / scores.len() as f64;
    let results = serde_json::json!({
        "results": {"quiz": {"acc,none": accuracy, "acc_stderr,none": 0.1, "ppl,none": 9.5}},
        "configs": {"quiz": {}},
        "config": {"model": "layerscope", "model_args": {"policy": policy}},
        "n-samples": {"quiz": {"original": 4, "effective": scores.len()}},
        "lm_eval_version": "0.4.13",
    });
    std::fs::write(folder.join("results_2026.json"), results.to_string()).unwrap();
    let line = |(index, score): (usize, &f64)| {
        format!("{{\"doc_id\": {index}, \"filter\": \"none\", \"acc\": {score}}}\n")
    };
    let samples: String = scores.iter().enumerate().map(line).collect();
    std::fs::write(folder.join("samples_quiz_2026.jsonl"), samples).unwrap();
}

#[test]
fn policies_are_compared_by_files_of_the_harness() {
    let folder = tempfile::tempdir().unwrap();
    let of = |policy: &str| folder.path().join(policy.replace(':', "-"));
    write_results(&of("speed:4"), "speed:4", &[1.0, 0.0, 0.0, 0.0]);
    write_results(&of("full"), "full", &[1.0, 1.0, 1.0, 0.0]);
    let run = folder.path().join("run");
    let found = layerscope().arg("lm-eval").arg(folder.path()).arg("--out").arg(&run).output().unwrap();
    assert!(found.status.success());
    let (text, said) = (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    assert!(text.contains("75.0") && text.contains("25.0 (-50.0 [") && !text.contains('*'), "{text}");
    assert!(said.contains("left out: ppl of quiz"), "{said}");
    let written: Value = serde_json::from_slice(&std::fs::read(run.join("lm-eval.json")).unwrap()).unwrap();
    assert_eq!(written["rows"][0]["cells"][1]["difference"]["mean"], -0.5);
    std::fs::remove_file(of("full").join("samples_quiz_2026.jsonl")).unwrap();
    let text = succeed(layerscope().arg("lm-eval").arg(of("full")).arg(of("speed:4")));
    assert!(text.contains("acc*") && text.contains("standard errors"), "{text}");
    let tasks = demo_prompts();
    refuse(
        layerscope().arg("lm-eval").arg(&tasks),
        2,
        &["demo.jsonl is no result file of lm-evaluation-harness"],
    );
    refuse(layerscope().arg("lm-eval").arg(&run), 2, &["results_….json", "--output_path"]);
}
