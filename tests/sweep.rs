//! `layerscope sweep` on the embedded model and a checkpoint of few weights.

#![allow(clippy::unwrap_used)]

mod support;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{
    TABLES, demo_prompts, json, layerscope, refuse, run, stderr, succeed, tiny_model, with_tokenizer,
};

/// A folder with a sweep of two models on the demo's prompts, in shares, and what else its file says.
fn prepared(more: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    with_tokenizer("llama2", folder.path());
    std::fs::copy(tiny_model(), folder.path().join("tiny.gguf")).unwrap();
    // Those that fit the checkpoint's context, in which a letter is a token.
    let prompts = std::fs::read_to_string(demo_prompts()).unwrap();
    let short: Vec<&str> = prompts.lines().filter(|line| line.len() < 440).collect();
    assert!(short.len() > 5, "{}", short.len());
    std::fs::write(folder.path().join("demo.jsonl"), short.join("\n")).unwrap();
    let file = folder.path().join("sweep.toml");
    let text = format!(
        "models = [\"tiny.gguf\", \"llama2\"]\nprompts = [\"demo.jsonl\"]\npolicies = [\"streaming:16\"]\nmax-new-tokens = 4\n{more}"
    );
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

fn sweep(file: &Path) -> Command {
    let mut command = layerscope();
    command.arg("sweep").arg(file).arg("--out").arg(out(file));
    command
}

fn out(file: &Path) -> PathBuf {
    file.with_file_name("out")
}

fn run_of(file: &Path, name: &str) -> PathBuf {
    out(file).join("runs").join(name)
}

/// Whether the sweep's runs are those of two processes that record all prompts.
fn assert_as_recorded(file: &Path) {
    for (model, name) in [("tiny.gguf", "tiny@demo"), ("llama2", "llama2@demo")] {
        let (whole, swept) = (file.with_file_name(format!("whole-{name}")), run_of(file, name));
        let mut record = layerscope();
        record
            .arg("record")
            .arg(file.with_file_name(model))
            .arg("--prompts")
            .arg(file.with_file_name("demo.jsonl"));
        record.args(["--max-new-tokens", "4", "--failure-cases", "0", "--policy", "streaming:16", "--out"]);
        succeed(record.arg(&whole));
        for table in TABLES {
            let bytes = |run: &Path| std::fs::read(run.join(table)).unwrap();
            assert!(bytes(&swept) == bytes(&whole), "{name}: {table} differs");
        }
        // Of the last table, all but the seconds that a prompt took.
        let shown = |run: &Path| json(layerscope().arg("show").arg(run).arg("--json"))["prompts"].clone();
        assert_eq!(shown(&swept), shown(&whole), "{name}");
    }
}

fn table(file: &Path) -> RecordBatch {
    let file = File::open(out(file).join("sweep.parquet")).unwrap();
    let batches: Vec<RecordBatch> = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect();
    arrow_select(batches)
}

/// A table this small is one batch.
fn arrow_select(mut batches: Vec<RecordBatch>) -> RecordBatch {
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<Option<String>> {
    let column = batch.column_by_name(column).unwrap().as_string::<i32>();
    column.iter().map(|text| text.map(str::to_owned)).collect()
}

#[test]
fn a_sweep_is_the_runs_of_single_processes_and_a_table_that_ranks_them() {
    let (_folder, file) = prepared("shards = 3\n");
    let listed = json(sweep(&file).args(["--dry-run", "--json"]));
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 6);
    assert!(listed["jobs"].as_array().unwrap().iter().all(|job| job["done"] == false));
    assert!(!out(&file).exists(), "a dry run writes nothing");

    let output = run(sweep(&file).args(["--jobs", "2"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(
        printed.contains("1. ") && printed.contains("2. ") && printed.contains("sweep.html"),
        "{printed}"
    );
    let said = stderr(&output);
    assert_eq!(said.lines().filter(|line| line.contains(": done in ")).count(), 6, "{said}");
    assert_as_recorded(&file);

    // A row per category and policy; the recommended ones say what `recommend` says.
    let batch = table(&file);
    let (runs, categories) = (texts(&batch, "run"), texts(&batch, "category"));
    let recommended = batch.column_by_name("recommended").unwrap().as_boolean().clone();
    let kl = batch.column_by_name("kl").unwrap().as_primitive::<arrow_array::types::Float64Type>().clone();
    let cutoffs =
        batch.column_by_name("cutoff").unwrap().as_primitive::<arrow_array::types::Int64Type>().clone();
    for name in ["tiny@demo", "llama2@demo"] {
        let of_run: Vec<usize> =
            (0..batch.num_rows()).filter(|&row| runs[row].as_deref() == Some(name)).collect();
        let chosen: Vec<usize> = of_run
            .iter()
            .copied()
            .filter(|&row| categories[row].is_none() && recommended.value(row))
            .collect();
        assert_eq!(chosen.len(), 1, "{name}");
        let said = json(layerscope().arg("recommend").arg(run_of(&file, name)).arg("--json"));
        assert_eq!(said["l_cut"], cutoffs.value(chosen[0]), "{name}");
        assert_eq!(said["kl"].as_f64().unwrap(), kl.value(chosen[0]), "{name}");
        // Two anchors at every cutoff and one policy, over all prompts and in each category.
        let layers = said["layers"].as_u64().unwrap() as usize;
        let groups = said["categories"].as_array().unwrap().len() + 1;
        assert_eq!(of_run.len(), (2 * layers + 1) * groups, "{name}");
    }
    let report = std::fs::read_to_string(out(&file).join("sweep.html")).unwrap();
    for part in ["Which model, at which cutoff", "tiny@demo", "llama2@demo", "streaming:16", "By category"] {
        assert!(report.contains(part), "{part}");
    }

    // Again, nothing runs; the table is the same.
    let before = std::fs::read(out(&file).join("sweep.parquet")).unwrap();
    let again = run(&mut sweep(&file));
    assert!(again.status.success() && !stderr(&again).contains("done in"), "{}", stderr(&again));
    assert_eq!(std::fs::read(out(&file).join("sweep.parquet")).unwrap(), before);
    let ranking = json(sweep(&file).args(["--collect", "--json"]));
    assert_eq!(ranking["ranking"][0]["prompt_set"], "demo");
    assert_eq!(ranking["ranking"][0]["ranked"].as_array().unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn killed_and_stopped_midway_it_goes_on() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let (_folder, file) = prepared("");
    let started = || {
        let child =
            sweep(&file).args(["--jobs", "2"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while !run_of(&file, "tiny@demo").join("manifest.json").exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    };
    let mut killed = started();
    killed.kill().unwrap();
    killed.wait().unwrap();
    // The processes that it had started end their prompt, and the next ones wait for that.
    let stopped = started();
    let signal = Command::new("kill").arg("-TERM").arg(stopped.id().to_string()).status().unwrap();
    let output = stopped.wait_with_output().unwrap();
    // It may have been done before the signal.
    if signal.success() && output.status.code() == Some(130) {
        assert!(stderr(&output).contains("resumes"), "{}", stderr(&output));
        assert!(!out(&file).join("sweep.parquet").exists());
    }
    succeed(&mut sweep(&file));
    assert_as_recorded(&file);
}

#[test]
fn a_job_that_fails_is_named_and_the_others_go_on() {
    let (folder, file) = prepared("");
    std::fs::write(folder.path().join("broken.gguf"), "not a model").unwrap();
    let text = std::fs::read_to_string(&file).unwrap().replace("\"llama2\"", "\"broken.gguf\"");
    std::fs::write(&file, text).unwrap();
    let output = run(&mut sweep(&file));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let log = out(&file).canonicalize().unwrap().join("logs").join("broken@demo.log");
    assert!(log.exists());
    for part in
        ["1 of 2 jobs is not done", "job 2, broken@demo: ", "broken@demo.log", "broken@demo is left out"]
    {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(texts(&table(&file), "run").iter().all(|name| name.as_deref() == Some("tiny@demo")));
    // Mended, only that job runs. A prompt that is longer than the model's context is named, and its answer is none.
    std::fs::copy(tiny_model(), folder.path().join("broken.gguf")).unwrap();
    let output = run(&mut sweep(&file));
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains(": done in ")).count(), 1, "{said}");
}

#[test]
fn a_prompt_that_cannot_be_recorded_is_named_and_counts_as_wrong() {
    let (folder, file) = prepared("");
    let long = format!(
        "{{\"id\": \"long\", \"category\": \"long\", \"prompt\": \"{}\", \"expected\": \"a\"}}",
        "ab".repeat(400)
    );
    let prompts = folder.path().join("demo.jsonl");
    let text = std::fs::read_to_string(&prompts).unwrap();
    std::fs::write(&prompts, format!("{text}\n{long}\n")).unwrap();
    let output = run(&mut sweep(&file));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "job 2, llama2@demo: a prompt could not be recorded, such as \"long\"",
        "llama2@demo: 1 prompt could not be recorded",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let output = run(sweep(&file).args(["--collect", "--json"]));
    let ranking: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ranked = ranking["ranking"][0]["ranked"].as_array().unwrap();
    assert!(
        ranked.iter().all(|candidate| candidate["row"]["expected"] == ranked[0]["row"]["expected"]),
        "{ranking}"
    );
}

#[cfg(unix)]
#[test]
fn the_script_for_slurm_does_the_jobs_and_collects() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, file) = prepared(
        "shards = 2\n[slurm]\noptions = [\"--partition=short\"]\nsetup = [\"export SET_UP=1\"]\njobs = 3\n",
    );
    // Without sbatch, the commands are printed.
    let nowhere = folder.path().join("nowhere");
    let printed = succeed(sweep(&file).args(["--runner", "slurm"]).env("PATH", &nowhere));
    assert!(printed.contains("id=$(sbatch --parsable --array=1-4%3 "), "{printed}");
    let script = out(&file).join("sweep.sbatch");
    let text = std::fs::read_to_string(&script).unwrap();
    assert!(
        text.contains("#SBATCH --partition=short\nexport SET_UP=1\n") && text.contains("#SBATCH --requeue\n"),
        "{text}"
    );
    // Each task, as Slurm would start it; the third before the others.
    let task = |number: Option<usize>| {
        let mut command = Command::new("bash");
        command.arg(&script).env_remove("SLURM_ARRAY_TASK_ID");
        command.envs(number.map(|number| ("SLURM_ARRAY_TASK_ID", number.to_string())));
        command
    };
    succeed(&mut task(Some(3)));
    let early = run(&mut task(None));
    assert_eq!(early.status.code(), Some(1), "{}", stderr(&early));
    assert!(stderr(&early).contains("3 of 4 jobs are not done"), "{}", stderr(&early));
    // What is done is not submitted again.
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let sbatch = bin.join("sbatch");
    let said = folder.path().join("said");
    std::fs::write(&sbatch, format!("#!/bin/sh\necho \"$@\" >> {}\necho '17;cluster'\n", said.display()))
        .unwrap();
    std::fs::set_permissions(&sbatch, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let printed = succeed(sweep(&file).args(["--runner", "slurm", "--jobs", "2"]).env("PATH", path));
    assert!(printed.contains("submitted 3 jobs as array 17"), "{printed}");
    let said = std::fs::read_to_string(said).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("--parsable --array=1-2,4%2 "), "{said}");
    assert!(lines[1].starts_with("--parsable --dependency=afterany:17 --output="), "{said}");
    for number in [1, 2, 4] {
        succeed(&mut task(Some(number)));
    }
    succeed(&mut task(None));
    assert_as_recorded(&file);
}

#[test]
fn what_is_wrong_is_refused_in_a_sentence() {
    let (folder, file) = prepared("");
    refuse(layerscope().arg("sweep").arg(&file), 2, &["sweep.toml", "--out FOLDER"]);
    refuse(sweep(&file).args(["--job", "3"]), 2, &["--job 3", "jobs 1 to 2"]);
    refuse(&mut sweep(&folder.path().join("nowhere.toml")), 2, &["nowhere.toml"]);
    std::fs::write(&file, "models = []\nprompts = []\n").unwrap();
    refuse(&mut sweep(&file), 2, &["sweep.toml, line 1", "models is empty"]);
    refuse(
        layerscope().arg("sweep").arg(&file).arg("--out").arg(folder.path().join("no/where")),
        2,
        &["line 1"],
    );
}
