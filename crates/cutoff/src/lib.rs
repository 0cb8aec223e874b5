//! The exact cutoff frontier, the causal layer map, the cost model, what it says beside measurements, and the recommendation.

pub mod bench;
pub mod compare;
pub mod cost;
pub mod frontier;
pub mod recommend;
pub mod recording;
