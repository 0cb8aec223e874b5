//! Checks reports in their readers: HTML in Chromium, PDF by its tags and text.
//!
//! The checks need Chromium (`CHROMIUM`, else `/usr/bin/chromium`), Node.js with the packages of
//! `fixtures/report/package.json` (`LAYERSCOPE_NODE_MODULES`, else `fixtures/report/node_modules`), a Python
//! (`LAYERSCOPE_PYTHON`, else `python3`) with those of `fixtures/report/requirements.txt`, and poppler-utils. Where
//! something is absent the tests say so and pass, unless `LAYERSCOPE_REQUIRE_REPORT_CHECKS` is set.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{demo_prompts, fixtures, layerscope, run, stderr, succeed, tiny_model};

/// Two runs of the embedded model with different weight precision, recorded once.
fn runs() -> [&'static Path; 2] {
    static RUNS: std::sync::OnceLock<(tempfile::TempDir, [PathBuf; 2])> = std::sync::OnceLock::new();
    let (_, [demo, f32]) = RUNS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let runs = ["demo", "f32"].map(|name| folder.path().join(name));
        succeed(layerscope().arg("demo").arg("--out").arg(&runs[0]));
        let mut record = layerscope();
        record.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
        succeed(record.args(["--max-new-tokens", "8", "--weights", "f32", "--out"]).arg(&runs[1]));
        (folder, runs)
    });
    [demo, f32]
}

/// Writes reports of one run and of both as `.html` and `.pdf`; returns their paths without extensions.
fn reports(folder: &Path) -> [PathBuf; 2] {
    let [demo, f32] = runs();
    let write = |name: &str, runs: &[&Path]| {
        let report = folder.join(name);
        let mut command = layerscope();
        command.arg("report").args(runs);
        for extension in ["html", "pdf"] {
            command.arg("-o").arg(report.with_extension(extension));
        }
        succeed(&mut command);
        report
    };
    [write("single", &[demo]), write("comparison", &[demo, f32])]
}

/// Prints what is missing; fails if it is required.
fn skip(absent: &str) {
    let message = format!("{absent}; .ci/run shows how to install what the checks of reports need");
    assert!(std::env::var_os("LAYERSCOPE_REQUIRE_REPORT_CHECKS").is_none(), "{message}");
    eprintln!("skipped: {message}");
}

fn starts(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The check of HTML reports, or `None` with a message.
fn check_html() -> Option<Command> {
    let chromium = std::env::var_os("CHROMIUM").unwrap_or_else(|| "/usr/bin/chromium".into());
    let modules = std::env::var_os("LAYERSCOPE_NODE_MODULES").map(PathBuf::from);
    let modules = modules.unwrap_or_else(|| fixtures().join("report/node_modules"));
    let packages = ["axe-core", "playwright-core"].map(|package| modules.join(package));
    if !starts(Command::new(&chromium).arg("--version")) {
        skip(&format!("{} does not start", chromium.display()));
    } else if !starts(Command::new("node").arg("--version")) {
        skip("node does not start");
    } else if let Some(package) = packages.iter().find(|package| !package.exists()) {
        skip(&format!("{} is absent", package.display()));
    } else {
        let mut check = Command::new("node");
        check.arg(fixtures().join("report/check-html.mjs"));
        check.env("CHROMIUM", chromium).env("LAYERSCOPE_NODE_MODULES", modules);
        return Some(check);
    }
    None
}

/// The check of PDF reports, or `None` with a message.
fn check_pdf() -> Option<Command> {
    let python = std::env::var_os("LAYERSCOPE_PYTHON").unwrap_or_else(|| "python3".into());
    if !starts(Command::new(&python).args(["-c", "import pdfua, pikepdf"])) {
        skip(&format!("{} has no pdfua and pikepdf", python.display()));
    } else if let Some(tool) =
        ["pdftotext", "pdfimages"].iter().find(|tool| !starts(Command::new(tool).arg("-v")))
    {
        skip(&format!("{tool} does not start"));
    } else {
        let mut check = Command::new(python);
        check.arg(fixtures().join("report/check_pdf.py"));
        return Some(check);
    }
    None
}

/// Asserts that a check fails with this message.
fn finds(check: &mut Command, words: &str) {
    let output = run(check);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains(words), "`{words}` is not in: {}", stderr(&output));
}

#[test]
fn html_reports_hold_in_a_browser() {
    if check_html().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for report in reports(folder.path()) {
        eprint!("{}", succeed(check_html().unwrap().arg(report.with_extension("html"))));
    }
}

#[test]
fn a_fault_in_html_is_found() {
    let Some(mut check) = check_html() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [single, _] = reports(folder.path()).map(|report| report.with_extension("html"));
    let page = std::fs::read_to_string(&single).unwrap();
    let broken = page.replacen("</main>", "<img src=\"https://example.org/a.png\" alt=\"a\"></main>", 1);
    assert_ne!(page, broken);
    std::fs::write(&single, broken).unwrap();
    finds(check.arg(&single), "The page asks for https://example.org/a.png");
}

#[test]
fn pdf_reports_are_tagged_and_say_what_html_says() {
    if check_pdf().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for report in reports(folder.path()) {
        let page = std::fs::read_to_string(report.with_extension("html")).unwrap();
        let headline = page.split_once("<p class=\"headline\">").unwrap().1.split_once("</p>").unwrap().0;
        let pdf = report.with_extension("pdf");
        eprint!("{}", succeed(check_pdf().unwrap().arg(&pdf).arg(headline)));
        finds(check_pdf().unwrap().arg(&pdf).arg("no report says this"), "no report says this");
    }
}
