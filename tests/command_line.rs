//! The command line on the embedded model.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use support::{demo_prompts, json, layerscope, numbers, refuse, run, stderr, succeed, tiny_model};

fn record(out: &Path) {
    succeed(
        layerscope()
            .arg("record")
            .arg(tiny_model())
            .arg("--prompts")
            .arg(demo_prompts())
            .args(["--max-new-tokens", "8", "--out"])
            .arg(out),
    );
}

#[test]
fn demo_records_shows_recommends_and_resumes_without_work() {
    let folder = tempfile::tempdir().unwrap();
    let demo = || layerscope().current_dir(folder.path()).arg("demo").output().unwrap();
    let first = demo();
    assert!(first.status.success(), "{}", stderr(&first));
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    for part in ["layer", "knockout KL", "Recommended", "Next:"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let tables = |name: &str| std::fs::read(folder.path().join("layerscope-demo").join(name)).unwrap();
    let before = tables("prompts.parquet");
    let second = demo();
    assert!(second.status.success());
    assert!(stderr(&second).contains("recorded already"));
    assert_eq!(tables("prompts.parquet"), before, "nothing is computed again");
}

#[test]
fn show_and_recommend_print_the_contracts_json() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    record(&out);
    let show = json(layerscope().arg("show").arg(&out).arg("--json"));
    let layers = show["manifest"]["model"]["layers"].as_u64().unwrap() as usize;
    let heads = show["manifest"]["model"]["heads"].as_u64().unwrap() as usize;
    assert!(layers >= 8);
    for prompt in show["prompts"].as_array().unwrap() {
        assert_eq!(prompt["prompt_tokens"].as_array().unwrap().len(), prompt["p"].as_u64().unwrap() as usize);
        assert_eq!(prompt["generated"].as_array().unwrap().len(), 8);
        let [bos, inside, decode] =
            ["bos_mass", "prompt_mass", "decode_mass"].map(|key| numbers(&prompt[key]));
        for layer in 0..layers {
            assert!((bos[layer] + inside[layer] + decode[layer] - 1.0).abs() < 1e-4);
        }
        assert!(numbers(&prompt["prompt_entropy"]).iter().all(|e| (0.0..=1.0).contains(e)));
        assert_eq!(prompt["prompt_mass_by_head"].as_array().unwrap().len(), layers);
        assert_eq!(prompt["prompt_mass_by_head"][0].as_array().unwrap().len(), heads);
        assert_eq!(prompt["curvature_prompt_deg"].as_array().unwrap().len(), layers + 1);
        assert_eq!(prompt["frontier"].as_array().unwrap().len(), 2 * layers);
        assert_eq!(prompt["knockout"].as_array().unwrap().len(), layers);
        for row in prompt["frontier"].as_array().unwrap().iter().filter(|row| row["cutoff"] == layers) {
            assert_eq!(row["kl"], 0.0);
        }
    }
    let recommendation = json(layerscope().arg("recommend").arg(&out).arg("--json"));
    for key in [
        "l_cut",
        "layers",
        "anchor",
        "kl",
        "kl_upper95",
        "kl_below",
        "top1",
        "diagnostic_l_cut",
        "kv_saved",
        "reasons",
    ] {
        assert!(recommendation.get(key).is_some(), "`{key}` is missing");
    }
    let strings = |name: &str| -> Vec<String> {
        recommendation[name]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let (reasons, caveats) = (strings("reasons"), strings("caveats"));
    assert_eq!(caveats[0], format!("based on {} prompts", recommendation["prompts"]));
    // The answer at a glance: a headline, a row for each category, one line of caveats. The reasons on request.
    let glance = succeed(layerscope().arg("recommend").arg(&out));
    let lines: Vec<&str> = glance.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines[0].starts_with("Recommended"), "{glance}");
    assert_eq!(lines.len(), 1 + 2 + recommendation["categories"].as_array().unwrap().len() + 1, "{glance}");
    for category in recommendation["categories"].as_array().unwrap() {
        assert!(
            lines.iter().any(|line| line.trim_start().starts_with(category["category"].as_str().unwrap())),
            "{glance}"
        );
    }
    assert!(lines[lines.len() - 1].starts_with("Based on"), "{glance}");
    assert!(!glance.contains(&reasons[0]));
    let why = succeed(layerscope().arg("recommend").arg(&out).arg("--why"));
    assert!(why.starts_with(&glance) && reasons.iter().all(|reason| why.contains(reason)), "{why}");
    // A large tolerance lowers the cutoff; a tiny one keeps full depth.
    let at = |tolerance: &str| {
        json(layerscope().arg("recommend").arg(&out).args(["--json", "--tolerance", tolerance]))["l_cut"]
            .as_u64()
            .unwrap()
    };
    assert!(at("50") <= recommendation["l_cut"].as_u64().unwrap());
    assert_eq!(at("0"), layers as u64);
    let summary = json(layerscope().arg("show").arg(&out).arg("--summary-json"));
    assert_eq!(summary["categories"].as_array().unwrap().len(), 5);
    let by_category = succeed(layerscope().arg("show").arg(&out).arg("--by-category"));
    assert!(by_category.contains("retrieval"));
}

