//! The figures of a run: probes that compute them, the run folder that keeps them, summaries over prompts.

mod curvature;
pub mod probe;
pub mod prompts;
pub mod record;
pub mod run;
pub mod summary;
