//! The Python package passes its tests with the binary.
//!
//! They need a Python (`LAYERSCOPE_PYTHON`, else `python3`) with what `passes` is told; where that is missing the test says so and
//! passes, unless the environment requires it.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;

use std::process::Command;
use support::{fixtures, layerscope, run, stderr};

#[test]
fn the_package_passes_its_tests() {
    passes("test_run.py", "polars", "LAYERSCOPE_REQUIRE_JUPYTER");
}

#[test]
fn a_sweep_runs_on_ray() {
    passes("test_sweep_ray.py", "ray", "LAYERSCOPE_REQUIRE_RAY");
}

#[test]
fn run_folders_go_to_an_object_store_and_back() {
    passes("test_store.py", "moto.server, obstore, polars", "LAYERSCOPE_REQUIRE_STORE");
}

/// Runs a file of tests that needs Python modules; they are required where the environment has the variable `required`.
fn passes(tests: &str, module: &str, required: &str) {
    let python = std::env::var_os("LAYERSCOPE_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        let message =
            format!("{} has no {module}; pip install it, or set LAYERSCOPE_PYTHON", python.display());
        assert!(std::env::var_os(required).is_none(), "{message}");
        eprintln!("skipped: {message}");
        return;
    }
    let package = fixtures().join("../python").canonicalize().unwrap();
    let output = run(Command::new(python)
        .args(["-m", "unittest", "discover", "--pattern", tests, "--start-directory"])
        .arg(package.join("tests"))
        .env("PYTHONPATH", &package)
        .env("LAYERSCOPE", layerscope().get_program()));
    assert!(output.status.success(), "{}", stderr(&output));
}
