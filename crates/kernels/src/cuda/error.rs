//! Errors of GPUs.

use std::fmt;

/// An error of a device, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such device, or no driver for it; the sentence says what to do.
    Unavailable(String),
    /// The device has less free memory than was requested.
    OutOfMemory {
        /// Bytes that were requested.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// The driver or a library failed.
    Failure(String),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(sentence) | Self::Failure(sentence) => f.write_str(sentence),
            Self::OutOfMemory { wanted, free } => write!(
                f,
                "the GPU has {} MiB free, but {} MiB are needed at once: take a shorter prompt, a policy that keeps less, or \
                 a smaller model, or free memory that others hold",
                free >> 20,
                wanted.div_ceil(1 << 20)
            ),
        }
    }
}

impl std::error::Error for DeviceError {}
