//! The exact cutoff frontier, the causal layer map, how spans of a prompt diffuse into later tokens, the cost model, what it says beside measurements, the recommendation,
//! and the prompts on which it fails most.

pub mod bench;
pub mod block_schedule;
pub mod compare;
pub mod cost;
pub mod diffusion;
pub mod failure_cases;
pub mod frontier;
pub mod recommend;
pub mod recorded_with;
pub mod recording;
