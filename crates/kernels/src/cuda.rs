//! GPUs: memory, kernel launches, products, graphs.
//!
//! [`Device`] is an NVIDIA GPU through its driver (feature `cuda`), or its emulation on the CPU (feature `cuda-emulation`),
//! which runs the same kernels from the same sources. Without either feature, none can be opened, and everything else compiles.
//!
//! Work is queued in order, on one stream; reading waits for it.

mod backend;
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda-emulation")]
mod emulator;
mod error;
#[cfg(all(test, feature = "cuda-emulation"))]
pub(crate) mod fixtures;
mod memory;
mod packs;
pub mod store;
#[cfg(feature = "cuda")]
mod wheels;

pub use backend::{DeviceInformation, Element, Gemm};
pub use device::{Device, Graph};
pub use error::DeviceError;
pub use memory::{Buffer, Numbers, Pool};
pub(crate) use packs::{Packs, blocks_of_rows, kernel_of};

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
