//! `layerscope patch`: against PyTorch hooks on SmolLM2 (fixtures/patching/make.py), and on the embedded model its outputs, run folders
//! and errors.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/tables.rs"]
mod tables;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{fixtures, json, layerscope, refuse, smollm2, succeed, tiny_model};
use tables::Frame;

const CLEAN: &str = "Anna has a red box. Who has the red box?";
const CORRUPTED: &str = "Carl has a red box. Who has the red box?";

fn patch(model: &Path, prompts: [&str; 2], arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("patch").arg(model).args(["--clean", prompts[0], "--corrupted", prompts[1]]).args(arguments);
    command
}

fn tiny(arguments: &[&str]) -> Command {
    patch(&tiny_model(), [CLEAN, CORRUPTED], arguments)
}

/// Rows of numbers; null is NaN.
fn matrix(value: &Value) -> Vec<Vec<f64>> {
    let row = |row: &Value| -> Vec<f64> {
        row.as_array().unwrap().iter().map(|cell| cell.as_f64().unwrap_or(f64::NAN)).collect()
    };
    value.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn fifty_patches_of_smollm2_equal_pytorchs() {
    let Some(model) = smollm2() else { return };
    let golden = std::fs::read(fixtures().join("patching/smollm2-135m-q4_1.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let texts = [&golden["clean"], &golden["corrupted"]].map(|prompt| prompt["text"].as_str().unwrap());
    let [answer, wrong] = [&golden["answer"], &golden["wrong"]].map(|token| token["text"].as_str().unwrap());
    let patches = golden["patches"].as_array().unwrap();
    assert!(patches.len() >= 50);
    let close = |found: f64, expected: &Value, what: &Value| {
        let expected = expected.as_f64().unwrap();
        assert!((found - expected).abs() < 1e-4, "{found} {expected}: {what}");
    };
    for site in ["resid_pre", "attn_out", "mlp_out", "head"] {
        for direction in ["denoising", "noising"] {
            let mut command = patch(&model, texts, &["--raw", "--weights", "f32", "--what", site, "--json"]);
            command.args(["--answer", answer, "--wrong", wrong]);
            if direction == "noising" {
                command.arg("--noising");
            }
            let map = json(&mut command);
            let [logit_diff, kl, effect] = ["logit_diff", "kl", "effect"].map(|name| matrix(&map[name]));
            for name in ["clean", "corrupted"] {
                assert_eq!(map[name]["next"]["id"], golden[name]["next"]);
                let ids: Vec<&Value> =
                    map[name]["tokens"].as_array().unwrap().iter().map(|token| &token["id"]).collect();
                assert_eq!(ids, golden[name]["tokens"].as_array().unwrap().iter().collect::<Vec<_>>());
                close(map[name]["logit_diff"].as_f64().unwrap(), &golden[name]["logit_diff"], &golden[name]);
                close(map[name]["kl"].as_f64().unwrap(), &golden[name]["kl"], &golden[name]);
            }
            let [of_clean, of_corrupted] =
                ["clean", "corrupted"].map(|name| map[name]["logit_diff"].as_f64().unwrap());
            for patch in
                patches.iter().filter(|patch| patch["what"] == site && patch["direction"] == direction)
            {
                let [layer, column] = ["layer", "column"].map(|name| patch[name].as_u64().unwrap() as usize);
                close(logit_diff[layer][column], &patch["logit_diff"], patch);
                close(kl[layer][column], &patch["kl"], patch);
                let expected = (logit_diff[layer][column] - of_corrupted) / (of_clean - of_corrupted);
                assert!((effect[layer][column] - expected).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn a_map_is_printed_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let path = |name: &str| file(name).to_str().unwrap().to_owned();
    let shown = succeed(&mut tiny(&["--answer", "A", "--wrong", "C", "--out", &path("map.svg")]));
    for part in ["residual stream before the layer", "strongest patches", "of each layer", "\"A\"", "map.svg"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let svg = std::fs::read_to_string(file("map.svg")).unwrap();
    roxmltree::Document::parse(&svg).unwrap();
    assert!(svg.contains("layer") && svg.contains("position") && svg.contains("logit difference"), "{svg}");

    let map = json(&mut tiny(&["--answer", "A", "--wrong", "C", "--json", "--out", &path("map.json")]));
    let written: Value = serde_json::from_slice(&std::fs::read(file("map.json")).unwrap()).unwrap();
    assert_eq!(map, written);
    assert_eq!((map["metric"].as_str(), map["complete"].as_bool()), (Some("logit-diff"), Some(true)));
    assert!(map["heads"].is_null());
    let p = map["clean"]["tokens"].as_array().unwrap().len();
    let effect = matrix(&map["effect"]);
    assert_eq!((effect.len(), effect[0].len()), (8, p));

    succeed(&mut tiny(&["--answer", "A", "--wrong", "C", "--out", &path("map.parquet")]));
    let table = Frame::read(&file("map.parquet"));
    let flat: Vec<f64> = effect.into_iter().flatten().collect();
    tables::equal(table.numbers("effect"), &flat, "effect");
    assert_eq!(table.texts("site")[0], "resid_pre");

    // Heads at the last position, and noising on few layers.
    let heads = json(&mut tiny(&["--what", "head", "--positions", "last", "--json"]));
    assert_eq!(heads["metric"], "kl");
    assert_eq!(heads["positions"].as_array().unwrap(), &[Value::from(p - 1)]);
    assert_eq!(matrix(&heads["kl"])[0].len(), heads["heads"].as_array().unwrap().len());
    let few = json(&mut tiny(&["--noising", "--layers", "1,4-5", "--positions", "0,2-3", "--json"]));
    assert_eq!(few["direction"], "noising");
    assert_eq!(few["layers"], serde_json::json!([1, 4, 5]));
    assert_eq!(matrix(&few["kl"])[2].len(), 3);
}

fn recorded(folder: &Path) -> PathBuf {
    recorded_with(folder, &[])
}

fn recorded_with(folder: &Path, arguments: &[&str]) -> PathBuf {
    let prompts = folder.join("prompts.jsonl");
    let lines = [("a", CLEAN), ("b", CORRUPTED), ("c", "Short.")];
    let lines: Vec<String> =
        lines.iter().map(|(id, text)| serde_json::json!({"id": id, "prompt": text}).to_string()).collect();
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    let out = folder.join("run");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).arg("--out").arg(&out);
    succeed(
        record.args(["--max-new-tokens", "2", "--weights", "f32", "--failure-cases", "0"]).args(arguments),
    );
    out
}

#[test]
fn two_recorded_prompts_are_patched_as_their_texts_are() {
    let folder = tempfile::tempdir().unwrap();
    let run = recorded(folder.path());
    let with_model = ["--model", tiny_model().to_str().unwrap(), "--json"].map(str::to_owned);
    let with_model: Vec<&str> = with_model.iter().map(String::as_str).collect();
    let of_run = json(&mut patch(&run, ["a", "b"], &with_model));
    let of_texts = json(&mut tiny(&["--weights", "f32", "--json"]));
    assert_eq!((of_run["clean"]["id"].as_str(), of_run["corrupted"]["id"].as_str()), (Some("a"), Some("b")));
    assert_eq!(of_run["kl"], of_texts["kl"]);

    // The run folder has the map, and says so.
    let shown = succeed(&mut patch(&run, ["a", "b"], &with_model[..2]));
    let file = run.join("patches.parquet");
    assert!(shown.contains(&format!("kept in {}", file.display())), "{shown}");
    let flat = |map: &Value, name: &str| -> Vec<f64> { matrix(&map[name]).into_iter().flatten().collect() };
    let table = Frame::read(&file);
    tables::equal(table.numbers("kl"), &flat(&of_run, "kl"), "kl");
    tables::equal(table.numbers("effect"), &flat(&of_run, "effect"), "effect");
    // Another question stands beside it.
    let heads = [&with_model[..], &["--what", "head", "--positions", "last"]].concat();
    let heads = json(&mut patch(&run, ["a", "b"], &heads));
    let table = Frame::read(&file);
    let both = [flat(&of_run, "kl"), flat(&heads, "kl")].concat();
    tables::equal(table.numbers("kl"), &both, "kl");
    let report = json(layerscope().arg("show").arg(&run).arg("--json"));
    assert_eq!(report["patches"].as_array().unwrap().len(), 2);
    assert_eq!(report["patches"][1]["site"], "head");
    let shown = succeed(layerscope().arg("show").arg(&run));
    assert!(shown.contains("Activation patches between prompts") && shown.contains("resid_pre"), "{shown}");
    let merged = folder.path().join("merged");
    succeed(layerscope().arg("merge-runs").arg(&run).arg("--out").arg(&merged));
    assert_eq!(json(layerscope().arg("show").arg(&merged).arg("--json"))["patches"], report["patches"]);

    refuse(&mut patch(&run, ["a", "nobody"], &with_model), 2, &["nobody", "\"a\", \"b\", \"c\""]);
    refuse(&mut patch(&run, ["a", "c"], &with_model), 2, &["tokens and the corrupted one"]);
    refuse(&mut patch(&run, ["a", "b"], &["--raw"]), 2, &["--raw", "run folder"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_map_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let long = |name: &str| format!("{name} has a red box. {}", "The lake is blue and cold. ".repeat(100));
    let prompts = folder.path().join("prompts.jsonl");
    let line = |id: &str, name: &str| serde_json::json!({"id": id, "prompt": long(name)}).to_string();
    std::fs::write(&prompts, [line("a", "Anna"), line("b", "Carl")].join("\n")).unwrap();
    let run = folder.path().join("run");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).arg("--out").arg(&run);
    succeed(record.args(["--max-new-tokens", "2", "--failure-cases", "0"]));

    let file = run.join("patches.parquet");
    // Late positions are done within a fraction of the time that early ones take; the first signal may come before any is.
    for seconds in [1, 3, 9, 27] {
        let mut command = patch(&run, ["a", "b"], &["--model", tiny_model().to_str().unwrap()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(seconds));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{said}");
        if file.exists() {
            assert!(said.contains("cells are done"), "{said}");
            break;
        }
    }
    let table = Frame::read(&file);
    let done = table.numbers("kl").iter().filter(|kl| !kl.is_nan()).count();
    assert!(done > 0 && done < table.numbers("kl").len(), "{done}");
    let shown = json(layerscope().arg("show").arg(&run).arg("--json"));
    assert_eq!(shown["patches"][0]["done"].as_u64(), Some(done as u64));
}

#[test]
fn reports_tell_of_patches_where_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    let run = recorded(folder.path());
    let report = |name: &str| {
        let path = folder.path().join(name);
        succeed(layerscope().arg("report").arg(&run).arg("-o").arg(&path));
        std::fs::read(&path).unwrap()
    };
    let text = |name: &str| String::from_utf8(report(name)).unwrap();
    assert!(!text("before.html").contains("id=\"patches\""));
    let asked = ["--model", tiny_model().to_str().unwrap(), "--answer", "A", "--wrong", "C", "--json"]
        .map(str::to_owned);
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let map = json(&mut patch(&run, ["a", "b"], &asked));
    json(&mut patch(&run, ["b", "a"], &[&asked[..2], &["--what", "head", "--noising", "--json"]].concat()));
    let told: Value = serde_json::from_slice(&report("run.json")).unwrap();
    let told = &told["runs"][0]["patches"];
    assert_eq!(told.as_array().unwrap().len(), 2);
    let strongest = &told[0]["strongest"][0];
    let [layer, position] = ["layer", "position"].map(|name| strongest[name].as_u64().unwrap() as usize);
    assert_eq!(strongest["effect"], map["effect"][layer][position]);
    assert_eq!(told[0]["clean"]["logit_diff"], map["clean"]["logit_diff"]);
    for name in ["run.html", "run.md"] {
        let text = text(name);
        for part in
            ["Activation patches", "residual stream before the layer", "corrupted token", "Anna", "All maps"]
        {
            assert!(text.contains(part), "{name} lacks {part}");
        }
    }
    let page = text("run.html");
    let mut ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "elements of the page share an id");
    assert!(report("run.pdf").starts_with(b"%PDF"));
}

/// A run of an adapted model is patched with the adapter, and only with it.
#[test]
fn adapters_are_patched_with() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    let mut adapt = layerscope();
    adapt.arg("adapt").arg(tiny_model()).args([
        "--policy",
        "speed:4+bos",
        "--max-new-tokens",
        "8",
        "--steps",
        "4",
    ]);
    succeed(
        adapt.args(["--rows", "all", "--prompts"]).arg(support::demo_prompts()).arg("--out").arg(&adapter),
    );
    let with = ["--adapter", adapter.to_str().unwrap(), "--weights", "f32", "--json"];
    let of_texts = json(&mut tiny(&with));
    assert_eq!(of_texts["model"], "layerscope-tiny.gguf + adapter");
    assert_ne!(of_texts["kl"], json(&mut tiny(&with[2..]))["kl"]);
    // In the weights it is the same up to rounding.
    let merged = json(&mut tiny(&[&with[..], &["--merge"]].concat()));
    let [beside, within] = [&of_texts, &merged].map(|map| matrix(&map["kl"]).concat());
    assert!(beside.iter().zip(&within).all(|(a, b)| (a - b).abs() < 1e-3), "{beside:?} {within:?}");

    let run = recorded_with(folder.path(), &["--adapter", adapter.to_str().unwrap()]);
    let model = ["--model", tiny_model().to_str().unwrap(), "--json"].map(str::to_owned);
    let model: Vec<&str> = model.iter().map(String::as_str).collect();
    refuse(&mut patch(&run, ["a", "b"], &model), 2, &["was recorded with the adapter"]);
    let of_run = json(&mut patch(&run, ["a", "b"], &[&model[..], &with[..2]].concat()));
    assert_eq!(of_run["kl"], of_texts["kl"]);
}

#[test]
fn bad_input_is_one_sentence() {
    refuse(
        &mut patch(&tiny_model(), [CLEAN, "Carl."], &[]),
        2,
        &["the clean prompt has", "the corrupted one"],
    );
    refuse(&mut patch(&tiny_model(), [CLEAN, CLEAN], &[]), 2, &["the same tokens"]);
    refuse(&mut patch(&tiny_model(), ["", CLEAN], &[]), 2, &["--clean"]);
    refuse(
        &mut tiny(&["--answer", "Anna has a red box"]),
        2,
        &["the answer \"Anna has", "tokens", "not one"],
    );
    refuse(&mut tiny(&["--wrong", ""]), 2, &["the wrong answer", "0 tokens"]);
    refuse(&mut tiny(&["--answer", "A", "--wrong", "A"]), 2, &["--metric kl"]);
    refuse(&mut tiny(&["--layers", "3,8"]), 2, &["`8`", "from 0 to 7"]);
    refuse(&mut tiny(&["--positions", "9999999-99999999999"]), 2, &["position", "--positions"]);
    refuse(&mut tiny(&["--model", "x"]), 2, &["--model is for a run folder"]);
    refuse(&mut tiny(&["--out", "map.png"]), 2, &["map.png", ".svg"]);
    refuse(&mut tiny(&["--out", "nowhere/map.svg"]), 2, &["nowhere"]);
    refuse(&mut patch(Path::new("absent.gguf"), [CLEAN, CORRUPTED], &[]), 2, &["absent.gguf"]);
}
