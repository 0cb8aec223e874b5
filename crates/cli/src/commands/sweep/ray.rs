//! Jobs as calls of Ray's actors, which the Python package makes.

use super::Planned;
use crate::args::SweepArguments;
use layerscope_engine::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

pub(super) fn run(planned: &Planned, arguments: &SweepArguments) -> Result<ExitCode> {
    let program = std::env::current_exe()
        .map_err(|error| Error::failure(format!("cannot find the layerscope program: {error}")))?;
    let python = python(&program);
    let mut command = Command::new(&python);
    command.args(["-m", "layerscope.sweep_ray"]).arg(&planned.sweep.file).arg("--out").arg(&planned.layout.out);
    command.args(arguments.jobs.iter().flat_map(|jobs| ["--workers".to_owned(), jobs.to_string()]));
    command.args(arguments.device.iter().flat_map(|device| ["--device".to_owned(), device.to_string()]));
    command.args(arguments.json.then_some("--json"));
    command.env("LAYERSCOPE", &program);
    let failed = |error: std::io::Error| {
        Error::input(format!(
            "cannot start {}: {error}; install Python with the packages layerscope and ray, or name it in LAYERSCOPE_PYTHON",
            python.display()
        ))
    };
    // Ctrl-C in a terminal reaches Python, too; it passes a signal to this process on by itself only there.
    let status = command.status().map_err(failed)?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// The Python that has the package: what `LAYERSCOPE_PYTHON` names, the one beside the program, `python3`.
fn python(program: &std::path::Path) -> PathBuf {
    let named = std::env::var_os("LAYERSCOPE_PYTHON").map(PathBuf::from);
    let beside = program.parent().map(|folder| folder.join(if cfg!(windows) { "python.exe" } else { "python3" }));
    named.or(beside.filter(|path| path.exists())).unwrap_or_else(|| "python3".into())
}
