//! The texts of `record` under the recommended cutoff, compared with `generate`, and the provenance in its
//! manifest.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{demo_prompts, json, layerscope, refuse, run, stderr, succeed, tiny_model};

fn record(out: &Path, arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
    command.args(["--max-new-tokens", "16", "--weights", "f32", "--out"]).arg(out).args(arguments);
    command
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn texts_equal_those_of_generate_and_differ_from_the_runs_where_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let printed = succeed(&mut record(&out, &["--failure-cases", "4"]));
    let recommendation = json(layerscope().arg("recommend").arg(&out).arg("--json"));
    assert_eq!(recommendation["verdict"], "cut");
    let policy = format!("speed:{}+bos", recommendation["l_cut"]);
    assert!(printed.contains(&format!("Generated under {policy}")), "{printed}");

    let file = read(&out.join("continuations.json"));
    assert_eq!((&file["schema"], &file["layerscope"]), (&1.into(), &env!("CARGO_PKG_VERSION").into()));
    let entries = file["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 4);
    let show = json(layerscope().arg("show").arg(&out).arg("--json"));
    let recorded = show["prompts"].as_array().unwrap();
    let kl = |prompt: &Value| {
        let rows = prompt["frontier"].as_array().unwrap();
        let at = |row: &&Value| row["anchor"] == "bos" && row["cutoff"] == recommendation["l_cut"];
        rows.iter().find(at).unwrap()["kl"].as_f64().unwrap()
    };
    let mut largest: Vec<f64> = recorded.iter().map(kl).collect();
    largest.sort_by(|a, b| b.total_cmp(a));

    let lines = std::fs::read_to_string(demo_prompts()).unwrap();
    let prompts: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (rank, entry) in entries.iter().enumerate() {
        let id = &entry["prompt_id"];
        assert_eq!((&entry["policy"], &entry["max_new_tokens"]), (&policy.as_str().into(), &16.into()));
        let prompt = recorded.iter().find(|prompt| prompt["id"] == *id).unwrap();
        assert_eq!(entry["kl"].as_f64().unwrap(), largest[rank], "{id}");
        assert_eq!(kl(prompt), largest[rank], "{id}");
        let text = prompts.iter().find(|prompt| prompt["id"] == *id).unwrap()["prompt"].as_str().unwrap();
        let mut generate = layerscope();
        generate.arg("generate").arg(tiny_model()).args(["--json", "--weights", "f32", "--ignore-eos"]);
        generate.args(["--max-new-tokens", "16", "--policy", &policy, "--prompt", text]);
        let generated = json(&mut generate);
        assert_eq!(generated["prompt_tokens"], prompt["prompt_tokens"], "{id}");
        assert_eq!(generated["tokens"], entry["generated"], "{id}");
        assert_eq!(generated["repetition"], entry["repetition"], "{id}");
        let (own, full) = (entry["generated"].as_array().unwrap(), prompt["generated"].as_array().unwrap());
        let first = own.iter().zip(full).position(|(own, full)| own != full);
        assert_eq!(entry["first_difference"].as_u64().map(|step| step as usize), first, "{id}");
        assert_eq!(entry["generated_token_text"].as_array().unwrap().len(), 16);
        assert!(entry["generated_text"].is_string());
    }
}

#[test]
fn an_older_run_gets_them_when_it_resumes_and_they_are_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let file = out.join("continuations.json");
    succeed(&mut record(&out, &["--failure-cases", "0"]));
    assert!(!file.exists());
    let tables = std::fs::read(out.join("prompts.parquet")).unwrap();
    // A manifest of an older version.
    let mut manifest = read(&out.join("manifest.json"));
    for key in ["machine", "command"] {
        assert!(manifest.as_object_mut().unwrap().remove(key).is_some());
    }
    std::fs::write(out.join("manifest.json"), manifest.to_string()).unwrap();

    let resumed = run(&mut record(&out, &[]));
    assert!(
        resumed.status.success() && stderr(&resumed).contains("recorded already"),
        "{}",
        stderr(&resumed)
    );
    assert_eq!(read(&file)["entries"].as_array().unwrap().len(), 5);
    assert_eq!(std::fs::read(out.join("prompts.parquet")).unwrap(), tables);
    let manifest = read(&out.join("manifest.json"));
    assert!(manifest["machine"].is_null() || manifest.get("machine").is_none(), "nobody knows it");

    let before = std::fs::metadata(&file).unwrap().modified().unwrap();
    succeed(&mut record(&out, &[]));
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), before);

    for (bytes, name) in [("{", "delete it"), ("{\"schema\": 7}", "newer layerscope")] {
        std::fs::write(&file, bytes).unwrap();
        let refused = run(&mut record(&out, &[]));
        assert_eq!(refused.status.code(), Some(2));
        let message = stderr(&refused);
        assert!(message.contains("continuations.json") && message.contains(name), "{message}");
        succeed(layerscope().arg("show").arg(&out));
    }
    std::fs::remove_file(&file).unwrap();
    succeed(&mut record(&out, &["--failure-cases", "2"]));
    assert_eq!(read(&file)["entries"].as_array().unwrap().len(), 2);
}

