//! Probes that measure a prompt, the run folder that stores the measurements, summaries over prompts, and
//! needle prompts for retrieval tests.

mod curvature;
pub mod machine;
mod means;
pub mod needle;
pub mod patching;
pub mod policies;
pub mod probe;
pub mod prompts;
pub mod ranges;
pub mod reads;
pub mod record;
pub mod reference_distributions;
pub mod run;
pub mod spans;
pub mod summary;
pub mod table;
pub mod undefined;
