//! A recording that is killed at random moments resumes to the same run as without a kill.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{demo_prompts, json, layerscope, stderr, succeed, tiny_model};

const TABLES: [&str; 6] = ["layers", "heads", "steps", "tokens", "frontier", "knockout"];

fn record(out: &Path) -> Command {
    let mut command = layerscope();
    command.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
    command.args(["--max-new-tokens", "16", "--out"]).arg(out);
    command
}

fn assert_same_run(a: &Path, b: &Path) {
    for table in TABLES {
        let file = format!("{table}.parquet");
        assert_eq!(std::fs::read(a.join(&file)).unwrap(), std::fs::read(b.join(&file)).unwrap(), "{file}");
    }
    let prompts = |run: &Path| json(layerscope().arg("show").arg(run).arg("--json"))["prompts"].clone();
    assert_eq!(prompts(a), prompts(b));
}

#[test]
fn killed_twenty_times_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (calm, stormy) = (folder.path().join("calm"), folder.path().join("stormy"));
    let start = Instant::now();
    succeed(&mut record(&calm));
    let whole = start.elapsed();

    // Twenty moments spread over start, recording and finish; seeded by the clock, because equality holds for
    // any.
    let mut state =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let mut kills = 0;
    let mut attempts = 0;
    while kills < 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (state >> 40) as f64 / (1u64 << 24) as f64;
        let mut child = record(&stormy).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * share * 0.4));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            kills += 1;
            child.wait().unwrap();
        } else {
            // Finished before the kill: checks the run, and starts again.
            assert_same_run(&calm, &stormy);
            std::fs::remove_dir_all(&stormy).unwrap();
        }
        attempts += 1;
        assert!(attempts < 400, "the machine is too fast or too slow for this test: {kills} kills");
    }
    succeed(&mut record(&stormy));
    assert_same_run(&calm, &stormy);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_done_and_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let child = record(&out).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !out.join("manifest.json").exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").arg("-INT").arg(child.id().to_string()).status().unwrap();
    let output = child.wait_with_output().unwrap();
    if killed.success() && output.status.code() == Some(130) {
        assert!(stderr(&output).contains("resumes"), "{}", stderr(&output));
    }
    succeed(&mut record(&out));
    let calm = folder.path().join("calm");
    succeed(&mut record(&calm));
    assert_same_run(&calm, &out);
}
