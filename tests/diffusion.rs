//! `layerscope span-ablation` on the embedded model: one span by text and by tokens, all prompts with a span,
//! stored results and errors.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{json, layerscope, numbers, refuse, run, stderr, succeed, tiny_model};

const LAYERS: usize = 8;

/// A run of two prompts with a span and one without; the last prompt's span is not in its text.
fn recorded(folder: &Path, last: &str) -> std::path::PathBuf {
    let prompts = folder.join("prompts.jsonl");
    let text = "Anna has a red box. Ben has a blue cup. Carl has a green hat. Who has the red box?";
    let lines = [
        serde_json::json!({"id": "a", "prompt": text, "span": "Anna has a red box.", "answer": " Anna"}),
        serde_json::json!({"id": "b", "prompt": text}),
        serde_json::json!({"id": "c", "prompt": text, "span": last}),
    ];
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    let out = folder.join("run");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).arg("--out").arg(&out);
    succeed(record.args(["--max-new-tokens", "6", "--weights", "f32", "--failure-cases", "0"]));
    out
}

fn diffusion(run: &Path, arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("diffusion").arg(run).arg("--model").arg(tiny_model()).args(arguments);
    command
}

#[test]
fn a_span_is_removed_printed_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path(), "Carl has a green hat.");
    let by_text = json(&mut diffusion(&out, &["--prompt", "b", "--span", "Ben has a blue cup.", "--json"]));
    let span = &by_text["spans"][0];
    let (first, end) = (span["first"].as_u64().unwrap(), span["end"].as_u64().unwrap());
    assert_eq!(span["text"].as_str().unwrap().trim(), "Ben has a blue cup.");
    let kl: Vec<f64> =
        span["layers"].as_array().unwrap().iter().map(|row| row["kl"].as_f64().unwrap()).collect();
    assert_eq!(kl.len(), LAYERS + 1);
    assert_eq!(kl[LAYERS], 0.0);
    assert!(span["layers"][0]["found"].is_null(), "no answer was looked for");
    let from = (0..=LAYERS).find(|&layer| kl[layer..].iter().all(|&kl| kl <= 0.1)).unwrap();
    assert_eq!(span["vanishes_from"], from);
    assert_eq!(by_text["mean"].as_array().unwrap().len(), LAYERS + 1);

    let tokens = format!("{first}-{}", end - 1);
    let shown = succeed(&mut diffusion(&out, &["--prompt", "b", "--tokens", &tokens, "--answer", "Anna"]));
    for part in
        ["from layer", "span mass", "found", &format!("tokens {first}–{}", end - 1), "Ben has a blue cup"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    // The decode-to-span mass is the attention that the span's tokens receive.
    let few = json(&mut diffusion(&out, &["--prompt", "b", "--tokens", "3", "--layers", "1,4-5", "--json"]));
    let layers: Vec<u64> = few["spans"][0]["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["layer"].as_u64().unwrap())
        .collect();
    assert_eq!(layers, [1, 4, 5, LAYERS as u64]);

    let show = json(layerscope().arg("show").arg(&out).arg("--json"));
    let prompts = show["prompts"].as_array().unwrap();
    assert!(prompts[0].get("spans").is_none());
    let kept = prompts[1]["spans"].as_array().unwrap();
    assert_eq!(kept.len(), 2);
    let again = kept.iter().find(|kept| kept["first"] == first && kept["end"] == end).unwrap();
    assert_eq!(again["layers"].as_array().unwrap().len(), LAYERS + 1);
    assert!(again["layers"][0]["found"].is_boolean(), "the later one takes the earlier one's place");
    assert_eq!(numbers(&prompts[0]["bos_mass"]).len(), LAYERS);
}

#[test]
fn every_prompt_that_names_a_span_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path(), "Carl has a green hat.");
    let found = json(&mut diffusion(&out, &["--json"]));
    let ids: Vec<&str> =
        found["spans"].as_array().unwrap().iter().map(|span| span["prompt_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "c"]);
    assert!(found["spans"][0]["layers"][0]["found"].is_boolean(), "the recorded answer is looked for");
    for (layer, row) in found["mean"].as_array().unwrap().iter().enumerate() {
        let each = found["spans"]
            .as_array()
            .unwrap()
            .iter()
            .map(|span| span["layers"][layer]["kl"].as_f64().unwrap());
        let mean = each.sum::<f64>() / 2.0;
        assert!((row["kl"].as_f64().unwrap() - mean).abs() < 1e-12 && row["spans"] == 2, "{row}");
    }
    let shown = succeed(&mut diffusion(&out, &[]));
    assert!(shown.contains("\na: tokens") && shown.contains("\nc: tokens"), "{shown}");

    // A span that is not found does not stop the others.
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path(), "no such words");
    let output = run(&mut diffusion(&out, &["--json"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("c: ") && stderr(&output).contains("no such words"),
        "{}",
        stderr(&output)
    );
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["spans"].as_array().unwrap().len(), 1);
}

#[test]
fn reports_tell_of_spans_where_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path(), "Carl has a green hat.");
    let report = |name: &str| {
        let path = folder.path().join(name);
        succeed(layerscope().arg("report").arg(&out).arg("-o").arg(&path));
        std::fs::read(&path).unwrap()
    };
    let text = |name: &str| String::from_utf8(report(name)).unwrap();
    assert!(!text("before.html").contains("id=\"spans\""));
    let asked = ["--prompt", "a", "--json"];
    let found = json(&mut diffusion(&out, &asked));
    let span = &found["spans"][0];
    let from = span["vanishes_from"].as_u64().unwrap();
    let told: Value = serde_json::from_slice(&report("run.json")).unwrap();
    assert_eq!(told["runs"][0]["spans"], found["spans"]);
    let sentence = match from as usize {
        LAYERS => "may vanish from no layer on".to_owned(),
        from => format!("may vanish from layer {from} on"),
    };
    for name in ["run.html", "run.md"] {
        let text = text(name);
        for part in [&sentence, "Spans", "Attention on the span", "Anna has a red box."] {
            assert!(text.contains(part), "{name} lacks {part}");
        }
    }
    assert!(report("run.pdf").starts_with(b"%PDF"));
}

