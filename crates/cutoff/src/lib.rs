//! The exact cutoff frontier, the causal layer map, how spans of a prompt diffuse into later tokens, the cost model and the
//! recommendation.

pub mod block_schedule;
pub mod cost;
pub mod diffusion;
pub mod frontier;
pub mod recommend;
