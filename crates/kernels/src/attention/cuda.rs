//! Attention on GPUs.

pub mod prefill;
pub mod reads;
pub mod spans;
