//! `bench` and `needle` on the embedded model and on shapes with random weights.

#![allow(clippy::unwrap_used)]

mod support;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use std::process::Command;
use support::{json, layerscope, refuse, run, stderr, succeed, tiny_model};

fn bench(arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("bench").arg(tiny_model()).args(arguments);
    command
}

fn needle(arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("needle").arg(tiny_model()).args(arguments);
    command
}

const SMALL: [&str; 6] = ["--lengths", "32,64", "--new-tokens", "4", "--repeats", "2"];

#[test]
fn results_keep_the_contract_and_kv_is_the_cost_models() {
    let policies = ["full", "speed:5", "speed:5+bos"];
    let report = json(bench(&SMALL).args(["--json", "--policies", &policies.join(",")]));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for (index, result) in results.iter().enumerate() {
        assert_eq!(result["policy"], policies[index % 3]);
        let length = result["length"].as_u64().unwrap();
        assert_eq!(length, [32, 64][index / 3]);
        assert_eq!((result["new_tokens"].as_u64(), result["repeats"].as_u64()), (Some(4), Some(2)));
        for times in ["ttft_s", "tpot_s"] {
            for key in ["mean", "std", "median"] {
                assert!(result[times][key].as_f64().unwrap() >= 0.0, "{times}.{key}");
            }
            assert_eq!(result[times]["repeats"].as_array().unwrap().len(), 2);
        }
        assert_eq!(result["kv_bytes"], result["kv_bytes_model"]);
        // (p − 1 − a)·c + (a + N)·L layer-tokens of 2 · 2 heads · 32 elements in f16.
        let (cutoff, anchors) = [(8, 0), (5, 0), (5, 1)][index % 3];
        let layer_tokens = (length - 1 - anchors) * cutoff + (anchors + 4) * 8;
        assert_eq!(result["layer_tokens"], layer_tokens);
        assert_eq!(result["kv_bytes"], layer_tokens * 256);
        if cfg!(target_os = "linux") && result["peak_bytes"].is_null() {
            assert!(report["notes"][0].as_str().unwrap().contains("peak memory"));
        }
        for key in ["ttft_ratio", "ttft_ratio_model", "tpot_ratio", "tpot_ratio_model"] {
            assert!(result[key].as_f64().unwrap() > 0.0, "{key}");
        }
        if index % 3 == 0 {
            assert_eq!(
                (result["ttft_ratio"].as_f64(), result["ttft_ratio_model"].as_f64()),
                (Some(1.0), Some(1.0))
            );
        }
    }
    assert_eq!(report["model"], "layerscope-tiny.gguf");
    assert_eq!(report["weights"], "native");
    assert!(report["machine"]["threads"].as_u64().unwrap() > 0);
    assert!(report["layerscope"].is_string());
    // Without the full model there is nothing to compare with.
    let alone = json(bench(&SMALL).args(["--json", "--policies", "speed:5"]));
    assert!(alone["results"][0]["ttft_ratio"].is_null());
    assert!(alone["results"][0]["ttft_ratio_model"].is_number());
}

#[test]
fn tables_and_files_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, as_json) = (folder.path().join("bench.parquet"), folder.path().join("bench.json"));
    let table = succeed(bench(&SMALL).arg("--out").arg(&parquet));
    for part in ["32 prompt tokens, 4 new, repeats: 2", "speed:6+bos", "TTFT s", "KV MiB"] {
        assert!(table.contains(part), "`{part}` is not in {table}");
    }
    let file = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(&parquet).unwrap()).unwrap();
    for field in file.schema().fields() {
        for key in ["unit", "description"] {
            assert!(field.metadata().get(key).is_some_and(|text| !text.is_empty()), "{} {key}", field.name());
        }
    }
    let rows = file.build().unwrap().next().unwrap().unwrap();
    assert_eq!(rows.num_rows(), 6);
    let policies = rows.column_by_name("policy").unwrap().as_string::<i32>();
    assert_eq!(policies.iter().flatten().take(3).collect::<Vec<_>>(), ["full", "speed:6", "speed:6+bos"]);
    let kv = |name| rows.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(kv("kv_bytes"), kv("kv_bytes_model"));
    let ttft = rows.column_by_name("ttft_median_s").unwrap().as_primitive::<Float64Type>();
    assert!(ttft.values().iter().all(|seconds| *seconds > 0.0));

    let printed = json(bench(&SMALL).args(["--json", "--out"]).arg(&as_json));
    let written: Value = serde_json::from_slice(&std::fs::read(&as_json).unwrap()).unwrap();
    assert_eq!(written, printed);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing unfinished is left");
}

const QUALITY: [&str; 10] = [
    "--lengths",
    "256,300",
    "--new-tokens",
    "6",
    "--repeats",
    "1",
    "--policies",
    "full,speed:5,pop:5",
    "--quality",
    "2",
];

