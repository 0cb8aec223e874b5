//! What a report of a run takes. By itself in its process: a child begins with its parent's peak memory.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::tiny_model;

/// Peak resident memory of a command that succeeds, bytes.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn peak(command: &mut Command) -> u64 {
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let mut status = 0;
    let id = i32::try_from(child.id()).unwrap();
    // SAFETY: both places live through the call, and the child is ours and not waited for otherwise.
    let waited = unsafe { libc::wait4(id, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (id, 0), "{command:?}");
    // SAFETY: zeroed is valid for it, and wait4 has filled it in.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_maxrss).unwrap() * 1024
}

/// Bytes of the files in a run folder.
fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

#[test]
fn a_report_takes_at_most_three_times_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let record = |name: &str, prompts: usize| {
        let file = folder.path().join(format!("{name}.jsonl"));
        let prompt = |index: usize| {
            let id = format!("prompt-{index}");
            let text = "the door of ada is red . the lamp of bob is blue . ".repeat(2 + index % 8);
            serde_json::json!({"id": id, "category": format!("c{}", index % 5), "prompt": text}).to_string()
        };
        std::fs::write(&file, (0..prompts).map(prompt).collect::<Vec<_>>().join("\n")).unwrap();
        let out = folder.path().join(name);
        let mut command = support::layerscope();
        command.arg("record").arg(tiny_model()).arg("--prompts").arg(file).arg("--out").arg(&out);
        support::succeed(command.args(["--max-new-tokens", "8", "--failure-cases", "0"]));
        out
    };
    // A report of any run has the program, its fonts and at most 200 rows of a PDF's table to hold.
    let (small, large) = (record("small", 200), record("large", 400));
    let more = size(&large) - size(&small);
    for format in ["json", "md", "html", "pdf"] {
        let report = |run: &Path| {
            let mut command = support::layerscope();
            let out = folder.path().join(format!("report.{format}"));
            peak(command.arg("report").arg(run).arg("-o").arg(out))
        };
        let (base, all) = (report(&small), report(&large));
        let rise = all.saturating_sub(base);
        assert!(rise <= 3 * more, "{format}: {rise} bytes more for a run with {more} bytes more");
    }
}
