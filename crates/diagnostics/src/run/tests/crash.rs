//! A kill at any moment loses at most the prompt being written, and a partial run never appears complete.

use layerscope_engine::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::durable::write_synced;
use super::super::layout;
use super::super::*;
use super::sample::*;

fn resume(folder: &Path, prompts: usize) -> RunWriter {
    RunWriter::create_or_resume(folder, manifest(prompts)).expect("resume")
}

#[test]
fn what_was_being_written_is_dropped() {
    let folder = tempfile::tempdir().expect("folder");
    let run = folder.path();
    let mut writer = resume(run, 3);
    writer.append(&record(0)).expect("append");
    writer.append(&record(1)).expect("append");
    drop(writer);
    // Killed during the next prompt, and during an earlier merge.
    let unfinished = layout::unfinished_part(run, 2);
    fs::create_dir(&unfinished).expect("part");
    write_synced(&unfinished.join("prompts.parquet"), b"PAR1").expect("part");
    fs::create_dir(layout::merging(run)).expect("merging");
    write_synced(&layout::merging(run).join("layers.parquet"), b"").expect("merging");
    assert_eq!(Run::open(run).expect("open").prompt_ids(), ["q0", "q1"]);

    let mut writer = resume(run, 3);
    assert!(writer.is_done("q1") && !writer.is_done("q2"));
    writer.append(&record(2)).expect("append");
    writer.finish().expect("finish");
    let straight = tempfile::tempdir().expect("folder");
    finished(straight.path(), 3);
    assert!(tables(run) == tables(straight.path()));
    assert!(!layout::merging(run).exists() && !layout::parts(run).exists());
}

#[test]
fn a_damaged_part_is_recorded_again() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = resume(folder.path(), 2);
    writer.append(&record(0)).expect("append");
    writer.append(&record(1)).expect("append");
    drop(writer);
    let part = layout::part(folder.path(), 0);
    write_synced(&part.join("heads.parquet"), b"PAR1 nonsense").expect("damage");
    fs::remove_file(layout::part(folder.path(), 1).join("steps.parquet")).expect("remove");
    let writer = resume(folder.path(), 2);
    assert!(!writer.is_done("q0") && !writer.is_done("q1"));
    assert!(writer.manifest().prompts.done.is_empty());
}

#[test]
fn a_prompt_counts_even_if_the_kill_came_before_the_manifest() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = resume(folder.path(), 2);
    writer.fail("q0", &Error::input("out of memory")).expect("fail");
    let path = folder.path().join(MANIFEST);
    let before = fs::read(&path).expect("manifest");
    writer.append(&record(0)).expect("append");
    drop(writer);
    write_synced(&path, &before).expect("manifest");
    let run = Run::open(folder.path()).expect("open");
    assert_eq!(run.manifest().prompts.done, ["q0"]);
    assert!(run.manifest().prompts.failed.is_empty());
    assert!(resume(folder.path(), 2).is_done("q0"));
}

/// Recreates a state of `publish`: the first `moved` of tables and manifest moved, then `removed` parts
/// removed.
fn killed_while_publishing(run: &Path, moved: usize, removed: usize) {
    let mut writer = resume(run, 4);
    writer.append(&record(0)).expect("append");
    writer.append(&record(2)).expect("append");
    writer.finish().expect("first tables");
    writer.append(&record(1)).expect("append");
    writer.append(&record(3)).expect("append");
    drop(writer);
    // The new tables are from a copy of the folder that was finished without a kill.
    let copy = tempfile::tempdir().expect("folder");
    copy_folder(run, copy.path());
    resume(copy.path(), 4).finish().expect("finish");
    fs::create_dir(layout::merged(run)).expect("merged");
    let mut names: Vec<&str> = Table::ALL.iter().map(|table| table.file_name()).collect();
    names.push(MANIFEST);
    for (index, name) in names.iter().enumerate() {
        let to = if index < moved { run.join(name) } else { layout::merged(run).join(name) };
        fs::copy(copy.path().join(name), to).expect("copy");
    }
    if removed >= 1 {
        fs::remove_file(layout::part(run, 1).join("prompts.parquet")).expect("remove");
    }
    if removed >= 2 {
        fs::remove_dir_all(layout::parts(run)).expect("remove");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder");
    for entry in fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("copy");
        }
    }
}

