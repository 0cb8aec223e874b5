//! The second run and the comparison.

use super::Viewer;
use crate::data::{RunData, RunPair, Task};
use crate::state::View;
use layerscope_cutoff::recommend::Options;
use layerscope_diagnostics::run::MANIFEST;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The second run.
#[derive(Default)]
pub(super) struct Second {
    opening: Option<(PathBuf, Task<RunData>)>,
    pub(super) run: Option<Arc<RunData>>,
    comparing: Option<Task<Compared>>,
    pub(super) compared: Option<Arc<Compared>>,
}

/// A comparison, or why there is none, with its settings.
pub(super) struct Compared {
    options: Options,
    pub(super) outcome: std::result::Result<RunPair, String>,
}

impl Second {
    /// Whether it is being read or compared.
    pub(super) fn is_waiting(&self) -> bool {
        self.opening.is_some() || self.comparing.is_some()
    }

    /// Gives up a run that is being read.
    pub(super) fn stop_opening(&mut self) {
        self.opening = None;
    }

    /// Clears the comparison, because one of the runs has changed.
    pub(super) fn forget_comparison(&mut self) {
        (self.comparing, self.compared) = (None, None);
    }
}

impl Viewer {
    /// Opens a run folder as the second run.
    pub fn compare_with(&mut self, path: &Path) {
        let is_manifest = path.file_name().is_some_and(|name| name == MANIFEST);
        let folder = if is_manifest { path.parent().unwrap_or(Path::new(".")) } else { path };
        if self.run.is_none() {
            return self.open(folder);
        }
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => return self.say_error(error.to_string()),
        };
        let (ctx, read) = (self.ctx.clone(), folder.to_owned());
        let task = Task::run(move || ctx.request_repaint(), async move { files.run(&read).await });
        self.second.opening = Some((folder.to_owned(), task));
    }

    /// The second run.
    pub fn second_run(&self) -> Option<&RunData> {
        self.second.run.as_deref()
    }

    pub(super) fn close_second_run(&mut self) {
        self.second = Second::default();
    }

    pub(super) fn take_second_run(&mut self) {
        let Some((folder, task)) = &self.second.opening else { return };
        let Some(read) = task.poll() else { return };
        let folder = folder.clone();
        self.second.opening = None;
        match read {
            Ok(run) if run.prompts.is_empty() => {
                self.say_error(format!("no prompt of {} is recorded; choose another run", folder.display()));
            }
            Ok(run) => {
                self.second.run = Some(Arc::new(run));
                self.second.forget_comparison();
                self.state.view = View::Compare;
                self.remember(&folder);
            }
            Err(error) => self.say_error(error.to_string()),
        }
    }

    /// Compares the runs at the current tolerance and anchor, unless this is done.
    pub(super) fn take_comparison(&mut self) {
        if let Some(compared) = self.second.comparing.as_ref().and_then(Task::poll) {
            self.second.comparing = None;
            self.second.compared = compared.ok().map(Arc::new);
        }
        let (Some(first), Some(second)) = (self.run.clone(), self.second.run.clone()) else { return };
        let options = self.state.options();
        let asked = self.second.compared.as_ref().is_some_and(|known| known.options == options);
        if !asked && self.second.comparing.is_none() {
            let ctx = self.ctx.clone();
            let work = move || {
                let outcome = RunPair::new(&first, &second, options);
                Ok(Compared { options, outcome: outcome.map_err(|error| error.to_string()) })
            };
            self.second.comparing = Some(Task::start(move || ctx.request_repaint(), work));
        }
    }
}