#[test]
fn a_given_answer_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(
        &prompts,
        "{\"id\":\"a\",\"prompt\":\"x = 3\\ny = 5\\nprint(y)\",\"answer\":\"5 and then some more\"}\n\n",
    )
    .unwrap();
    let out = folder.path().join("run");
    let recorded = json(
        layerscope()
            .arg("record")
            .arg("layerscope-tiny")
            .arg("--prompts")
            .arg(&prompts)
            .args(["--max-new-tokens", "4", "--json", "--out"])
            .arg(&out),
    );
    assert_eq!(recorded["show"]["prompts"][0]["generated"].as_array().unwrap().len(), 4);
}

#[test]
fn generation_is_reproducible_and_speed_at_full_depth_is_full() {
    let generate = |arguments: &[&str]| {
        json(
            layerscope()
                .arg("generate")
                .arg(tiny_model())
                .args(["--json", "--max-new-tokens", "12", "--prompt", "alpha: 3\nbeta: 7\nalpha:"])
                .args(arguments),
        )
    };
    let layers =
        json(layerscope().arg("models").arg("--json"))["models"][0]["config"]["layers"].as_u64().unwrap();
    let full = generate(&["--ignore-eos"]);
    for kind in ["speed", "selfonly", "pop", "swiftkv"] {
        let same = generate(&["--ignore-eos", "--policy", &format!("{kind}:{layers}")]);
        assert_eq!(same["tokens"], full["tokens"], "{kind}");
        assert!(same["caveat"].is_null(), "{kind} at all layers is the full model");
    }
    let sampled =
        |seed| generate(&["--ignore-eos", "--temperature", "2.5", "--seed", seed])["tokens"].clone();
    assert_eq!(sampled("7"), sampled("7"));
    assert_ne!(sampled("7"), sampled("8"));
    let greedy = generate(&["--ignore-eos", "--temperature", "0", "--top-p", "0.5"]);
    assert_eq!(greedy["tokens"], full["tokens"]);
    let shallow = generate(&["--ignore-eos", "--policy", "speed:2+bos"]);
    assert_eq!(shallow["kv_bytes"], shallow["kv_bytes_model"]);
    assert!(shallow["kv_bytes"].as_u64() < full["kv_bytes"].as_u64());
}

