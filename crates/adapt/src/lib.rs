//! Teaches a model a cutoff: trains a low-rank adapter so that the model under a policy says what it says at full depth.
//!
//! With an adapter on decode rows the prompt's keys and values are the base model's: they are computed once for each prompt, and only
//! the decode rows run forward and backward.

mod checkpoint;
mod continuations;
mod data;
mod loss;
mod optimizer;
mod settings;
mod spill;
mod train;
mod trainer;

pub use checkpoint::Measured;
pub use optimizer::AdamW;
pub use settings::{Continued, Settings};
pub use train::{Event, Outcome, adapt};
