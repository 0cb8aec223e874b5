//! What can go wrong on a GPU.

use std::fmt;

/// An error of a device, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no such device, or nothing to run it with; names the mend.
    Unavailable(String),
    /// It has not so much memory left.
    OutOfMemory {
        /// Bytes that were asked for.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// The driver or a library refused.
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
