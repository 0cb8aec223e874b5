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
