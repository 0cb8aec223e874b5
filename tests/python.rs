//! The Python package passes its tests with the binary.
//!
//! They need a Python (`LAYERSCOPE_PYTHON`, else `python3`) with polars; where there is none the test says so and passes, unless
//! `LAYERSCOPE_REQUIRE_JUPYTER` is set.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;

use std::process::Command;
use support::{fixtures, layerscope, run, stderr};

#[test]
fn the_package_passes_its_tests() {
    let python = std::env::var_os("LAYERSCOPE_PYTHON").unwrap_or_else(|| "python3".into());
    let has_polars = Command::new(&python).args(["-c", "import polars"]).output();
    if !has_polars.is_ok_and(|found| found.status.success()) {
        let message = format!("{} has no polars; pip install it, or set LAYERSCOPE_PYTHON", python.display());
        assert!(std::env::var_os("LAYERSCOPE_REQUIRE_JUPYTER").is_none(), "{message}");
        eprintln!("skipped: {message}");
        return;
    }
    let package = fixtures().join("../python").canonicalize().unwrap();
    let output = run(Command::new(python)
        .args(["-m", "unittest", "discover", "--pattern", "test_run.py", "--start-directory"])
        .arg(package.join("tests"))
        .env("PYTHONPATH", &package)
        .env("LAYERSCOPE", layerscope().get_program()));
    assert!(output.status.success(), "{}", stderr(&output));
}
