//! Sweeps: models, with adapters or without, on prompt sets under policies.
//!
//! A [`Sweep`] is read from `sweep.toml`. Each model, adapter and prompt set is a [`Cell`], which is one run folder; its full
//! recording gives every cutoff, and the policies are recorded beside it. A [`Job`] records a cell or a share of one. Finished cells
//! become [`Row`]s, one for each category and policy, which [`to_parquet`] writes and [`rank`] ranks.

mod file;
mod jobs;
mod names;
mod ranking;
mod results;
mod table;

pub use file::{Judge, Local, Ray, Runner, Settings, Slurm, Sweep};
pub use jobs::{Cell, Job, Layout};
pub use ranking::{Candidate, Workload, rank};
pub use results::{Kind, Results, Row, rows_of_run};
pub use table::to_parquet;
