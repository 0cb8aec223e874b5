//! Jobs as processes on this machine.

use super::{FailedJob, Planned, collect};
use crate::interrupt::heeded;
use crate::progress::SweepBar;
use crate::terminal;
use layerscope_diagnostics::machine::Machine;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Interrupt, Result};
use layerscope_sweep::Job;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Last bytes of a log that are searched for its error.
const END_OF_LOG: u64 = 16 << 10;

pub(super) fn run(planned: &Planned, jobs: Option<u16>, json: bool) -> Result<ExitCode> {
    let _lock = only_one(planned)?;
    let undone = planned.undone()?;
    let local = &planned.sweep.local;
    let said = jobs.or(local.jobs).map(usize::from);
    let at_once = said.unwrap_or(local.devices.len()).clamp(1, undone.len().max(1));
    // The number that this process has, which --threads may say.
    let threads = local.threads.map_or((Machine::this().threads / at_once).max(1), usize::from);
    let program = std::env::current_exe()
        .map_err(|error| Error::failure(format!("cannot find the layerscope program: {error}")))?;
    let mut pool = Pool {
        planned,
        program,
        threads,
        slots: (0..at_once).map(|_| None).collect(),
        bar: SweepBar::new(planned.jobs.len(), planned.jobs.len() - undone.len()),
        failed: vec![],
    };
    let stopped = heeded(|interrupt| pool.run(undone.into(), interrupt));
    pool.bar.finish();
    if stopped? {
        terminal::say(&format!(
            "layerscope: interrupted; the same command resumes {}",
            planned.layout.out.display()
        ));
        return Ok(ExitCode::from(Error::Interrupted.exit_code()));
    }
    collect::run(planned, &pool.failed, json)
}

/// Refuses a second sweep in the same folder, which would run the same jobs.
fn only_one(planned: &Planned) -> Result<File> {
    let path = planned.layout.lock();
    let file = layerscope_files::create(&path).map_err(|error| Error::io("create", &path, &error))?;
    match file.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::input(format!(
            "another sweep is running in {}; wait for it, or choose another --out",
            planned.layout.out.display()
        ))),
        // Some network file systems have no locks.
        _ => Ok(file),
    }
}

/// The processes.
struct Pool<'a> {
    planned: &'a Planned,
    program: PathBuf,
    threads: usize,
    slots: Vec<Option<Running>>,
    bar: SweepBar,
    failed: Vec<FailedJob>,
}

struct Running {
    job: Job,
    child: Child,
    started: Instant,
}

impl Pool<'_> {
    /// Runs jobs until none is left, and says whether it was stopped before.
    fn run(&mut self, mut waiting: VecDeque<Job>, interrupt: &Interrupt) -> Result<bool> {
        let mut stopping = false;
        loop {
            if !stopping && interrupt.load(SeqCst) {
                stopping = true;
                self.bar.say("layerscope: stopping; every process ends its prompt first");
                self.slots.iter_mut().flatten().for_each(|running| super::terminate(&mut running.child));
            }
            for slot in 0..self.slots.len() {
                if let Some(running) = self.slots[slot].take_if(|running| has_ended(&mut running.child)) {
                    self.ended(running, stopping)?;
                }
                if self.slots[slot].is_none() && !stopping {
                    self.slots[slot] = waiting.pop_front().map(|job| self.start(job, slot)).transpose()?;
                }
            }
            if self.slots.iter().all(Option::is_none) {
                return Ok(stopping);
            }
            std::thread::sleep(super::PAUSE);
        }
    }

    fn start(&mut self, job: Job, slot: usize) -> Result<Running> {
        let Planned { sweep, layout, .. } = self.planned;
        let path = layout.log(&job);
        let log = layerscope_files::create(&path).map_err(|error| Error::io("create", &path, &error))?;
        let second = log.try_clone().map_err(|error| Error::io("create", &path, &error))?;
        let number = job.number.to_string();
        let mut command = Command::new(&self.program);
        command.args(["--threads", &self.threads.to_string()]);
        let parent = std::process::id().to_string();
        command.args(self.planned.command(&["--job", &number, "--with-parent", &parent]));
        let devices = &sweep.local.devices;
        let device = devices.get(slot % devices.len().max(1)).or(sweep.settings.device.as_ref());
        command.args(device.into_iter().flat_map(|device| ["--device", device]));
        command.stdin(Stdio::null()).stdout(log).stderr(second);
        super::in_a_group_of_its_own(&mut command);
        let child = command
            .spawn()
            .map_err(|error| Error::failure(format!("cannot start {}: {error}", self.program.display())))?;
        self.bar.started(&job.name);
        Ok(Running { job, child, started: Instant::now() })
    }

    fn ended(&mut self, running: Running, stopping: bool) -> Result<()> {
        let Running { job, mut child, started } = running;
        let status =
            child.wait().map_err(|error| Error::failure(format!("cannot wait for a process: {error}")))?;
        let Planned { sweep, layout, jobs } = self.planned;
        let which = format!("job {} of {}, {}", job.number, jobs.len(), job.name);
        if status.success() && sweep.is_done(&job, layout)? {
            self.bar.done(&format!("layerscope: {which}: done in {:.0} s", started.elapsed().as_secs_f64()));
        } else if !stopping {
            let failed = failed_prompts(&layout.recording(sweep, &job));
            let why = failed.unwrap_or_else(|| why(status, &layout.log(&job)));
            let reason = format!("{why}; its log is {}", layout.log(&job).display());
            self.bar.done(&format!("layerscope: {which}: failed: {reason}"));
            self.failed.push(FailedJob { job, reason });
        }
        Ok(())
    }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// The prompts that a job could not record, where it recorded all others.
fn failed_prompts(folder: &Path) -> Option<String> {
    let run = Run::open(folder).ok()?;
    let failed = &run.manifest().prompts.failed;
    let first = failed.first()?;
    let others = match failed.len() {
        1 => "a prompt".to_owned(),
        count => format!("{count} prompts"),
    };
    Some(format!("{others} could not be recorded, such as {:?}: {}", first.id, first.reason))
}

/// Why a process failed: the last error in its log, or how it ended.
fn why(status: ExitStatus, log: &Path) -> String {
    let said = end_of(log).unwrap_or_default();
    let error = said.lines().rev().find_map(|line| {
        line.strip_prefix("layerscope: ").or_else(|| line.strip_prefix("error: ")).map(str::to_owned)
    });
    let ended = match status.code() {
        Some(code) => format!("it ended with exit code {code}"),
        None => format!("it was ended ({status})"),
    };
    match error.filter(|_| status.code().is_some()) {
        Some(error) => error,
        None => ended,
    }
}

/// The last lines of a log.
fn end_of(path: &Path) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = layerscope_files::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END_OF_LOG))).ok()?;
    let mut bytes = vec![];
    file.take(END_OF_LOG).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
