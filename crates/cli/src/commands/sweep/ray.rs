//! Jobs as tasks of Ray, which the Python package submits.

use super::Planned;
use crate::args::SweepArguments;
use crate::interrupt::heeded;
use layerscope_engine::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering::SeqCst;

pub(super) fn run(planned: &Planned, arguments: &SweepArguments) -> Result<ExitCode> {
    let program = std::env::current_exe()
        .map_err(|error| Error::failure(format!("cannot find the layerscope program: {error}")))?;
    let python = python(&program);
    let mut command = Command::new(&python);
    command
        .args(["-m", "layerscope.sweep_ray"])
        .arg(&planned.sweep.file)
        .arg("--out")
        .arg(&planned.layout.out);
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
    super::in_a_group_of_its_own(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let status = heeded(|interrupt| {
        let mut passed_on = false;
        loop {
            if interrupt.load(SeqCst) && !passed_on {
                passed_on = true;
                super::terminate(&mut child);
            }
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(super::PAUSE);
        }
    });
    let status =
        status.map_err(|error: std::io::Error| Error::failure(format!("cannot wait for Python: {error}")))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// The Python that has the package: what `LAYERSCOPE_PYTHON` names, the one beside the program, `python3`.
fn python(program: &std::path::Path) -> PathBuf {
    let named = std::env::var_os("LAYERSCOPE_PYTHON").map(PathBuf::from);
    let beside =
        program.parent().map(|folder| folder.join(if cfg!(windows) { "python.exe" } else { "python3" }));
    named.or(beside.filter(|path| path.exists())).unwrap_or_else(|| "python3".into())
}
