//! Attention on GPUs.

pub mod prefill;