#[test]
fn a_kill_while_publishing_is_invisible_and_mended() {
    let straight = tempfile::tempdir().expect("folder");
    finished(straight.path(), 4);
    let wanted = tables(straight.path());
    let moments = (0..=8).map(|moved| (moved, 0)).chain([(8, 1), (8, 2)]);
    for (moved, removed) in moments {
        let folder = tempfile::tempdir().expect("folder");
        let run = folder.path();
        killed_while_publishing(run, moved, removed);
        // Other programs read only the manifest in the run folder.
        let outside = fs::read_to_string(run.join(MANIFEST)).expect("manifest");
        if outside.contains("\"complete\"") {
            assert!(tables(run) == wanted, "half a run called complete, {moved} moved");
        }
        let show = |run: &Path| Run::open(run).expect("open").show().expect("show");
        let read = show(run);
        assert_eq!(read.manifest.status, Status::Complete);
        assert_eq!(read.prompts.len(), 4);
        let mut writer = resume(run, 4);
        assert!((0..4).all(|index| writer.is_done(&format!("q{index}"))));
        writer.finish().expect("finish");
        drop(writer);
        assert!(tables(run) == wanted, "{moved} moved");
        assert!(!layout::merged(run).exists() && !layout::parts(run).exists());
        assert_eq!(show(run).manifest.status, Status::Complete);
    }
}

#[test]
fn a_failed_merge_keeps_the_parts_and_recording_goes_on() {
    let folder = tempfile::tempdir().expect("folder");
    let run = folder.path();
    let mut writer = resume(run, 2);
    writer.append(&record(0)).expect("append");
    let saved = tempfile::tempdir().expect("folder");
    let table = layout::part(run, 0).join("tokens.parquet");
    fs::copy(&table, saved.path().join("t")).expect("copy");
    write_synced(&table, b"").expect("damage");
    let error = writer.finish().expect_err("damaged part");
    assert!(error.to_string().contains("tokens.parquet"), "{error}");
    assert!(!layout::merging(run).exists());
    fs::copy(saved.path().join("t"), &table).expect("copy");
    writer.append(&record(1)).expect("append");
    writer.finish().expect("finish");
    assert_eq!(Run::open(run).expect("open").prompt_ids().len(), 2);
}

const CHILD: &str = "LAYERSCOPE_TEST_RUN_FOLDER";
const CHILD_PROMPTS: usize = 18;

/// Not a test itself: the process that the next test kills.
#[test]
fn recording_child() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let mut writer = resume(Path::new(&folder), CHILD_PROMPTS);
    for index in 0..CHILD_PROMPTS {
        if !writer.is_done(&format!("q{index}")) {
            writer.append(&record(index)).expect("append");
        }
        // Merge often, so that the kill hits merges too.
        if index % 3 == 2 {
            writer.finish().expect("finish");
        }
    }
    writer.finish().expect("finish");
}

#[test]
fn kills_at_random_moments_leave_a_run_that_resumes_to_the_same_bytes() {
    let straight = tempfile::tempdir().expect("folder");
    finished(straight.path(), CHILD_PROMPTS);
    let folder = tempfile::tempdir().expect("folder");
    let name = format!("{}::recording_child", module_path!());
    let (_, name) = name.split_once("::").expect("crate");
    let mut done = 0;
    for attempt in 0_u64.. {
        let mut child = Command::new(std::env::current_exe().expect("tests"))
            .args(["--exact", name, "--test-threads=1"])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("child");
        // Waits longer each time, so that the test ends on slow disks too.
        let pause = 5 + attempt * 2 + (attempt * 37) % 11;
        std::thread::sleep(Duration::from_millis(pause));
        let ended = child.try_wait().expect("child");
        let _ = child.kill();
        child.wait().expect("child");
        if let Some(status) = ended {
            assert!(status.success(), "the child failed by itself");
            break;
        }
        if folder.path().join(MANIFEST).exists() {
            let run = Run::open(folder.path()).expect("open after a kill");
            let found = run.prompt_ids().len();
            assert!(found >= done, "{done} prompts were done, {found} are left");
            assert_eq!(run.show().expect("show").prompts.len(), found);
            done = found;
        }
    }
    assert!(tables(folder.path()) == tables(straight.path()));
}
