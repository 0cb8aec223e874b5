//! The figures of a run: probes that compute them, the run folder that keeps them, summaries over prompts; and needle
//! prompts, that test whether a prompt is still read.

mod curvature;
pub mod machine;
mod means;
pub mod needle;
pub mod probe;
pub mod prompts;
pub mod record;
pub mod reference_distributions;
pub mod run;
pub mod spans;
pub mod summary;
pub mod undefined;