#[test]
fn what_was_not_trained_for_its_policy_says_so() {
    let generate = |policy: &str| {
        let mut command = layerscope();
        command.arg("generate").arg(tiny_model()).args(["--max-new-tokens", "4", "--ignore-eos"]);
        command.args(["--prompt", "alpha: 3\nbeta: 7\nalpha:", "--policy", policy]);
        command
    };
    let caveat = "efficiency-faithful, quality not representative";
    let full = json(generate("full").arg("--json"));
    for policy in ["pop:4", "swiftkv:4"] {
        let generated = json(generate(policy).arg("--json"));
        assert_eq!((&generated["policy"], &generated["caveat"]), (&policy.into(), &caveat.into()));
        assert_eq!(generated["kv_bytes"], full["kv_bytes"], "{policy} keeps all KV");
        let text = generate(policy).output().unwrap();
        assert!(text.status.success() && stderr(&text).contains(caveat), "{}", stderr(&text));
    }
    for (policy, zero_shot) in [("full", false), ("speed:4+bos+3-5", true), ("selfonly:4+bos", true)] {
        let generated = json(generate(policy).arg("--json"));
        assert_eq!(generated["policy"], policy);
        assert_eq!(generated["caveat"].as_str().is_some_and(|said| said.starts_with("zero-shot")), zero_shot);
        assert_eq!(generated["kv_bytes"], generated["kv_bytes_model"]);
        assert!(!stderr(&generate(policy).output().unwrap()).contains(caveat));
    }
    let help = succeed(layerscope().args(["generate", "--help"]));
    let policies = ["full", "speed:CUTOFF", "selfonly:CUTOFF", "pop:CUTOFF", "swiftkv:CUTOFF"];
    for policy in
        policies.into_iter().chain(["sliminfer[", "lazyllm[:LAYER=KEPT", "streaming:WINDOW[+sinks=N]"])
    {
        assert!(help.contains(policy), "{policy} is not in {help}");
    }
}

/// Offloading is announced before, counted after, and an error without memory to offload to.
#[test]
fn blocks_of_the_prompt_leave_and_come_back() {
    let prompt: String = (0..90).map(|i| format!("item {i}: {}\n", i * 7 % 10)).collect();
    let generate = |policy: &str| {
        let mut command = layerscope();
        command.arg("generate").arg(tiny_model()).args(["--max-new-tokens", "12", "--ignore-eos"]);
        command.args(["--prompt", &prompt, "--policy", policy]);
        command
    };
    let full = json(generate("full").arg("--json"));
    assert!(full["transfers"].is_null());
    assert!(full["prompt_tokens"].as_array().unwrap().len() > 400, "a prompt of several blocks");
    let pruned = json(generate("sliminfer:2=320+5=256+read=0.5+swap=1").arg("--json"));
    assert_eq!(pruned["kv_bytes"], pruned["kv_bytes_model"]);
    assert!(pruned["kv_bytes"].as_u64() < full["kv_bytes"].as_u64().map(|bytes| bytes * 3 / 4));
    let moved = &pruned["transfers"];
    // Eleven steps after the first token, at two prunings.
    assert_eq!(moved["rescored"], 22, "{moved}");
    assert!(moved["bytes_out"].as_u64() > Some(0) && moved["blocks_active"].as_u64() > Some(0), "{moved}");
    assert_eq!(moved["swaps"].as_u64() > Some(0), moved["bytes_in"].as_u64() > Some(0), "{moved}");
    assert_eq!(
        json(generate("sliminfer:2=320+5=256+read=0.5+swap=1+sync").arg("--json"))["tokens"],
        pruned["tokens"]
    );
    assert_eq!(json(generate("sliminfer:2=100%").arg("--json"))["tokens"], full["tokens"]);

    let told = generate("sliminfer:2=320+read=0.5").output().unwrap();
    let told = stderr(&told);
    for part in ["prompt tokens go on: ", "after layer 2", "of KV leave the device, at most ", "taken away"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    let refused =
        generate("sliminfer:2=320+read=0.5").env("LAYERSCOPE_SPILL_DIR", "/no/such/folder").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("/no/such/folder") && stderr(&refused).contains("LAYERSCOPE_SPILL_DIR")
    );
    // Nothing is offloaded, so nothing is needed there.
    let resident = generate("sliminfer:2=320").env("LAYERSCOPE_SPILL_DIR", "/no/such/folder").output();
    assert!(resident.unwrap().status.success());
}

