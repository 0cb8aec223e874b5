//! Sparse attention in the prefill: `minference` and `flexprefill`.

mod estimate;
pub(super) mod flexprefill;
mod head_patterns;
pub(super) mod minference;
mod pattern;
mod search;
mod vertical_slash;

pub use head_patterns::{FoundPattern, HeadPatterns};
pub use pattern::HeadPattern;
pub use search::search_head_patterns;
