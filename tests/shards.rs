//! `layerscope record --shard` and `layerscope merge-runs` on the embedded model.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use support::{TABLES, demo_prompts, json, layerscope, refuse, run, stderr, succeed, tiny_model};

fn record(out: &Path) -> Command {
    let mut command = layerscope();
    command.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts()).arg("--out").arg(out);
    command.args(["--max-new-tokens", "4", "--failure-cases", "0", "--policy", "streaming:16"]);
    command
}

fn merge(from: &[&Path], out: &Path) -> Command {
    let mut command = layerscope();
    command.arg("merge-runs").args(from).arg("--out").arg(out);
    command
}

fn ids(run: &Path) -> Vec<String> {
    let shown = json(layerscope().arg("show").arg(run).arg("--json"));
    let prompts = shown["prompts"].as_array().unwrap();
    prompts.iter().map(|prompt| prompt["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn shards_put_together_are_the_run_of_one_machine() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, shards, merged] = ["whole", "shards", "merged"].map(|name| folder.path().join(name));
    succeed(&mut record(&whole));
    // By number, by a Slurm array's variables, and by rank.
    succeed(record(&shards).args(["--shard", "1/3"]));
    let first = shards.join("shard-1-of-3");
    // Two shards are missing.
    let early = merge(&[&shards], &merged).output().unwrap();
    assert_eq!(early.status.code(), Some(2));
    assert!(stderr(&early).contains("missing"), "{}", stderr(&early));
    let of_first = ids(&first);
    assert_eq!(ids(&merged), of_first);
    succeed(record(&shards).args(["--shard", "auto"]).envs([
        ("SLURM_ARRAY_TASK_ID", "5"),
        ("SLURM_ARRAY_TASK_MIN", "4"),
        ("SLURM_ARRAY_TASK_COUNT", "3"),
    ]));
    let mut by_rank = record(&shards);
    by_rank.args(["--shard", "auto"]).envs([("RANK", "2"), ("WORLD_SIZE", "3")]);
    succeed(&mut by_rank);
    // Again does nothing.
    succeed(&mut by_rank);
    let found = json(merge(&[&shards], &merged).arg("--json"));
    assert_eq!(found["missing"].as_array().unwrap().len(), 0);
    assert_eq!(found["doubled"].as_array().unwrap().len(), 0);
    assert_eq!(found["taken"].as_u64().unwrap() as usize, ids(&whole).len() - of_first.len());
    // Of these tables one has the seconds that a prompt took; its figures are those that are shown.
    let shown = |run: &Path| json(layerscope().arg("show").arg(run).arg("--json"))["prompts"].clone();
    assert_eq!(shown(&merged), shown(&whole));
    for table in TABLES {
        let bytes = |run: &Path| std::fs::read(run.join(table)).unwrap();
        assert!(bytes(&merged) == bytes(&whole), "{table} differs");
    }
    let manifest = |run: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap()
    };
    let (one, other) = (manifest(&merged), manifest(&whole));
    for key in ["status", "model", "weights", "settings", "prompts", "native_kl"] {
        assert_eq!(one[key], other[key], "{key}");
    }
    // Merged again: nothing is new. A run that has all counts behind the others, and its prompts are named.
    assert_eq!(json(merge(&[&shards], &merged).arg("--json"))["taken"], 0);
    let again = merge(&[&first, &whole], &merged).output().unwrap();
    assert!(again.status.success());
    for id in &of_first {
        assert!(stderr(&again).contains(&format!("{id:?} is in")), "{}", stderr(&again));
    }
    assert_eq!(manifest(&merged)["prompts"], other["prompts"]);
}

#[test]
fn runs_of_other_settings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other, merged] = ["one", "other", "merged"].map(|name| folder.path().join(name));
    succeed(record(&one).args(["--shard", "1/4"]));
    succeed(record(&other).args(["--shard", "2/4", "--weights", "f32"]));
    refuse(&mut merge(&[&one, &other], &merged), 2, &["shard-2-of-4", "f32"]);
    let run_of_one = one.join("shard-1-of-4");
    refuse(&mut merge(&[&one], &run_of_one), 2, &["--out", "one of the runs"]);
    refuse(&mut merge(&[folder.path()], &merged), 2, &["holds no run"]);
    refuse(&mut merge(&[&folder.path().join("nowhere")], &merged), 2, &["nowhere"]);
    let mut auto = record(&one);
    for name in [
        "SLURM_ARRAY_TASK_ID",
        "SKYPILOT_NODE_RANK",
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "RANK",
    ] {
        auto.env_remove(name);
    }
    auto.args(["--shard", "auto"]);
    let mut beyond = record(&one);
    beyond.args(["--shard", "5/4"]);
    for (mut command, said) in [(auto, "no scheduler's task"), (beyond, "NUMBER/OF")] {
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    let output = run(&mut merge(&[&one], &merged));
    assert_eq!(output.status.code(), Some(2), "three shards are missing");
}