/// Reduced KV, caveats of policies, and errors on invalid policy names.
#[test]
fn generation_under_policies_without_a_cutoff() {
    let generate = |policy: &str| {
        let mut command = layerscope();
        command.arg("generate").arg(tiny_model()).args(["--max-new-tokens", "5", "--ignore-eos"]);
        command.args(["--prompt", "alpha: 3\nbeta: 7\ngamma: 5\ndelta: 1\nalpha:", "--policy", policy]);
        command
    };
    let full = json(generate("full").arg("--json"));
    let bytes = |generated: &Value, of: &str| generated[of].as_u64().unwrap();
    for policy in ["streaming:4+sinks=1", "lazyllm:2=5+4=3"] {
        let generated = json(generate(policy).arg("--json"));
        assert_eq!(generated["policy"], policy);
        assert_eq!(generated["tokens"].as_array().unwrap().len(), 5);
        assert!(bytes(&generated, "kv_bytes") < bytes(&full, "kv_bytes"), "{generated}");
        let caveat = generated["caveat"].as_str().unwrap();
        let text = generate(policy).output().unwrap();
        assert!(text.status.success() && stderr(&text).contains(caveat), "{}", stderr(&text));
        assert!(stderr(&text).contains(&format!("[{policy}] of ")), "{}", stderr(&text));
    }
    let streaming = json(generate("streaming:4+sinks=1").arg("--json"));
    assert_eq!(streaming["kv_bytes"], streaming["kv_bytes_model"]);
    assert!(streaming["revivals"].is_null() && full["revivals"].is_null());
    let lazyllm = json(generate("lazyllm:2=5+4=3").arg("--json"));
    assert!(bytes(&lazyllm, "kv_bytes") >= bytes(&lazyllm, "kv_bytes_model"));
    assert!(lazyllm["revivals"]["auxiliary_bytes"].as_u64().unwrap() > 0);
    // Four steps choose five tokens and then three.
    assert_eq!(lazyllm["revivals"]["tokens_chosen"], 4 * 8);
    for (policy, told) in
        [("streaming:0", "streaming:WINDOW[+sinks=N]"), ("lazyllm:4=9+2=3", "in ascending order")]
    {
        let refused = generate(policy).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(told), "{}", stderr(&refused));
    }
}

/// Long texts of the embedded model may end in a loop; the report of it matches the tokens.
#[test]
fn a_loop_at_the_end_of_a_text_is_told() {
    let mut loops = 0;
    for prompt in ["alpha: 3\nbeta: 7\nalpha:", "one two three one two three one", "a a a a a a a a a a"] {
        for policy in ["full", "speed:2"] {
            let generated = json(
                layerscope()
                    .arg("generate")
                    .arg(tiny_model())
                    .args(["--json", "--ignore-eos", "--max-new-tokens", "80", "--policy", policy])
                    .args(["--prompt", prompt]),
            );
            let tokens = numbers(&generated["tokens"]);
            let repetition = &generated["repetition"];
            let Some(period) = repetition["period"].as_u64() else {
                continue;
            };
            let covered = (period * repetition["rounds"].as_u64().unwrap()) as usize;
            let end = &tokens[tokens.len() - covered..];
            assert_eq!(end[period as usize..], end[..covered - period as usize]);
            loops += 1;
        }
    }
    assert!(loops > 0, "greedy text of so small a model loops somewhere");
}

#[test]
fn capture_writes_named_activations_and_pattern_rows_sum_to_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("activations.safetensors");
    let listed = json(
        layerscope()
            .arg("capture")
            .arg(tiny_model())
            .args(["--json", "--prompt", "one two three", "--max-new-tokens", "3"])
            .args([
                "--hook",
                "blocks.*.hook_resid_post",
                "--hook",
                "blocks.1.attn.hook_pattern",
                "--hook",
                "ln_final.hook_normalized",
                "--out",
            ])
            .arg(&file),
    );
    let layers =
        json(layerscope().arg("models").arg("--json"))["models"][0]["config"]["layers"].as_u64().unwrap();
    assert_eq!(listed["activations"].as_array().unwrap().len() as u64, layers + 2);
    let tensors = candle_core::safetensors::load(&file, &candle_core::Device::Cpu).unwrap();
    let pattern = &tensors["blocks.1.attn.hook_pattern"];
    let (_, queries, keys) = pattern.dims3().unwrap();
    assert_eq!(queries, keys);
    let sums = pattern.sum(2).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    assert_eq!(tensors["blocks.0.hook_resid_post"].dim(0).unwrap(), queries);
}

