//! Judges policies by tasks: prompts with answers, or with choices of which one is right.
//!
//! Generated answers are compared with the right ones; of choices, the likelihood is that of the decode rows behind the prompt, so
//! that what a policy drops of the prompt is dropped for them, too.

mod harness;
mod likelihood;
mod metric;
mod results;
mod run;
mod summary;
mod task;

pub use harness::{HARNESS, Harness, HarnessRun, HarnessScores, read_harness};
pub use likelihood::{Likelihood, TokenLikelihood, likelihood_behind, likelihoods};
pub use metric::Metric;
pub use results::{EVAL, Evaluation, ItemResult, Settings};
pub use run::{Event, evaluate, split};
pub use summary::{Cell, EvaluationSummary, Row, Scored, Source, summarise};
pub use task::{Item, TaskFile, parse_tasks, read_tasks};
