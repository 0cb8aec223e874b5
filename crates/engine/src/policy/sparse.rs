//! Sparse attention in the prefill: `minference` and `flexprefill`.

mod estimate;
pub(super) mod flexprefill;
pub(super) mod minference;
mod vertical_slash;
