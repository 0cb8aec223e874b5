//! The notebooks run from top to bottom with the binary, and the committed files are valid.
//!
//! Running them needs a Python (`LAYERSCOPE_PYTHON`, else `python3`) with the packages of `notebooks/requirements.txt`;
//! where there is none the tests say so and pass, unless `LAYERSCOPE_REQUIRE_JUPYTER` is set.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{run, stderr, succeed};

/// Largest notebook, bytes.
const LARGEST: usize = 400_000;

fn notebooks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../notebooks")
}

/// The committed notebooks by name.
fn committed() -> Vec<(String, String)> {
    let files = std::fs::read_dir(notebooks()).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "ipynb"));
    let mut notebooks: Vec<(String, String)> = files
        .map(|file| {
            (file.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(file).unwrap())
        })
        .collect();
    notebooks.sort();
    notebooks
}

/// A Python that can execute notebooks, or `None` with a message.
fn python() -> Option<OsString> {
    let python = std::env::var_os("LAYERSCOPE_PYTHON").unwrap_or_else(|| "python3".into());
    let imports = "import ipykernel, matplotlib, nbclient, nbformat, numpy, polars";
    let there = Command::new(&python).args(["-c", imports]).output();
    if there.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let message = format!(
        "{} cannot execute notebooks; pip install -r notebooks/requirements.txt, or set LAYERSCOPE_PYTHON",
        python.display()
    );
    assert!(std::env::var_os("LAYERSCOPE_REQUIRE_JUPYTER").is_none(), "{message}");
    eprintln!("skipped: {message}");
    None
}

fn execute(python: &OsString) -> Command {
    let mut command = Command::new(python);
    command.arg(notebooks().join("execute.py")).env("LAYERSCOPE", env!("CARGO_BIN_EXE_layerscope"));
    command.env_remove("LAYERSCOPE_RUN").env_remove("LAYERSCOPE_OTHER_RUN");
    command
}

fn code_cells(notebook: &Value) -> Vec<&Value> {
    let cells = notebook["cells"].as_array().unwrap();
    cells.iter().filter(|cell| cell["cell_type"] == "code").collect()
}

fn outputs<'a>(cells: &[&'a Value]) -> Vec<&'a Value> {
    cells.iter().flat_map(|cell| cell["outputs"].as_array().unwrap()).collect()
}

#[test]
fn every_notebook_runs_from_top_to_bottom() {
    let Some(python) = python() else { return };
    let printed = succeed(&mut execute(&python));
    for (name, _) in committed() {
        assert!(printed.contains(&format!("{name}: executed")), "{name} is not in {printed}");
    }
}

#[test]
fn an_error_fails_with_its_notebook_and_cell() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.ipynb");
    let cell = |id: &str, source: &str, outputs: Value| {
        serde_json::json!({"cell_type": "code", "id": id, "metadata": {}, "execution_count": null,
            "source": source, "outputs": outputs})
    };
    let write = |cells: &[Value]| {
        let notebook =
            serde_json::json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells});
        std::fs::write(&broken, notebook.to_string()).unwrap();
    };
    let fails = |names: &[&str]| {
        let output = run(execute(&python).arg(&broken));
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        for name in names {
            assert!(stderr(&output).contains(name), "`{name}` is not in: {}", stderr(&output));
        }
    };
    let nothing = || Value::Array(Vec::new());
    write(&[cell("good", "one = 1", nothing()), cell("bad", "one / 0", nothing())]);
    fails(&["broken.ipynb", "cell 2 (bad)", "ZeroDivisionError"]);
    // The committed output must be reproduced.
    let text = serde_json::json!([{"output_type": "stream", "name": "stdout", "text": "1"}]);
    write(&[cell("silent", "one = 1", text)]);
    fails(&["broken.ipynb", "cell 1 (silent)", "stdout", "--write"]);
}

#[test]
fn committed_notebooks_are_executed_in_order_and_without_errors() {
    let notebooks = committed();
    assert!(notebooks.len() >= 4, "{} notebooks", notebooks.len());
    for (name, text) in &notebooks {
        assert!(text.len() <= LARGEST, "{name} has {} bytes", text.len());
        let notebook: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3", "{name}");
        let cells = code_cells(&notebook);
        for (index, cell) in cells.iter().enumerate() {
            assert_eq!(cell["execution_count"], index + 1, "{name}: {}", cell["id"]);
            assert!(cell["metadata"]["execution"].is_null(), "{name}: {} has times", cell["id"]);
        }
        let outputs = outputs(&cells);
        for output in &outputs {
            assert_ne!(output["output_type"], "error", "{name}");
            assert_ne!(output["name"], "stderr", "{name}: {output}");
        }
        let images = outputs.iter().filter(|output| output["data"]["image/png"].is_string()).count();
        let least = if name.starts_with("1-") { 1 } else { 3 };
        assert!(images >= least, "{name} has {images} pictures");
    }
}

#[test]
fn committed_outputs_name_no_folder_of_a_machine() {
    for (name, text) in committed() {
        let mut notebook: Value = serde_json::from_str(&text).unwrap();
        for cell in notebook["cells"].as_array_mut().unwrap() {
            for output in cell["outputs"].as_array_mut().into_iter().flatten() {
                // Base64 may contain any text.
                if let Some(data) = output["data"].as_object_mut() {
                    data.remove("image/png");
                }
                let shown = output.to_string();
                for folder in ["/tmp/", "/home/", "/root/", "/Users/", "C:\\\\"] {
                    assert!(!shown.contains(folder), "{name}: an output names {folder}: {shown}");
                }
            }
        }
    }
}

#[test]
fn requirements_are_pinned() {
    let requirements = std::fs::read_to_string(notebooks().join("requirements.txt")).unwrap();
    for line in requirements.lines() {
        assert!(line.contains("=="), "`{line}` names no exact version");
    }
    for package in ["ipykernel", "matplotlib", "nbclient", "nbformat", "numpy", "polars"] {
        assert!(requirements.contains(&format!("{package}==")), "{package}");
    }
}