#[test]
fn the_manifest_tells_machine_and_command_and_no_folders() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("private/run");
    succeed(&mut record(&out, &["--failure-cases", "1"]));
    let text = std::fs::read_to_string(out.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    let machine = &manifest["machine"];
    assert!(machine["threads"].as_u64().unwrap() > 0);
    assert_eq!(
        (machine["os"].as_str(), machine["architecture"].as_str()),
        (Some(std::env::consts::OS), Some(std::env::consts::ARCH))
    );
    assert!(!text.contains("private") && !text.contains(folder.path().to_str().unwrap()));

    // The command, run in the folder of its files, reproduces the run.
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(tiny_model(), place.path().join("layerscope-tiny.gguf")).unwrap();
    std::fs::copy(demo_prompts(), place.path().join("demo.jsonl")).unwrap();
    let command: Vec<&str> =
        manifest["command"].as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
    succeed(layerscope().current_dir(place.path()).args(&command));
    for name in ["layers.parquet", "frontier.parquet", "continuations.json"] {
        let again = std::fs::read(place.path().join("run").join(name)).unwrap();
        assert_eq!(std::fs::read(out.join(name)).unwrap(), again, "{name}");
    }

    let demo = folder.path().join("demo");
    succeed(layerscope().arg("demo").arg("--out").arg(&demo));
    assert_eq!(read(&demo.join("manifest.json"))["command"], serde_json::json!(["demo", "--out", "demo"]));
    assert_eq!(read(&demo.join("continuations.json"))["entries"].as_array().unwrap().len(), 5);
}

#[test]
fn measurements_go_into_the_run_folder_of_their_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    succeed(&mut record(&out, &["--failure-cases", "0"]));
    let small = ["--lengths", "16", "--new-tokens", "2", "--repeats", "1", "--json"];
    let printed = json(layerscope().arg("bench").arg(tiny_model()).args(small).arg("--out").arg(&out));
    assert_eq!(read(&out.join("bench.json")), printed);
    let show = json(layerscope().arg("show").arg(&out).arg("--json"));
    assert_eq!(printed["machine"], show["manifest"]["machine"]);
    // The additional file does not prevent resuming.
    succeed(&mut record(&out, &["--failure-cases", "0"]));

    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let bench = |arguments: &[&str], out: &Path| {
        let mut command = layerscope();
        command.arg("bench").args(arguments).args(small).arg("--out").arg(out);
        command
    };
    let model = tiny_model();
    refuse(&mut bench(&[model.to_str().unwrap()], &empty), 2, &["empty", "no run"]);
    let shape = ["--shape", "smollm2-135m", "--layers", "1", "--shape-weights", "q4_0"];
    refuse(&mut bench(&shape, &out), 2, &["layerscope-tiny.gguf", "smollm2-135m", "--out"]);
}
