//! The interface of a GPU and its emulation.

use super::DeviceError;
use std::ffi::c_void;

/// Result of what a device does.
pub(super) type Result<T> = std::result::Result<T, DeviceError>;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInformation {
    /// Its name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Version of CUDA that its driver knows, e.g. `13.0`.
    pub driver: String,
    /// Compute capability, e.g. 9.0.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory, bytes.
    pub memory: usize,
}

/// Types of elements that products read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Four bytes.
    F32,
    /// Two bytes.
    Bf16,
}

impl Element {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// y `[rows, outputs]` = x `[rows, inputs]` · Wᵀ, with W `[outputs, inputs]`; all row-major, sums in f32 (of f32 inputs never
/// rounded to tf32).
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// Address of x.
    pub x: u64,
    /// Address of W.
    pub weights: u64,
    /// Type of x and of W.
    pub inputs_in: Element,
    /// Address of y.
    pub output: u64,
    /// Type of y.
    pub output_in: Element,
    /// Elements between two rows of y.
    pub output_stride: usize,
    /// Rows of x and of y.
    pub rows: usize,
    /// Columns of x and of W.
    pub inputs: usize,
    /// Rows of W, columns of y.
    pub outputs: usize,
    /// Whether the product is added to what y has.
    pub accumulate: bool,
}

/// A kernel, with how it is launched; its parameters are one plain struct.
#[derive(Clone, Copy)]
// Without a device to launch on, nothing reads it.
#[cfg_attr(not(any(feature = "cuda", feature = "cuda-emulation")), expect(dead_code))]
pub(super) struct Launch<'a> {
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: usize,
    /// The bytes of the struct, some of which may be padding.
    pub(super) parameters: *const c_void,
    // The driver knows them; the emulation checks them.
    #[cfg_attr(all(feature = "cuda", not(feature = "cuda-emulation")), expect(dead_code))]
    pub(super) parameter_bytes: usize,
    pub(super) lifetime: std::marker::PhantomData<&'a ()>,
}

/// The operations of a device. Addresses are those of live allocations.
pub(super) trait Backend: Send + Sync {
    fn information(&self) -> &DeviceInformation;
    /// Free and whole memory, bytes.
    fn memory(&self) -> Result<(usize, usize)>;
    fn allocate(&self, bytes: usize) -> Result<u64>;
    fn free(&self, address: u64);
    /// The size that a pool rounds a request up to: at most an eighth more, so that requests of similar sizes share memory.
    fn pool_bytes(&self, bytes: usize) -> usize {
        let granularity = (bytes.next_power_of_two() / 16).max(512);
        bytes.max(1).next_multiple_of(granularity)
    }
    /// Memory of a pool is handed out again.
    fn reuse(&self, _address: u64, _bytes: usize) {}
    fn write(&self, to: u64, bytes: &[u8]) -> Result<()>;
    /// As [`Self::write`], beside the queued work rather than after it, from any thread; it is done when this returns.
    fn write_beside(&self, to: u64, bytes: &[u8]) -> Result<()>;
    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()>;
    /// As [`Self::read`], beside the queued work, from any thread.
    fn read_beside(&self, from: u64, bytes: &mut [u8]) -> Result<()>;
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;
    fn clear(&self, at: u64, bytes: usize) -> Result<()>;
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;
    fn multiply(&self, product: &Gemm) -> Result<()>;
    fn synchronize(&self) -> Result<()>;
    /// Records launches, products and copies from here on, without running them.
    fn begin_capture(&self) -> Result<()>;
    fn end_capture(&self) -> Result<Box<dyn Captured>>;
}

/// Work that can be queued again as a whole.
pub(super) trait Captured: Send + Sync {
    fn launch(&self) -> Result<()>;
}
