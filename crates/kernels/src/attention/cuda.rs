//! Attention on a GPU.

pub mod spans;
