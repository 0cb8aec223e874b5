//! Time and peak memory of a report on 100 prompts of 8,192 tokens, 32 layers of 32 heads and 32 decode
//! steps.
//!
//! The run is made up. Prints seconds and the peak of resident memory for each format: `cargo bench -p layerscope-report`

#![allow(clippy::print_stdout)]

use layerscope_report::{Report, ReportFormat, render};
use std::time::Instant;

#[allow(dead_code)]
#[path = "../../../app/tests/support/synthetic.rs"]
mod synthetic;

fn main() {
    // `cargo test` only checks that it builds and starts.
    let quick = !std::env::args().any(|argument| argument == "--bench");
    let (prompts, positions) = if quick { (3, 256) } else { (100, 8_192) };
    let sizes = synthetic::Sizes { layers: 32, heads: 32, steps: 32, positions, prompts };
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let long = folder.path().join("long");
    synthetic::write(&run, sizes, true);
    if !quick {
        synthetic::write(
            &long,
            synthetic::Sizes { layers: 64, positions: 131_072, prompts: 1, ..sizes },
            true,
        );
    }
    for run in [&run, &long].into_iter().filter(|run| run.exists()) {
        for format in ReportFormat::compiled_in() {
            reset_peak();
            let start = Instant::now();
            let report = Report::read(std::slice::from_ref(run), Default::default()).expect("a report");
            let read = start.elapsed();
            let out = folder.path().join(format!("report.{}", format.extension()));
            let files = render(&report, &out).expect("files");
            let bytes: usize = files.iter().map(|file| file.bytes.len()).sum();
            println!(
                "{} {}: {:.2} s, of them reading {:.2} s; {:.1} MB written; {} at the peak",
                run.file_name().unwrap_or_default().display(),
                format.name(),
                start.elapsed().as_secs_f64(),
                read.as_secs_f64(),
                bytes as f64 / 1e6,
                peak()
            );
        }
    }
}

/// Resets the memory peak, if the system supports it.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Peak resident memory.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kilobytes.map_or("unknown".into(), |kilobytes| format!("{:.0} MB", kilobytes * 1.024 / 1e3))
}