#[test]
fn quality_stands_beside_times_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (parquet, svg) = (folder.path().join("bench.parquet"), folder.path().join("bench.svg"));
    let report = json(bench(&QUALITY).arg("--json").arg("--out").arg(&parquet));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for result in results {
        let quality = &result["quality"];
        let figure = |name: &str| quality[name].as_f64().unwrap();
        assert_eq!(quality["prompts"], 2);
        assert!((0.0..=1.0).contains(&figure("top1")) && (0.0..=1.0).contains(&figure("found")));
        match result["policy"].as_str().unwrap() {
            "full" => assert_eq!((figure("kl"), figure("top1"), figure("dnll")), (0.0, 1.0, 0.0)),
            policy => assert!(figure("kl") > 1e-4, "{policy}: {quality}"),
        }
    }
    let file = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(&parquet).unwrap()).unwrap();
    let rows = file.build().unwrap().next().unwrap().unwrap();
    let kl = rows.column_by_name("quality_kl").unwrap().as_primitive::<Float64Type>();
    let printed: Vec<f64> = results.iter().map(|result| result["quality"]["kl"].as_f64().unwrap()).collect();
    assert_eq!(kl.values().to_vec(), printed);

    let table = succeed(bench(&QUALITY).arg("--out").arg(&svg));
    let figure = std::fs::read_to_string(&svg).unwrap();
    for part in ["KL(full, policy), nats per token", "TTFT / full", "300 prompt tokens", "swiftkv", "pop:5"] {
        assert_eq!(figure.contains(part), part != "swiftkv", "{part}");
    }
    for part in ["KL nats", "same top", "found", "Prompts at each length: 2"] {
        assert!(table.contains(part), "`{part}` is not in {table}");
    }
    let without = json(bench(&SMALL).arg("--json"));
    assert!(without["results"][0]["quality"].is_null());
    assert!(!succeed(&mut bench(&SMALL)).contains("KL nats"));
}

#[test]
fn keys_and_values_in_eight_bits_take_half_the_memory_and_have_a_kl() {
    let report = json(bench(&QUALITY).args(["--json", "--kv", "q8_0"]));
    let in_f16 = json(bench(&QUALITY).args(["--json", "--kv", "f16"]));
    assert!(report["notes"].as_array().unwrap().iter().any(|note| note == "keys and values in q8_0"));
    let both = |name: &str, at: usize| [&report, &in_f16].map(|report| report["results"][at][name].clone());
    for (index, result) in report["results"].as_array().unwrap().iter().enumerate() {
        assert_eq!(result["kv_bytes"], result["kv_bytes_model"]);
        let [eight, sixteen] = both("kv_bytes", index).map(|bytes| bytes.as_u64().unwrap());
        assert_eq!(64 * eight, 34 * sixteen);
        // The full model with keys and values in f16 is what both are compared with.
        let [eight, sixteen] = both("quality", index).map(|quality| quality["kl"].as_f64().unwrap());
        if result["policy"] == "full" {
            assert!(eight > 0.0 && eight < 0.01 && sixteen == 0.0, "{eight} {sixteen}");
        } else {
            assert!(eight > 1e-4 && (eight - sixteen).abs() < 0.2 * sixteen + 0.01, "{eight} {sixteen}");
        }
    }
    refuse(bench(&SMALL).args(["--kv", "bf16", "--device", "cpu"]), 2, &["CPU", "--kv bf16"]);
}

#[test]
fn quality_that_cannot_be_measured_is_refused() {
    let small = ["--new-tokens", "4", "--repeats", "1"];
    refuse(bench(&small).args(["--lengths", "20,300", "--quality"]), 2, &["20", "needle", "longer"]);
    refuse(bench(&small).args(["--lengths", "300", "--quality", "0"]), 2, &["0 prompts", "101"]);
    refuse(bench(&small).args(["--lengths", "300", "--out", "a.svg"]), 2, &["a.svg", "--quality"]);
    let alone = ["--lengths", "300", "--policies", "speed:5", "--out", "a.svg", "--quality"];
    refuse(bench(&small).args(alone), 2, &["a.svg", "full to --policies"]);
    let mut shape = layerscope();
    shape.args(["bench", "--lengths", "300", "--shape", "smollm2-135m", "--quality"]);
    refuse(&mut shape, 2, &["random weights", "--quality"]);
}

#[test]
fn one_token_and_one_repeat_leave_undefined_figures_null() {
    let report = json(&mut bench(&["--lengths", "1", "--new-tokens", "1", "--repeats", "1", "--json"]));
    let result = &report["results"][0];
    assert!(result["ttft_s"]["std"].is_null() && result["tpot_s"]["mean"].is_null());
    assert_eq!(result["ttft_ratio_model"], 1.0);
    succeed(&mut bench(&["--lengths", "1", "--new-tokens", "1", "--repeats", "1"]));
}

