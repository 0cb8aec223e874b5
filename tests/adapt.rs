//! `adapt` and `--adapter` on the embedded model.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{demo_prompts, json, layerscope, refuse, stderr, tiny_model};

fn adapt(out: &Path, arguments: &[&str]) -> Command {
    let mut command = layerscope();
    command.arg("adapt").arg(tiny_model()).args([
        "--policy",
        "speed:4+bos",
        "--max-new-tokens",
        "8",
        "--prompts",
    ]);
    command.arg(demo_prompts()).arg("--out").arg(out).args(arguments);
    command
}

fn generated(policy: &str, adapter: Option<&Path>) -> (Value, String) {
    let mut command = layerscope();
    command
        .arg("generate")
        .arg(tiny_model())
        .args(["--prompt", "The lake of Belelland is Mundanra. What is the lake?"]);
    command.args(["--policy", policy, "--max-new-tokens", "8", "--json"]);
    command.args(adapter.into_iter().flat_map(|folder| ["--adapter".as_ref(), folder.as_os_str()]));
    let output = support::run(&mut command);
    (serde_json::from_slice(&output.stdout).unwrap(), stderr(&output))
}

#[test]
fn an_adapter_is_trained_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("adapter");
    let trained = json(&mut adapt(&out, &["--steps", "30", "--evaluate-every", "10", "--json"]));
    assert_eq!((trained["steps"].as_u64(), trained["policy"].as_str()), (Some(30), Some("speed:4+bos")));
    let kl = |when: &str| trained[when]["kl"].as_f64().unwrap();
    assert!(kl("after") < kl("before"), "{trained}");
    assert!(kl("full_depth") > 0.0);
    for file in ["adapter_config.json", "adapter_model.safetensors", "layerscope.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let measured = trained["measured"].as_array().unwrap();
    let steps: Vec<u64> = measured.iter().map(|at| at["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [0, 10, 20, 30]);
    assert!(measured.is_sorted_by_key(|at| at["seconds"].as_f64().unwrap()));
    let ends = [(&measured[0], "before"), (&measured[3], "after")];
    assert!(ends.iter().all(|(at, when)| at["kl"] == trained[when]["kl"]), "{trained}");
    // The same command has nothing left to do.
    let again = json(&mut adapt(&out, &["--steps", "30", "--evaluate-every", "10", "--json"]));
    for name in ["steps", "after", "measured"] {
        assert_eq!(again[name], trained[name], "{name}");
    }

    let (plain, _) = generated("speed:4+bos", None);
    let (adapted, said) = generated("speed:4+bos", Some(&out));
    assert_ne!(plain["tokens"], adapted["tokens"]);
    assert_eq!(adapted["model"], "layerscope-tiny.gguf + adapter");
    assert!(!said.contains("was made for"), "{said}");
    assert!(generated("speed:5", Some(&out)).1.contains("was made for speed:4+bos, not for speed:5"));

    let mut needle = layerscope();
    needle.arg("needle").arg(tiny_model()).args([
        "--lengths",
        "128",
        "--depths",
        "50",
        "--samples",
        "1",
        "--json",
    ]);
    let found =
        json(needle.args(["--policies", "full,speed:4+bos", "--max-new-tokens", "4", "--adapter"]).arg(&out));
    assert_eq!(found["results"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_trained_or_used_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("adapter");
    refuse(&mut adapt(&out, &["--targets", "q_proj,x_proj"]), 2, &["x_proj", "down_proj"]);
    refuse(&mut adapt(&out, &["--sft", "2"]), 2, &["--sft", "between 0 and 1"]);
    refuse(&mut adapt(&out, &["--learning-rate", "0"]), 2, &["--learning-rate"]);
    let mut full = layerscope();
    full.arg("adapt").arg(tiny_model()).args(["--policy", "full", "--prompts"]).arg(demo_prompts());
    refuse(
        full.arg("--out").arg(&out),
        2,
        &["no adapter can be trained for full", "speed:6+bos", "keep:0-4+bos"],
    );
    let mut generate = layerscope();
    generate.arg("generate").arg(tiny_model()).args(["--prompt", "Hi", "--adapter"]).arg(folder.path());
    refuse(&mut generate, 2, &["adapter_config.json", "cannot read"]);
}

/// Killed at ten random moments, a training comes to the same bytes as one that was left alone.
#[test]
fn a_training_that_is_killed_goes_on_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--steps", "60", "--evaluate-every", "4", "--json"];
    let whole = folder.path().join("whole");
    let start = std::time::Instant::now();
    json(&mut adapt(&whole, &arguments));
    let all = start.elapsed();
    let killed = folder.path().join("killed");
    let mut random = std::process::id();
    let (mut kills, mut runs) = (0, 0);
    while kills < 10 {
        runs += 1;
        assert!(runs < 100, "{kills} kills in {runs} runs");
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut command = adapt(&killed, &arguments);
        let command = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(all.mul_f64(f64::from(random >> 8) / f64::from(1 << 24)));
        if child.try_wait().unwrap().is_some() {
            // It was done before: once more from the start.
            std::fs::remove_dir_all(&killed).unwrap();
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let outcome = json(&mut adapt(&killed, &arguments));
    assert_eq!(outcome["steps"], 60);
    let bytes = |folder: &Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    assert!(bytes(&killed) == bytes(&whole));
}

/// Time ends a training as steps do, and what does not fit into memory goes to a file, with the same result.
#[test]
fn limits_of_time_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let timed = folder.path().join("timed");
    let outcome = json(&mut adapt(&timed, &["--minutes", "0.02", "--json"]));
    assert!(
        outcome["seconds"].as_f64().unwrap() >= 1.2 && outcome["steps"].as_u64().unwrap() > 1,
        "{outcome}"
    );
    let bytes = |folder: &Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let [in_memory, in_file] = ["memory", "file"].map(|name| folder.path().join(name));
    json(&mut adapt(&in_memory, &["--steps", "6", "--json"]));
    let output = support::run(&mut adapt(&in_file, &["--steps", "6", "--prompt-memory", "0"]));
    assert!(stderr(&output).contains("keys of 15 prompts are in a file"), "{}", stderr(&output));
    assert!(bytes(&in_memory) == bytes(&in_file));
}

/// Before the user's eyes the embedded model's cutoff falls by a layer.
#[test]
fn the_demo_teaches_a_lower_cutoff() {
    let folder = tempfile::tempdir().unwrap();
    let output = support::run(layerscope().args(["demo", "--adapt", "--out"]).arg(folder.path().join("run")));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Recommended L_cut before: 6 of 8"), "{said}");
    assert!(said.contains("Recommended L_cut after:  5 of 8"), "{said}");
    for name in ["run", "run-adapter", "run-adapted"] {
        assert!(folder.path().join(name).is_dir(), "{name}");
    }
    let run = |name: &str| folder.path().join(name);
    let mut recommend = layerscope();
    let told = json(
        recommend.arg("recommend").arg(run("run-adapted")).arg("--before").arg(run("run")).arg("--json"),
    );
    assert_eq!((told["before"]["l_cut"].as_u64(), told["l_cut"].as_u64()), (Some(6), Some(5)));

    // A report of both says what the adapter was made for, what training took and what it changed.
    let info = std::fs::read_to_string(run("run-adapter").join("layerscope.json")).unwrap();
    let training = serde_json::from_str::<Value>(&info).unwrap()["training"].take();
    assert_eq!(training["steps"], 600);
    let report = folder.path().join("report.json");
    let page = folder.path().join("report.md");
    let mut command = layerscope();
    command.arg("report").args(["run", "run-adapted"].map(run)).arg("-o").arg(&report).arg("-o").arg(&page);
    support::run(&mut command);
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let adapter = &report["runs"][1]["manifest"]["model"]["adapter"];
    assert_eq!(adapter["policy"], "speed:5+bos");
    assert_eq!(adapter["training"]["kl_after"], training["after"]["kl"]);
    assert_eq!(adapter["training"]["kl_full_depth"], training["full_depth"]["kl"]);
    let page = std::fs::read_to_string(page).unwrap();
    for words in ["Before and after at cutoff 5, by category", "600 steps on", "made for", "At full depth"] {
        assert!(page.contains(words), "{words}");
    }
}
