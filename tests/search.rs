//! `layerscope search` on the embedded model's run: sets that hold on other prompts, run as policies, and errors.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{demo_prompts, json, layerscope, refuse, run, stderr, succeed, tiny_model};

#[test]
fn a_run_with_an_adapter_is_searched_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    let mut adapt = layerscope();
    adapt.arg("adapt").arg(tiny_model()).arg("--prompts").arg(demo_prompts()).arg("--out").arg(&adapter);
    succeed(adapt.args([
        "--policy",
        "keep:0-3+bos",
        "--steps",
        "10",
        "--max-new-tokens",
        "8",
        "--weights",
        "f32",
    ]));
    let out = recorded_with(folder.path(), &["--adapter", adapter.to_str().unwrap()]);
    refuse(&mut search(&out, &[]), 2, &["was recorded with the adapter", "give the model the same one"]);
    let few =
        ["--search-prompts", "3", "--worst-kl", "0.3", "--json", "--adapter", adapter.to_str().unwrap()];
    let found = json(&mut search(&out, &few))["search"].clone();
    // With nothing dropped it is the adapter's distance from the full model.
    let shown = json(layerscope().arg("show").arg(&out).arg("--json"));
    let judged: Vec<&str> =
        found["judged"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let at_full_depth: Vec<f64> = shown["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|prompt| judged.iter().any(|id| prompt["id"] == **id))
        .map(|prompt| {
            let rows = prompt["frontier"].as_array().unwrap();
            number(&rows.iter().find(|row| row["cutoff"] == 8 && row["anchor"] == "bos").unwrap()["kl"])
        })
        .collect();
    let mean = at_full_depth.iter().sum::<f64>() / at_full_depth.len() as f64;
    let kl = number(&found["sets"][0]["kl"]);
    assert!(kl > 1e-5 && (kl - mean).abs() < 1e-4 * mean.max(0.1), "{kl} {mean}");
}

/// A run of the bundled prompts.
fn recorded(folder: &Path) -> PathBuf {
    recorded_with(folder, &[])
}

fn recorded_with(folder: &Path, arguments: &[&str]) -> PathBuf {
    let out = folder.join("run");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts()).arg("--out").arg(&out);
    record.args(["--max-new-tokens", "24", "--weights", "f32", "--failure-cases", "0"]);
    succeed(record.args(arguments));
    out
}

