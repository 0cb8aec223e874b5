//! The exact cutoff frontier, the causal layer map, the cost model, what it says beside measurements, the recommendation,
//! and the prompts on which it fails most.

pub mod bench;
pub mod block_schedule;
pub mod compare;
pub mod cost;
pub mod failure_cases;
pub mod frontier;
pub mod recommend;
pub mod recording;
