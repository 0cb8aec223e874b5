//! Attention on GPUs.

pub mod prefill;
pub mod spans;