#[test]
fn a_folder_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    record(&out);
    let base = || {
        let mut command = layerscope();
        command.arg("record").arg(tiny_model()).arg("--out").arg(&out);
        command
    };
    refuse(
        base().arg("--prompts").arg(demo_prompts()).args(["--max-new-tokens", "9"]),
        2,
        &["--max-new-tokens", "--out"],
    );
    refuse(
        base().arg("--prompts").arg(demo_prompts()).args(["--max-new-tokens", "8", "--weights", "f32"]),
        2,
        &["weights"],
    );
    let other = folder.path().join("other.jsonl");
    std::fs::write(&other, "{\"id\":\"a\",\"prompt\":\"b\"}\n").unwrap();
    refuse(base().arg("--prompts").arg(&other).args(["--max-new-tokens", "8"]), 2, &["prompts"]);
}

#[test]
fn a_device_that_is_not_there_is_refused_with_the_mend() {
    let folder = tempfile::tempdir().unwrap();
    let generate = |device: &str| {
        let mut command = layerscope();
        command.arg("generate").arg(tiny_model()).args([
            "--prompt",
            "Hello",
            "--max-new-tokens",
            "4",
            "--device",
            device,
        ]);
        command
    };
    // Beyond any machine's GPUs, in builds with and without the feature.
    refuse(&mut generate("cuda:99"), 2, &[]);
    let unknown = run(&mut generate("gpu"));
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("cuda:0"), "{}", stderr(&unknown));
    let text = |device| succeed(&mut generate(device));
    assert_eq!(text("cpu"), text("cpu"));
    // The manifest's command contains the device.
    let out = folder.path().join("run");
    let mut recording = layerscope();
    recording.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
    succeed(recording.args(["--max-new-tokens", "2", "--device", "cpu", "--out"]).arg(&out));
    let manifest: Value = serde_json::from_slice(&std::fs::read(out.join("manifest.json")).unwrap()).unwrap();
    let command: Vec<&str> =
        manifest["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(command.windows(2).any(|pair| pair == ["--device", "cpu"]), "{command:?}");
    assert_eq!(manifest["device"], "cpu");
}

#[test]
fn help_has_examples_and_completions_are_scripts() {
    let commands = [
        "demo",
        "record",
        "sweep",
        "show",
        "recommend",
        "generate",
        "bench",
        "needle",
        "capture",
        "models",
        "inspect",
    ];
    for command in commands {
        assert!(succeed(layerscope().args([command, "--help"])).contains("Example"), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(succeed(layerscope().args(["completions", shell])).contains("layerscope"));
    }
    assert_eq!(run(layerscope().arg("recrod")).status.code(), Some(2));
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    succeed(layerscope().arg("man").arg(&pages));
    let help = succeed(layerscope().arg("--help"));
    let commands = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let commands = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let commands = commands.filter(|line| !line.starts_with(' ')).map(|line| line.split(' ').next().unwrap());
    let mut expected: Vec<_> = commands
        .filter(|command| *command != "help")
        .map(|command| format!("layerscope-{command}.1"))
        .chain(["layerscope.1".to_owned()])
        .collect();
    expected.sort();
    assert!(expected.len() > 20, "{expected:?}");
    let files = std::fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, expected);

    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let title = format!(".TH layerscope-record 1  \"layerscope {}\"", env!("CARGO_PKG_VERSION"));
    let record = page("layerscope-record.1");
    assert!(record.contains(&title), "{record}");
    // Each of its lines stays one.
    let example = ".nf\nExample:\n  layerscope record model.gguf \\-\\-prompts prompts.jsonl";
    assert!(record.contains(example), "{record}");
    assert!(page("layerscope.1").contains("layerscope\\-record(1)"));

    let file = pages.join("layerscope.1");
    let output = run(layerscope().arg("man").arg(&file));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("layerscope: cannot create "), "{}", stderr(&output));
}
