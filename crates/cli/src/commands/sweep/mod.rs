//! `layerscope sweep`: models, adapters and prompt sets, recorded as jobs, and what they come to.

mod collect;
mod job;
mod local;
mod ray;
mod slurm;

use crate::args::SweepArguments;
use crate::{output, terminal};
use layerscope_engine::{Error, Result};
use layerscope_sweep::{Job, Layout, Runner, Sweep};
use serde_json::json;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

/// Pause between looks at processes that were started.
const PAUSE: Duration = Duration::from_millis(50);

/// A sweep, where its files are, and its jobs.
struct Planned {
    sweep: Sweep,
    layout: Layout,
    jobs: Vec<Job>,
}

/// A job that is not done, and why.
struct FailedJob {
    job: Job,
    reason: String,
}

pub(crate) fn run(arguments: &SweepArguments) -> Result<ExitCode> {
    let mut sweep = Sweep::read(&arguments.file)?;
    if let Some(device) = arguments.device {
        sweep.settings.device = Some(device.to_string());
    }
    let out = arguments.out.clone().or_else(|| sweep.out.clone()).ok_or_else(|| {
        Error::input(format!(
            "{} names no folder to write into; give --out FOLDER, or write out = \"FOLDER\" above the tables of the file",
            arguments.file.display()
        ))
    })?;
    let layout = Layout::new(&out)?;
    let jobs = sweep.jobs();
    let planned = Planned { sweep, layout, jobs };
    if arguments.dry_run {
        return dry_run(&planned, arguments.json);
    }
    output::check_folder(&planned.layout.out)?;
    planned.layout.create()?;
    if let Some(number) = arguments.job {
        return job::run(&planned, number, arguments.with_parent);
    }
    if arguments.collect {
        let failed =
            planned.undone()?.into_iter().map(|job| FailedJob { job, reason: "it is not done".into() });
        return collect::run(&planned, &failed.collect::<Vec<_>>(), arguments.json);
    }
    match arguments.runner.map(Runner::from).or(planned.sweep.runner).unwrap_or(Runner::Local) {
        Runner::Local => local::run(&planned, arguments.jobs, arguments.json),
        Runner::Slurm => slurm::run(&planned, arguments.jobs, arguments.json),
        Runner::Ray => ray::run(&planned, arguments),
    }
}

impl Planned {
    /// The jobs that are not done.
    fn undone(&self) -> Result<Vec<Job>> {
        let mut undone = vec![];
        for job in &self.jobs {
            if !self.sweep.is_done(job, &self.layout)? {
                undone.push(job.clone());
            }
        }
        Ok(undone)
    }

    /// The words of the command that does something else with this sweep.
    fn command(&self, more: &[&str]) -> Vec<String> {
        let path = |path: &std::path::Path| path.display().to_string();
        let words = ["sweep".to_owned(), path(&self.sweep.file), "--out".to_owned(), path(&self.layout.out)];
        words.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect()
    }
}

fn dry_run(planned: &Planned, json: bool) -> Result<ExitCode> {
    let Planned { sweep, layout, jobs } = planned;
    let mut listed = vec![];
    for job in jobs {
        listed.push((job, sweep.is_done(job, layout)?));
    }
    if json {
        let job = |(job, done): &(&Job, bool)| {
            json!({
                "job": job.number,
                "name": job.name,
                "run": layout.recording(sweep, job),
                "log": layout.log(job),
                "done": done,
                "command": sweep.arguments(job, layout),
            })
        };
        let jobs: Vec<_> = listed.iter().map(job).collect();
        output::json(&json!({ "out": layout.out, "jobs": jobs, "ray": sweep.ray }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |(job, done): &(&Job, bool)| {
        vec![job.name.clone(), job.number.to_string(), if *done { "done" } else { "to do" }.to_owned()]
    };
    terminal::print(&output::table(&["name", "job", ""], listed.iter().map(row).collect()))?;
    let undone = listed.iter().filter(|(_, done)| !done).count();
    terminal::say(&format!("{undone} of {} jobs are to do; without --dry-run they run", jobs.len()));
    Ok(ExitCode::SUCCESS)
}

/// Ctrl-C in a terminal reaches this process alone, which passes it on once.
fn in_a_group_of_its_own(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Asks a process to stop and keep what is done.
#[cfg(unix)]
fn terminate(child: &mut Child) {
    if let Ok(id) = i32::try_from(child.id()) {
        // SAFETY: the process is this one's child and was not waited for, so the id is its own.
        unsafe { libc::kill(id, libc::SIGTERM) };
    }
}

/// Ctrl-C in a console reaches the processes by itself.
#[cfg(not(unix))]
fn terminate(_: &mut Child) {}
