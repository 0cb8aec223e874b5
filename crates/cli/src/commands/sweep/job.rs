//! One job of a sweep, in this process: what every runner starts.

use super::Planned;
use crate::args::{Arguments, Command};
use crate::commands::record;
use crate::terminal;
use clap::Parser;
use layerscope_engine::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(planned: &Planned, number: usize, with_parent: Option<u32>) -> Result<ExitCode> {
    let Planned { sweep, layout, jobs } = planned;
    let job = number.checked_sub(1).and_then(|index| jobs.get(index)).ok_or_else(|| {
        Error::input(format!("--job {number}: {} has jobs 1 to {}", sweep.file.display(), jobs.len()))
    })?;
    with_parent.map_or(Ok(()), end_with)?;
    let _lock = lock(&layout.job_lock(job))?;
    if sweep.is_done(job, layout)? {
        terminal::say(&format!("layerscope: job {number}, {}, is done already", job.name));
        return Ok(ExitCode::SUCCESS);
    }
    let words = std::iter::once("layerscope".to_owned()).chain(sweep.arguments(job, layout));
    let parsed = Arguments::try_parse_from(words).map_err(|error| Error::input(error.to_string()))?;
    let Command::Record(arguments) = parsed.command else {
        return Err(Error::failure("internal error (please report it): a job that does not record"));
    };
    if job.shard.is_some() {
        let shards = layout.shards(&sweep.cells[job.cell]);
        std::fs::create_dir_all(&shards).map_err(|error| Error::io("create", &shards, &error))?;
    }
    let recorded = sweep.recorded(job)?;
    let code = record::run(&arguments, false)?;
    if code == ExitCode::SUCCESS {
        sweep.note_done(job, layout, recorded)?;
    }
    Ok(code)
}

/// Waits for another process that does the job: one whose starter was killed may still end a prompt.
fn lock(path: &Path) -> Result<File> {
    let file = layerscope_files::create(path).map_err(|error| Error::io("create", path, &error))?;
    // Some network file systems have no locks; jobs run there without.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        terminal::say("layerscope: waiting for another process that does this job");
        let _ = file.lock();
    }
    Ok(file)
}

/// Asks the system for SIGTERM, which keeps what is done, once the process ends that started this one.
#[cfg(target_os = "linux")]
fn end_with(parent: u32) -> Result<()> {
    // SAFETY: sets a number of this process, and reads another.
    let present = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::getppid()
    };
    // It may have ended before that.
    if u32::try_from(present) == Ok(parent) { Ok(()) } else { Err(Error::Interrupted) }
}

/// Elsewhere a job goes on alone, and a sweep that is started again waits for it.
#[cfg(not(target_os = "linux"))]
fn end_with(_: u32) -> Result<()> {
    Ok(())
}
