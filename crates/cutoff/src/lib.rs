//! The exact cutoff frontier, the causal layer map, the cost model and the recommendation.

pub mod cost;
pub mod frontier;
pub mod recommend;
pub mod recording;