#[test]
fn needle_prompts_name_their_needle() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("needles.jsonl");
    let mut needle = layerscope();
    needle.args(["needle", "layerscope-tiny", "--lengths", "200", "--depths", "50", "--samples", "1"]);
    succeed(needle.arg("--write-prompts").arg(&file));
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let (span, answer) = (line["span"].as_str().unwrap(), line["expected"].as_str().unwrap());
    assert!(span.contains(answer) && line["prompt"].as_str().unwrap().contains(span));
    let out = folder.path().join("run");
    let mut record = layerscope();
    record
        .args(["record", "layerscope-tiny", "--failure-cases", "0", "--prompts"])
        .arg(&file)
        .arg("--out")
        .arg(&out);
    succeed(&mut record);
    // The embedded model is found by its name.
    let found = json(layerscope().arg("diffusion").arg(&out).args(["--layers", "2", "--json"]));
    assert!(found["spans"][0]["text"].as_str().unwrap().contains(answer));
}

#[test]
fn bad_questions_get_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path(), "box");
    let refused = |arguments: &[&str], parts: &[&str]| refuse(&mut diffusion(&out, arguments), 2, parts);
    refused(&["--prompt", "z", "--tokens", "1"], &["\"z\"", "run"]);
    refused(&["--prompt", "b"], &["\"b\"", "--span"]);
    refused(&["--prompt", "b", "--span", "nowhere"], &["nowhere", "does not hold"]);
    refused(&["--prompt", "b", "--span", "box"], &["2 times", "positions"]);
    refused(&["--prompt", "b", "--tokens", "1-9999"], &["1–9999", "last prompt token"]);
    refused(&["--prompt", "b", "--tokens", "1", "--layers", "3,8"], &["`8`", "0 to 7"]);
    refused(&["--prompt", "b", "--tokens", "1", "--layers", "0-99999999999"], &["0 to 7"]);
    refused(&["--tolerance", "nan"], &["--tolerance"]);
    let other = folder.path().join("other.gguf");
    let mut bytes = std::fs::read(tiny_model()).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&other, bytes).unwrap();
    let mut command = layerscope();
    command.arg("diffusion").arg(&out).args(["--prompt", "b", "--tokens", "1", "--model"]).arg(&other);
    refuse(&mut command, 2, &["recorded with layerscope-tiny.gguf", "other.gguf"]);
    let mut unknown = layerscope();
    unknown.arg("diffusion").arg(&out).args(["--prompt", "b", "--tokens", "1"]);
    unknown.env("HOME", folder.path()).env("XDG_CACHE_HOME", folder.path());
    refuse(&mut unknown, 2, &["layerscope-tiny.gguf", "--model"]);
    // A run without spans in the prompt file.
    let plain = folder.path().join("plain.jsonl");
    std::fs::write(&plain, r#"{"id": "a", "prompt": "Hello there, you."}"#).unwrap();
    let unnamed = folder.path().join("unnamed");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&plain).arg("--out").arg(&unnamed);
    succeed(record.args(["--max-new-tokens", "2", "--failure-cases", "0"]));
    refuse(&mut diffusion(&unnamed, &[]), 2, &["no recorded prompt names a span"]);
}
