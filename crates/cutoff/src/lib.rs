//! The exact cutoff frontier, the causal layer map, the cost model and the recommendation.

pub mod frontier;
