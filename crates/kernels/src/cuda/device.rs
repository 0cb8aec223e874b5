//! A device: where memory comes from and work goes.

use super::backend::{Backend, Captured, Launch, Result};
use super::memory::{Buffer, Pool};
use super::{DeviceError, DeviceInformation, Gemm};
use bytemuck::NoUninit;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A GPU, or its emulation; clones are the same one.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Box<dyn Backend>,
    /// The current pool is the last one.
    pools: Mutex<Vec<Pool>>,
    capturing: AtomicBool,
    /// Bytes handed out.
    allocated: AtomicUsize,
    peak: AtomicUsize,
}

/// A device that does not live on because of this.
#[derive(Default)]
pub(super) struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    pub(super) fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}

/// Captured work, with the memory that it took; it can be queued again and again, as long as the buffers are there that it
/// was given.
pub struct Graph {
    captured: Box<dyn Captured>,
    _memory: Pool,
    // The last to go: the kernels are its.
    _device: Device,
}

/// Ends what was begun, also where what is between panics.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl Device {
    /// The GPU of that number.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where this build, this machine or its driver has none.
    pub fn open(index: usize) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self::new(Box::new(super::driver::Driver::open(index)?)));
        #[cfg(not(feature = "cuda"))]
        Err(DeviceError::Unavailable(format!(
            "there is no way to GPU {index}: this layerscope is built without the feature `cuda`; build it with \
             `--features cuda`, or use `--device cpu`"
        )))
    }

    /// How many GPUs there are: none where they cannot be used.
    pub fn count() -> usize {
        #[cfg(feature = "cuda")]
        return super::driver::Driver::count().unwrap_or(0);
        #[cfg(not(feature = "cuda"))]
        0
    }

    /// The device that tests run on: the emulated one, or with `LAYERSCOPE_TEST_DEVICE=cuda` the first GPU.
    ///
    /// # Panics
    /// If that cannot be opened.
    #[cfg(feature = "cuda-emulation")]
    #[allow(clippy::expect_used)]
    pub fn for_tests() -> Self {
        match std::env::var("LAYERSCOPE_TEST_DEVICE").as_deref() {
            Ok("cuda") => Self::open(0).expect("a GPU to test"),
            _ => Self::emulated(),
        }
    }

    /// The emulation: kernels on the CPU, as on a GPU of compute capability 8.0.
    #[cfg(feature = "cuda-emulation")]
    pub fn emulated() -> Self {
        Self::emulated_as((8, 0))
    }

    /// The same as on a GPU of another compute capability, e.g. 8.6, where a block has less shared memory.
    #[cfg(feature = "cuda-emulation")]
    pub fn emulated_as(compute_capability: (u32, u32)) -> Self {
        Self::new(Box::new(super::emulator::Emulator::new(compute_capability)))
    }

    #[cfg(any(feature = "cuda", feature = "cuda-emulation"))]
    fn new(backend: Box<dyn Backend>) -> Self {
        Self(Arc::new(Inner {
            backend,
            pools: Mutex::new(vec![Pool::of(WeakDevice::default())]),
            capturing: AtomicBool::new(false),
            allocated: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }))
    }

    pub(super) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// What it is.
    pub fn information(&self) -> &DeviceInformation {
        self.backend().information()
    }

    /// Free and total memory, bytes; free memory in pools counts as free.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (free, whole) = self.backend().memory()?;
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((free + pools.iter().map(Pool::waiting_bytes).sum::<usize>(), whole))
    }

    /// Bytes in use: those of all buffers.
    pub fn allocated_bytes(&self) -> usize {
        self.0.allocated.load(Ordering::Relaxed)
    }

    /// Most bytes in use at once since [`Self::reset_peak`].
    pub fn peak_bytes(&self) -> usize {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// Resets [`Self::peak_bytes`] to the bytes in use now.
    pub fn reset_peak(&self) {
        self.0.peak.store(self.allocated_bytes(), Ordering::Relaxed);
    }

    /// Short-lived memory from the pool; contents undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.last().cloned().unwrap_or_else(|| Pool::new(self));
        drop(pools);
        let size = self.backend().pool_bytes(bytes);
        let address = match pool.take(size) {
            Some(address) => {
                self.backend().reuse(address, size);
                address
            }
            None => self.take(size)?,
        };
        self.hand_out(size);
        Ok(Buffer::new(self.clone(), address, bytes, Some((pool, size))))
    }

    /// Long-lived memory of exactly this size; contents undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn reserve(&self, bytes: usize) -> Result<Buffer> {
        let address = self.take(bytes.max(1))?;
        self.hand_out(bytes);
        Ok(Buffer::new(self.clone(), address, bytes, None))
    }

    fn hand_out(&self, bytes: usize) {
        let allocated = self.0.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.peak.fetch_max(allocated, Ordering::Relaxed);
    }

    /// Takes a buffer's bytes out of the count.
    pub(super) fn take_back(&self, bytes: usize) {
        self.0.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Numbers in memory for a moment.
    ///
    /// # Errors
    /// As [`Self::allocate`] and [`Buffer::write`].
    pub fn upload<T: NoUninit>(&self, numbers: &[T]) -> Result<Buffer> {
        let buffer = self.allocate(size_of_val(numbers))?;
        buffer.write(0, numbers)?;
        Ok(buffer)
    }

    fn take(&self, bytes: usize) -> Result<u64> {
        self.check_not_capturing("memory is taken")?;
        match self.backend().allocate(bytes) {
            Err(DeviceError::OutOfMemory { .. }) => {
                self.trim();
                self.backend().allocate(bytes)
            }
            other => other,
        }
    }

    /// Returns the free memory of the pools to the driver, except that of graphs, which they use again.
    fn trim(&self) {
        let pools = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pools = pools.iter().filter(|pool| !pool.is_of_graphs());
        pools.flat_map(Pool::drain).for_each(|address| self.backend().free(address));
    }

    /// Queues a kernel.
    ///
    /// # Errors
    /// Where there is no such kernel or the device refuses the launch.
    ///
    /// # Safety
    /// `parameters` is the struct that the kernel takes, and the addresses in it are of buffers as long as the kernel reads
    /// and writes. (They may be dropped once this returns.)
    pub unsafe fn launch<P: Copy>(
        &self,
        kernel: &'static str,
        grid: [usize; 3],
        threads: usize,
        shared_bytes: usize,
        parameters: &P,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let mut blocks = [0; 3];
        for (blocks, &wanted) in blocks.iter_mut().zip(&grid) {
            *blocks = u32::try_from(wanted).map_err(|_| {
                DeviceError::Failure(format!(
                    "kernel {kernel}: {wanted} blocks are too many; please report this"
                ))
            })?;
        }
        self.backend().launch(&Launch {
            kernel,
            grid: blocks,
            threads: threads as u32,
            shared_bytes,
            parameters: std::ptr::from_ref(parameters).cast(),
            parameter_bytes: size_of::<P>(),
            lifetime: std::marker::PhantomData,
        })
    }

    /// Queues a product.
    ///
    /// # Errors
    /// Where the device or its library fails.
    ///
    /// # Safety
    /// The addresses are of buffers as long as the product says.
    pub unsafe fn multiply(&self, product: &Gemm) -> Result<()> {
        if product.rows == 0 || product.outputs == 0 {
            return Ok(());
        }
        self.backend().multiply(product)
    }

    /// Waits for all queued work.
    ///
    /// # Errors
    /// What failed in it.
    pub fn synchronize(&self) -> Result<()> {
        self.backend().synchronize()
    }

    /// Runs `work` with short-lived memory from a pool.
    pub fn with_memory<R>(&self, memory: &Pool, work: impl FnOnce() -> R) -> R {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        let _end = Finally(|| {
            let pool = self.0.pools.lock().unwrap_or_else(PoisonError::into_inner).pop();
            drop(pool);
        });
        work()
    }

    /// Records what `work` queues as a graph, without running it; `memory` must have all that it allocates, as it has after
    /// the same work was run with it. What `work` returns it writes each time that the graph is launched.
    ///
    /// # Errors
    /// Whatever `work` fails with, and where it does what a graph cannot hold: taking memory, reading or writing the
    /// host's.
    pub fn capture<R, E: From<DeviceError>>(
        &self,
        memory: &Pool,
        work: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<(Graph, R), E> {
        self.backend().begin_capture()?;
        self.0.capturing.store(true, Ordering::Relaxed);
        memory.keep_for_graphs();
        let mut captured = None;
        let end = Finally(|| {
            self.0.capturing.store(false, Ordering::Relaxed);
            captured = Some(self.backend().end_capture());
        });
        let result = self.with_memory(memory, work);
        drop(end);
        let result = result?;
        let captured = captured.ok_or_else(|| {
            DeviceError::Failure("a graph was not captured; please report this".to_owned())
        })??;
        Ok((Graph { captured, _memory: memory.clone(), _device: self.clone() }, result))
    }

    pub(super) fn check_not_capturing(&self, what: &str) -> Result<()> {
        match self.0.capturing.load(Ordering::Relaxed) {
            true => {
                Err(DeviceError::Failure(format!("{what} while a graph is captured; please report this")))
            }
            false => Ok(()),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.information().name)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
        pools.iter().flat_map(Pool::drain).for_each(|address| self.backend.free(address));
    }
}

impl Graph {
    /// Queues the work.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn launch(&self) -> Result<()> {
        self.captured.launch()
    }
}
