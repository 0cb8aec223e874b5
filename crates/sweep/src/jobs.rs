//! What is recorded, and where.

use crate::file::Sweep;
use layerscope_diagnostics::prompts::prompts_sha256;
use layerscope_engine::{Error, Result, write_file};
use layerscope_recording::Shard;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A model, with an adapter or without, on a prompt set: one run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Name of its run folder, MODEL@PROMPTS or MODEL+ADAPTER@PROMPTS.
    pub name: String,
    /// The model as `layerscope record` takes it.
    pub model: String,
    /// Its short name.
    pub model_name: String,
    /// The model as the file has it.
    pub model_as_written: String,
    /// The adapter.
    pub adapter: Option<PathBuf>,
    /// Its short name.
    pub adapter_name: Option<String>,
    /// The prompt file.
    pub prompts: PathBuf,
    /// Its short name.
    pub prompts_name: String,
}

/// A cell, or a share of one, which one process records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// From 1 on.
    pub number: usize,
    /// Its cell, by index.
    pub cell: usize,
    /// Its share; none where the cell is one job.
    pub shard: Option<Shard>,
    /// Name of its log and of the note that it is done.
    pub name: String,
}

/// What a finished job leaves, so that the same job is not run again.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    /// Version of layerscope that recorded.
    layerscope: String,
    /// What was recorded, and how.
    recorded: Value,
}

impl Sweep {
    /// The jobs, always in the same order.
    pub fn jobs(&self) -> Vec<Job> {
        let shards: Vec<Option<Shard>> = match self.shards {
            1 => vec![None],
            of => (1..=of).map(|number| Shard::new(number, of)).collect(),
        };
        let of_cells = self.cells.iter().enumerate().flat_map(|(cell, of)| {
            shards.iter().map(move |&shard| {
                let share = shard.map_or(String::new(), |shard| format!(".{}", shard.folder_name()));
                (cell, shard, format!("{}{share}", of.name))
            })
        });
        let numbered = of_cells.enumerate();
        numbered.map(|(index, (cell, shard, name))| Job { number: index + 1, cell, shard, name }).collect()
    }

    /// The arguments of `layerscope` that do a job.
    pub fn arguments(&self, job: &Job, layout: &Layout) -> Vec<String> {
        let cell = &self.cells[job.cell];
        let settings = &self.settings;
        let path = |path: &Path| path.display().to_string();
        let mut options = vec![
            ("--prompts", path(&cell.prompts)),
            ("--max-new-tokens", settings.max_new_tokens.to_string()),
            ("--weights", settings.weights.to_owned()),
            ("--heads", settings.heads.to_owned()),
            // They need the recommendation, which all shares together give.
            ("--failure-cases", "0".to_owned()),
        ];
        options.extend(settings.policies.iter().map(|policy| ("--policy", policy.clone())));
        options.extend(cell.adapter.iter().map(|adapter| ("--adapter", path(adapter))));
        options.extend(settings.device.iter().map(|device| ("--device", device.clone())));
        match job.shard {
            Some(shard) => {
                options.push(("--shard", shard.to_string()));
                options.push(("--out", path(&layout.shards(cell))));
            }
            None => options.push(("--out", path(&layout.run(cell)))),
        }
        let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        ["record".to_owned(), cell.model.clone()].into_iter().chain(options).collect()
    }

    /// What a job records: where any of it changes, the job is another one.
    ///
    /// # Errors
    /// [`Error::Input`] where the prompt file cannot be read.
    pub fn recorded(&self, job: &Job) -> Result<Value> {
        let cell = &self.cells[job.cell];
        let prompts = layerscope_files::read(&cell.prompts)
            .map_err(|error| Error::io("read", &cell.prompts, &error))?;
        Ok(json!({
            "model": cell.model_as_written,
            "adapter": cell.adapter_name,
            "prompts_sha256": prompts_sha256(&prompts),
            "shard": job.shard.map(|shard| shard.to_string()),
            "settings": self.settings,
        }))
    }

    /// Whether a job is done: noted as such, and its run folder is there.
    ///
    /// # Errors
    /// [`Error::Input`] where the prompt file cannot be read.
    pub fn is_done(&self, job: &Job, layout: &Layout) -> Result<bool> {
        let Ok(note) = layerscope_files::read(&layout.note(job)) else { return Ok(false) };
        // A damaged note is none: the job then finds in its run folder that nothing is left to do.
        let Ok(done) = serde_json::from_slice::<Done>(&note) else { return Ok(false) };
        Ok(done.recorded == self.recorded(job)? && layout.recording(self, job).is_dir())
    }

    /// Notes that a job is done, with what [`Self::recorded`] said before it began.
    ///
    /// # Errors
    /// [`Error`] where the note cannot be written.
    pub fn note_done(&self, job: &Job, layout: &Layout, recorded: Value) -> Result<()> {
        let done = Done { layerscope: env!("CARGO_PKG_VERSION").into(), recorded };
        let bytes = serde_json::to_vec_pretty(&done)
            .map_err(|error| Error::failure(format!("cannot write JSON: {error}")))?;
        write_file(&layout.note(job), &bytes)
    }
}

/// Where a sweep's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The folder of all.
    pub out: PathBuf,
}

impl Layout {
    /// The layout of a folder, by its absolute path: jobs may run elsewhere.
    ///
    /// # Errors
    /// [`Error`] where there is no current folder.
    pub fn new(out: &Path) -> Result<Self> {
        let out = std::path::absolute(out).map_err(|error| Error::io("find", out, &error))?;
        Ok(Self { out })
    }

    /// Makes its folders.
    ///
    /// # Errors
    /// [`Error`] where one cannot be made.
    pub fn create(&self) -> Result<()> {
        for name in ["runs", "logs", "jobs"] {
            let folder = self.out.join(name);
            std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
        }
        Ok(())
    }

    /// A cell's run folder.
    pub fn run(&self, cell: &Cell) -> PathBuf {
        self.out.join("runs").join(&cell.name)
    }

    /// The folder with the run folders of a cell's shares.
    pub fn shards(&self, cell: &Cell) -> PathBuf {
        self.out.join("shards").join(&cell.name)
    }

    /// The run folder that a job writes.
    pub fn recording(&self, sweep: &Sweep, job: &Job) -> PathBuf {
        let cell = &sweep.cells[job.cell];
        match job.shard {
            Some(shard) => self.shards(cell).join(shard.folder_name()),
            None => self.run(cell),
        }
    }

    /// What a job says.
    pub fn log(&self, job: &Job) -> PathBuf {
        self.out.join("logs").join(format!("{}.log", job.name))
    }

    /// The note that a job is done.
    fn note(&self, job: &Job) -> PathBuf {
        self.out.join("jobs").join(format!("{}.json", job.name))
    }

    /// Held while a process does a job.
    pub fn job_lock(&self, job: &Job) -> PathBuf {
        self.out.join("jobs").join(format!("{}.lock", job.name))
    }

    /// Held while a process runs jobs.
    pub fn lock(&self) -> PathBuf {
        self.out.join("jobs").join("sweep.lock")
    }

    /// The table of results.
    pub fn table(&self) -> PathBuf {
        self.out.join("sweep.parquet")
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.out.join("sweep.html")
    }

    /// The script for Slurm.
    pub fn script(&self) -> PathBuf {
        self.out.join("sweep.sbatch")
    }
}