#[test]
fn shapes_of_every_type_of_weights_run_and_say_what_they_are() {
    for weights in ["q4_0", "q4_1", "q8_0", "q4_k_m", "f16", "bf16", "f32"] {
        let report = json(layerscope().args(["bench", "--shape", "smollm2-135m", "--layers", "2"]).args([
            "--shape-weights",
            weights,
            "--policies",
            "full,speed:1+bos",
            "--lengths",
            "16",
            "--new-tokens",
            "3",
            "--repeats",
            "1",
            "--json",
        ]));
        assert_eq!(report["model"], "smollm2-135m cut to 2 of 30 layers");
        let note =
            format!("random weights ({weights}) of shape smollm2-135m cut to 2 of 30 layers: speed only");
        assert_eq!(report["notes"][0], note);
        assert_eq!(report["results"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn bad_requests_are_refused_in_one_sentence() {
    for (arguments, names) in [
        (["--lengths", "1x"], ["1x", "128k"]),
        (["--lengths", "1,0"], ["`0`", "128k"]),
        (["--lengths", "64,1k"], ["1024", "context"]),
        (["--policies", "full,fast"], ["fast", "speed:CUTOFF"]),
        (["--policies", "speed:9"], ["speed:9", "8"]),
        (["--policies", "full,speed:8"], ["are full", "once"]),
        (["--repeats", "0"], ["repeats", "1"]),
        (["--out", "figures.csv"], ["figures.csv", ".parquet"]),
        (["--out", "no/such/folder/a.json"], ["no/such/folder", "create"]),
    ] {
        let mut command = bench(&["--new-tokens", "4"]);
        if arguments[0] != "--lengths" {
            command.args(["--lengths", "8"]);
        }
        refuse(command.args(arguments), 2, &names);
    }
    let shape = |arguments: &[&str]| {
        let mut command = layerscope();
        command.args(["bench", "--lengths", "8", "--shape"]).args(arguments);
        command
    };
    refuse(&mut shape(&["gpt-5"]), 2, &["gpt-5", "llama-3.1-8b"]);
    refuse(&mut shape(&["smollm2-135m", "--layers", "31"]), 2, &["30", "31"]);
    refuse(&mut shape(&["smollm2-135m", "--shape-weights", "q3"]), 2, &["q3", "q4_k_m"]);
    // Fails before eight billion weights are allocated.
    refuse(&mut shape(&["llama-3.1-8b", "--policies", "speed:33"]), 2, &["speed:33", "32"]);
    let both = run(&mut bench(&["--shape", "smollm2-135m"]));
    assert_eq!(both.status.code(), Some(2), "a model and a shape");
}

const NEEDLES: [&str; 10] = [
    "--lengths",
    "256,400",
    "--depths",
    "0,100",
    "--samples",
    "2",
    "--max-new-tokens",
    "16",
    "--policies",
    "full,speed:2",
];

#[test]
fn needles_are_looked_for_under_every_policy() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("needles.jsonl");
    let report = json(needle(&NEEDLES).arg("--json").arg("--out").arg(&out));
    let text = std::fs::read_to_string(&out).unwrap();
    let outcomes: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // 2 lengths × 2 depths × 2 samples × 2 policies.
    assert_eq!(outcomes.len(), 16);
    for outcome in &outcomes {
        let (length, tokens) =
            (outcome["length"].as_u64().unwrap(), outcome["prompt_tokens"].as_u64().unwrap());
        assert!(tokens <= length && length - tokens < 60);
        let answer = outcome["answer"].as_str().unwrap();
        assert_eq!(outcome["correct"], outcome["text"].as_str().unwrap().contains(answer));
    }
    let results = report["results"].as_array().unwrap();
    assert_eq!((results.len(), report["by_depth"].as_array().unwrap().len()), (4, 8));
    for result in results {
        let same = |outcome: &&Value| ["policy", "length"].iter().all(|key| outcome[*key] == result[*key]);
        let group: Vec<&Value> = outcomes.iter().filter(same).collect();
        assert_eq!(result["prompts"], group.len());
        assert_eq!(result["correct"], group.iter().filter(|outcome| outcome["correct"] == true).count());
        let loops = group.iter().filter(|outcome| !outcome["repetition"].is_null()).count();
        assert_eq!(result["loops"].as_f64().unwrap(), loops as f64 / group.len() as f64);
        let [share, lower, upper] = ["accuracy", "accuracy_ci95_lower", "accuracy_ci95_upper"]
            .map(|key| result[key].as_f64().unwrap());
        assert!(0.0 <= lower && lower <= share && share <= upper && upper <= 1.0 && lower < upper);
        assert!(result["ttft_s"].as_f64().unwrap() > 0.0);
    }
    let table = succeed(&mut needle(&NEEDLES));
    for part in ["found", "loops %", "depth 100 %"] {
        assert!(table.contains(part), "`{part}` is not in {table}");
    }
}

#[test]
fn each_heads_pattern_is_searched_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heads.json");
    let patterns = |arguments: &[&str]| {
        let mut command = layerscope();
        command.arg("patterns").arg(tiny_model()).args(arguments).arg("--out").arg(&file);
        command
    };
    let found = json(&mut patterns(&["--tokens", "128", "--length", "400", "--json"]));
    let heads: u64 =
        found["kinds"].as_array().unwrap().iter().map(|kind| kind["heads"].as_u64().unwrap()).sum();
    assert_eq!(heads, 8 * 4, "{found}");
    let policies = format!("full,minference:heads={}", file.display());
    let lengths = ["--lengths", "400", "--repeats", "1", "--new-tokens", "2", "--json", "--policies"];
    let measured = json(layerscope().arg("bench").arg(tiny_model()).args(lengths).arg(&policies));
    assert_eq!(measured["results"].as_array().unwrap().len(), 2);
    refuse(&mut patterns(&["--tokens", "2k", "--length", "400"]), 2, &["too short", "2048"]);
    let prompts = folder.path().join("short.jsonl");
    std::fs::write(&prompts, r#"{"id": "a", "prompt": "Hi"}"#).unwrap();
    refuse(&mut patterns(&["--prompts", prompts.to_str().unwrap()]), 2, &["short.jsonl", "--tokens"]);
}

#[test]
fn needle_prompts_can_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("needles.jsonl"), folder.path().join("run"));
    let write = || {
        let written =
            run(needle(&["--lengths", "200", "--depths", "50", "--samples", "2", "--write-prompts"])
                .arg(&prompts));
        assert!(written.status.success(), "{}", stderr(&written));
        std::fs::read(&prompts).unwrap()
    };
    assert_eq!(write(), write(), "the same seed writes the same prompts");
    let recorded = json(
        layerscope()
            .arg("record")
            .arg(tiny_model())
            .arg("--prompts")
            .arg(&prompts)
            .args(["--max-new-tokens", "4", "--json", "--out"])
            .arg(&out),
    );
    for prompt in recorded["show"]["prompts"].as_array().unwrap() {
        assert_eq!(prompt["category"], "needle 200");
        assert!(prompt["p"].as_u64().unwrap() <= 200);
    }
}

#[test]
fn needles_that_do_not_fit_are_refused() {
    refuse(&mut needle(&["--lengths", "2k"]), 2, &["2048", "1024"]);
    refuse(&mut needle(&["--lengths", "20"]), 2, &["20"]);
    refuse(&mut needle(&["--lengths", "300", "--depths", "0,101"]), 2, &["101"]);
    refuse(&mut needle(&["--lengths", "300", "--depths", "top"]), 2, &["top"]);
    refuse(&mut needle(&["--lengths", "300", "--policies", "fast"]), 2, &["fast"]);
}

/// Ctrl-C prints and writes the measurements so far.
#[cfg(unix)]
#[test]
fn an_interrupt_keeps_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bench.json");
    let mut command =
        bench(&["--lengths", "8,900", "--new-tokens", "100", "--repeats", "1000", "--json", "--out"]);
    let child = command
        .arg(&out)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(4));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    for result in report["results"].as_array().unwrap() {
        assert!((1..1000).contains(&result["repeats"].as_u64().unwrap()));
    }
    assert!(out.exists());
}

#[test]
fn policies_that_no_model_was_trained_for_say_so() {
    let (policies, caveat) = ("speed:5,pop:5,swiftkv:5", "efficiency-faithful, quality not representative");
    let notes = |report: &Value| {
        let notes = report["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap().to_owned());
        notes.filter(|note| note.contains(caveat)).collect::<Vec<_>>()
    };
    let expected = ["pop:5", "swiftkv:5"].map(|name| format!("{name}: {caveat}"));
    let report = json(bench(&SMALL).args(["--json", "--policies", policies]));
    assert_eq!(notes(&report), expected);
    for result in report["results"].as_array().unwrap() {
        let length = result["length"].as_u64().unwrap();
        assert_eq!(result["kv_bytes"], result["kv_bytes_model"]);
        assert_eq!(result["layer_tokens"], (length - 1) * 5 + 4 * 8, "projections are no blocks");
    }
    assert_eq!(notes(&json(needle(&NEEDLES[..8]).args(["--policies", policies, "--json"]))), expected);
    assert!(succeed(needle(&NEEDLES[..8]).args(["--policies", policies])).contains(&expected[0]));
}
