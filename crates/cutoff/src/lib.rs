//! The exact cutoff frontier, attention knockout, how spans of a prompt diffuse into later tokens, activation patching, the cost
//! model and the recommendation.

mod answer;
pub mod answers;
pub mod block_schedule;
pub mod budget;
mod copies;
pub mod cost;
pub mod diffusion;
pub mod frontier;
mod kept;
pub mod patching;
pub mod recommend;
pub mod search;

pub use answer::Answer;

/// Largest mean KL from the full model that is accepted unless told otherwise, nats per token.
pub const DEFAULT_TOLERANCE: f64 = 0.1;

/// Least share of the full model's answers that a cutoff must keep unless told otherwise.
pub const DEFAULT_KEPT: f64 = 0.95;

/// Failure cases, the prompts that a cutoff changes most, that are continued and shown unless told otherwise.
pub const DEFAULT_FAILURE_CASES: usize = 5;
