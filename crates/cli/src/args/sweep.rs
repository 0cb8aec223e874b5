//! The arguments of `layerscope sweep`.

use super::device;
use clap::{Args, ValueEnum};
use layerscope_engine::DeviceChoice;
use layerscope_sweep::Runner;
use std::path::PathBuf;

/// What the help ends with.
pub(crate) const EXAMPLES: &str = "Example: sweep.toml
  models = [\"small.gguf\", \"google/gemma-3-270m-it\"]
  prompts = [\"questions.jsonl\", \"chats.jsonl\"]
  policies = [\"streaming:64\"]      # besides every cutoff, which each recording gives anyway
  max-new-tokens = 32

  [[adapters]]
  path = \"adapter\"
  model = \"small.gguf\"

Examples:
  layerscope sweep sweep.toml --out sweep --dry-run
  layerscope sweep sweep.toml --out sweep --jobs 2
  layerscope sweep sweep.toml --out sweep --runner slurm

The same command goes on where it was interrupted. It ends with sweep.parquet, a row for each run, category and policy, and sweep.html,
which ranks the runs. Every key of the file is in docs/sweeps.md.";

#[derive(Debug, Args)]
pub(crate) struct SweepArguments {
    /// File that names models, prompt sets, policies and adapters; its paths are relative to its folder
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Folder for run folders, table and report; what the file says where none is given
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Who records: processes on this machine, a Slurm array, or tasks of Ray; what the file says, or else local
    #[arg(long, value_enum)]
    pub(crate) runner: Option<RunnerArgument>,
    /// Processes at once, or tasks of the Slurm array; what the file says, or else one, or one per device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// List the jobs, and run none
    #[arg(long, conflicts_with_all = ["job", "collect"])]
    pub(crate) dry_run: bool,
    /// Only do the job of this number, as a scheduler's task does
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["collect", "runner", "jobs", "json"])]
    pub(crate) job: Option<usize>,
    /// Only put together what jobs have recorded: merge shares, write table and report
    #[arg(long, conflicts_with_all = ["runner", "jobs", "device"])]
    pub(crate) collect: bool,
    /// Where jobs run, as `layerscope record` takes it; what the file says, or else auto
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub(crate) device: Option<DeviceChoice>,
    /// End, as after Ctrl-C, when the process of this id ends, which started this one
    #[arg(long, hide = true, value_name = "PID", requires = "job")]
    pub(crate) with_parent: Option<u32>,
    /// Print one JSON object: the ranking, or the jobs of --dry-run
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RunnerArgument {
    Local,
    Slurm,
    Ray,
}

impl From<RunnerArgument> for Runner {
    fn from(runner: RunnerArgument) -> Self {
        match runner {
            RunnerArgument::Local => Self::Local,
            RunnerArgument::Slurm => Self::Slurm,
            RunnerArgument::Ray => Self::Ray,
        }
    }
}