fn search(run: &Path, arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("search").arg(run).arg("--model").arg(tiny_model()).args(arguments);
    command
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn sets_are_found_judged_on_others_kept_and_run_as_policies() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path());
    let found = json(&mut search(&out, &["--json"]))["search"].clone();
    let sets = found["sets"].as_array().unwrap();
    assert_eq!(
        (found["units"].as_str().unwrap(), found["searched"].as_array().unwrap().len()),
        ("heads", 10)
    );
    let ids = |name: &str| found[name].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned());
    assert!(ids("judged").all(|id| ids("searched").all(|other| other != id)));
    assert_eq!(number(&sets[0]["kv_kept"]), 1.0);
    assert!(number(&sets[0]["kl"]) < 1e-6);
    assert!(sets.windows(2).all(|pair| number(&pair[1]["kv_kept"]) < number(&pair[0]["kv_kept"])));
    // A quarter of the KV goes at next to no cost, on prompts that the search has not seen.
    let cheap = sets.iter().rfind(|set| number(&set["kl"]) < 0.01).unwrap();
    assert!(number(&cheap["kv_kept"]) < 0.75, "{cheap}");
    assert_eq!(cheap["answers_kept"], cheap["answers"]);

    // The run under that policy, along the same text, says the same.
    let policy = cheap["policy"].as_str().unwrap();
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts()).arg("--out").arg(&out);
    record.args(["--max-new-tokens", "24", "--weights", "f32", "--failure-cases", "0", "--policy", policy]);
    succeed(&mut record);
    let shown = json(layerscope().arg("show").arg(&out).arg("--json"));
    let judged: Vec<f64> = shown["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|prompt| ids("judged").any(|id| prompt["id"] == id.as_str()))
        .map(|prompt| number(&prompt["policies"][0]["kl"]))
        .collect();
    let mean = judged.iter().sum::<f64>() / judged.len() as f64;
    assert!((mean - number(&cheap["kl"])).abs() < 1e-4, "{mean} {cheap}");
    // Each head of each layer was measured while recording.
    let row = &shown["prompts"][0]["knockout"][3];
    assert_eq!(row["by_kv_head"].as_array().unwrap().len(), 2);

    // A search of another kind is kept beside it; the table names the set for the tolerance.
    let text = succeed(&mut search(
        &out,
        &["--units", "layers", "--cutoff", "6", "--last", "4", "--search-prompts", "3"],
    ));
    assert!(
        text.contains("layers that no longer see the prompt but for its first 1 and last 4 tokens"),
        "{text}"
    );
    assert!(text.contains("speed:6+bos+keep:"), "{text}");
    let kept: Value = serde_json::from_slice(&std::fs::read(out.join("sets.json")).unwrap()).unwrap();
    assert_eq!(kept["searches"].as_array().unwrap().len(), 2);

    // Where heads look is a worse guide than what they cost: at three quarters of the KV, the set costs more.
    let by_mass = json(&mut search(&out, &["--order", "mass", "--last", "0", "--json"]))["search"].clone();
    let by_cost = json(&mut search(&out, &["--last", "0", "--json"]))["search"].clone();
    let at = |sets: &Value| {
        let sets = sets.as_array().unwrap().clone();
        number(&sets.iter().rfind(|set| number(&set["kv_kept"]) >= 0.75).unwrap()["kl"])
    };
    assert!(at(&by_cost["sets"]) <= at(&by_mass["sets"]), "{by_mass}");
    assert_eq!(
        (by_mass["order"].as_str(), by_mass["searched"].clone()),
        (Some("mass"), found["searched"].clone())
    );

    // The best policy for a budget is one of the sets, and keeps no more than that.
    let fitting = json(layerscope().args(["recommend", "--kv-budget", "75%", "--json"]).arg(&out));
    let best = &fitting["choices"][0];
    assert!(number(&best["kv_kept"]) <= 0.75 && best["kind"] == "set", "{best}");
    let mut searched = [&found, &by_mass, &by_cost].into_iter().flat_map(|of| of["sets"].as_array().unwrap());
    assert!(searched.any(|set| set["policy"] == best["policy"] && number(&set["kl"]) == number(&best["kl"])));
    let cutoff =
        fitting["choices"].as_array().unwrap().iter().find(|choice| choice["kind"] == "cutoff").unwrap();
    assert!(number(&cutoff["kl"]) > number(&best["kl"]));
    let bytes = succeed(layerscope().args(["recommend", "--kv-budget", "1MiB", "--context", "1k"]).arg(&out));
    assert!(bytes.contains("For 1.0 MiB of KV, 1024 prompt tokens") && bytes.contains("keep:"), "{bytes}");

    // Its heads in a file are the same policy; a model of another shape refuses them.
    let heads = folder.path().join("heads.json");
    succeed(layerscope().args(["recommend", "--kv-budget", "75%", "--write-heads"]).arg(&heads).arg(&out));
    let said = |policy: String| {
        let mut generate = layerscope();
        generate.arg("generate").arg(tiny_model()).args([
            "--policy",
            &policy,
            "--max-new-tokens",
            "6",
            "--prompt",
        ]);
        succeed(generate.arg("The lake is Mundanra. What is the lake?"))
    };
    let from_file = said(format!("keep:heads={}", heads.display()));
    assert_eq!(from_file, said(best["policy"].as_str().unwrap().to_owned()));
    let other = std::fs::read_to_string(&heads).unwrap().replace("\"layers\": 8", "\"layers\": 9");
    std::fs::write(&heads, other).unwrap();
    let mut generate = layerscope();
    generate.arg("generate").arg(tiny_model()).args(["--prompt", "a", "--policy"]);
    let name = format!("keep:heads={}", heads.display());
    refuse(generate.arg(name), 2, &["heads.json", "9 layers with 2 KV heads", "layerscope search"]);

    // `show` has the heads that cost most, and what each search has found.
    let text = succeed(layerscope().arg("show").arg(&out));
    assert!(text.contains("hidden at one KV head alone (layer.head), nats: "), "{text}");
    assert!(text.contains("KV heads, first 1 and last 16 tokens shown"), "{text}");

    // The report draws all searches beside the cutoffs.
    let report = folder.path().join("report.json");
    succeed(layerscope().arg("report").arg(&out).arg("-o").arg(&report));
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let curves = report["runs"][0]["budgets"].as_array().unwrap();
    let names: Vec<&str> = curves.iter().map(|curve| curve["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "cutoffs",
            "KV heads, first 1 and last 16 tokens shown",
            "layers below 6, first 1 and last 4 tokens shown",
            "KV heads, by attention mass",
            "KV heads"
        ]
    );
    assert!(curves.iter().all(|curve| curve["points"].as_array().unwrap().len() > 3));

    // The text of a prompt stays the same under it.
    let prompts = std::fs::read_to_string(demo_prompts()).unwrap();
    let prompt: Value = serde_json::from_str(prompts.lines().next().unwrap()).unwrap();
    let text = |policy: &str| {
        let mut generate = layerscope();
        generate.arg("generate").arg(tiny_model()).args(["--policy", policy, "--max-new-tokens", "6"]);
        succeed(generate.args(["--prompt", prompt["prompt"].as_str().unwrap()]))
    };
    assert_eq!(text(policy), text("full"));
}

#[test]
fn what_cannot_be_searched_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = recorded(folder.path());
    refuse(&mut search(&out, &["--cutoff", "9"]), 2, &["--cutoff must be between 1 and 8"]);
    refuse(&mut search(&out, &["--worst-kl", "nan"]), 2, &["--worst-kl must be a number of nats"]);
    refuse(&mut search(&folder.path().join("none"), &[]), 2, &["none"]);
    std::fs::write(out.join("sets.json"), "{\"schema\": 1, \"searches\": 3}").unwrap();
    refuse(&mut search(&out, &["--search-prompts", "1"]), 2, &["sets.json", "delete it"]);
    let mut generate = layerscope();
    generate.arg("generate").arg(tiny_model()).args(["--policy", "keep:3-12", "--prompt", "a"]);
    refuse(&mut generate, 2, &["layer 8", "last one is 7"]);
    let budget = |budget: &str| {
        let mut recommend = layerscope();
        recommend.arg("recommend").arg(&out).args(["--kv-budget", budget]);
        recommend
    };
    let refused = run(&mut budget("50"));
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("`50` is no budget; give a share such as 50%"));
    std::fs::remove_file(out.join("sets.json")).unwrap();
    refuse(&mut budget("1KiB"), 2, &["fits into 1.0 KiB", "layerscope search"]);
    assert!(succeed(&mut budget("60%")).contains("layerscope search RUN finds better"));
    assert!(run(&mut search(&out, &["--units", "rows"])).status.code() == Some(2));
}
