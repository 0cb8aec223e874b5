//! An NVIDIA GPU through its driver and cuBLAS, both loaded when the first GPU is asked for.

use super::backend::{Backend, Captured, Launch, Result};
use super::{DeviceError, DeviceInformation, Element, Gemm};
use cudarc::cublas::result as blas;
use cudarc::cublas::sys as blas_sys;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Machine code of every kernel, for several architectures, where the driver can read its headers.
static KERNELS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));

#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

/// Shared memory of a block by default.
const SHARED_BYTES: usize = 48 << 10;
/// Workspace of cuBLAS, as much as it takes by itself on Hopper; allocated beforehand, so that graphs need none.
const BLAS_BYTES: usize = 32 << 20;

/// cuBLAS and the driver wait for all of a context's work where they load or leave a module or a handle, which spoils what another
/// thread captures in that context: so neither happens during the other, in the whole process.
static CAPTURES: Captures = Captures { state: Mutex::new((0, false)), changed: Condvar::new() };

struct Captures {
    /// Captures that are under way, and whether a thread has all to itself.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Captures {
    fn begin(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |(_, alone)| *alone);
        waited.unwrap_or_else(PoisonError::into_inner).0 += 1;
    }

    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
        self.changed.notify_all();
    }

    /// Does something while nothing is captured.
    fn without<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Alone<'a>(&'a Captures);
        impl Drop for Alone<'_> {
            fn drop(&mut self) {
                self.0.state.lock().unwrap_or_else(PoisonError::into_inner).1 = false;
                self.0.changed.notify_all();
            }
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |(captures, alone)| *captures > 0 || *alone);
        waited.unwrap_or_else(PoisonError::into_inner).1 = true;
        let _alone = Alone(self);
        work()
    }
}

pub(super) struct Driver {
    information: DeviceInformation,
    context: Arc<Context>,
    module: sys::CUmodule,
    functions: Mutex<HashMap<&'static str, sys::CUfunction>>,
    blas: Mutex<blas_sys::cublasHandle_t>,
    blas_memory: u64,
}

/// The context, the one stream that all work is queued on, and one for copies beside it.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    copies: sys::CUstream,
}

// SAFETY: handles of the driver may be used from any thread that has made the context its own, which every use does; cuBLAS's
// is behind a lock.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}
// SAFETY: as above.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Driver {
    /// How many GPUs there are.
    pub(super) fn count() -> Result<usize> {
        // SAFETY: only looks whether the library can be loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::Unavailable(
                "there is no NVIDIA driver (libcuda) on this machine: install it, or use `--device cpu`"
                    .to_owned(),
            ));
        }
        result::init().map_err(unavailable)?;
        Ok(result::device::get_count().map_err(unavailable)? as usize)
    }

    pub(super) fn open(index: usize) -> Result<Self> {
        let count = Self::count()?;
        if index >= count {
            return Err(DeviceError::Unavailable(match count {
                0 => "the NVIDIA driver finds no GPU: use `--device cpu`".to_owned(),
                1 => format!("there is no GPU {index}: the only one is cuda:0"),
                _ => format!("there is no GPU {index}: they are cuda:0 to cuda:{}", count - 1),
            }));
        }
        if !super::wheels::cublas_is_present() {
            return Err(DeviceError::Unavailable(
                "cuBLAS (libcublas of CUDA 12 or 13) is not found: install the CUDA libraries, or put their folder into \
                 LD_LIBRARY_PATH"
                    .to_owned(),
            ));
        }
        let device = result::device::get(index as c_int).map_err(unavailable)?;
        let information = information(device)?;
        if information.compute_capability < (8, 0) {
            return Err(DeviceError::Unavailable(format!(
                "{} has compute capability {}.{}, but 8.0 (Ampere) or later is needed: use `--device cpu`",
                information.name, information.compute_capability.0, information.compute_capability.1
            )));
        }
        CAPTURES.without(|| Self::load(device, information))
    }

    /// Loads the kernels and cuBLAS.
    fn load(device: sys::CUdevice, information: DeviceInformation) -> Result<Self> {
        // SAFETY: the device exists; the context is released when the last that uses it goes.
        let context = Arc::new(unsafe { Context::new(device) }?);
        let image: *const c_void = KERNELS.0.as_ptr().cast();
        // SAFETY: the image is what nvcc wrote.
        let module = unsafe { result::module::load_data(image) }.map_err(|error| {
            DeviceError::Unavailable(format!(
                "the driver cannot load the kernels ({}): they are made for CUDA 13.0, which needs a driver from 580 on",
                sentence(error)
            ))
        })?;
        // SAFETY: handles that were just made.
        let (blas, blas_memory) = unsafe {
            let blas = blas::create_handle().map_err(blas_failure)?;
            blas::set_stream(blas, context.stream.cast()).map_err(blas_failure)?;
            // Sums that are split are joined in f32 too, not in the type of the output.
            let mode = blas_sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
            blas_sys::cublasSetMathMode(blas, mode).result().map_err(blas_failure)?;
            let memory = result::malloc_sync(BLAS_BYTES).map_err(failure)?;
            blas_sys::cublasSetWorkspace_v2(blas, memory as *mut c_void, BLAS_BYTES)
                .result()
                .map_err(blas_failure)?;
            (blas, memory)
        };
        Ok(Self {
            information,
            context,
            module,
            functions: Mutex::default(),
            blas: Mutex::new(blas),
            blas_memory,
        })
    }

    fn function(&self, name: &'static str) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        let symbol = CString::new(name).map_err(|error| DeviceError::Failure(error.to_string()))?;
        // The driver loads a kernel when it is first asked for, and may take memory for it, which a thread that captures
        // must allow.
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the module is loaded; the mode becomes again what it was.
        let function = unsafe {
            sys::cuThreadExchangeStreamCaptureMode(&mut mode).result().map_err(failure)?;
            let function = result::module::get_function(self.module, symbol);
            sys::cuThreadExchangeStreamCaptureMode(&mut mode).result().map_err(failure)?;
            function.map_err(failure)?
        };
        functions.insert(name, function);
        Ok(function)
    }
}

impl Context {
    /// # Safety
    /// The device exists.
    unsafe fn new(device: sys::CUdevice) -> Result<Self> {
        // SAFETY: by the contract.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(unavailable)?;
            result::ctx::set_current(context).map_err(unavailable)?;
            let stream =
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(unavailable)?;
            let copies =
                result::stream::create(result::stream::StreamKind::NonBlocking).map_err(unavailable)?;
            Ok(Self { device, context, stream, copies })
        }
    }

    /// Makes the context the calling thread's.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context) }.map_err(failure)
    }
}

impl Backend for Driver {
    fn information(&self) -> &DeviceInformation {
        &self.information
    }

    fn memory(&self) -> Result<(usize, usize)> {
        self.context.enter()?;
        result::mem_get_info().map_err(failure)
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.context.enter()?;
        // Kernels read 16 bytes at once, the last of which may begin before the end. The driver aligns memory to more than that, but
        // compute-sanitizer tells them from what was asked for.
        // SAFETY: given back by `free`.
        unsafe { result::malloc_sync(bytes.next_multiple_of(16)) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let free = self.memory().map_or(0, |(free, _)| free);
                DeviceError::OutOfMemory { wanted: bytes, free }
            }
            _ => failure(error),
        })
    }

    fn free(&self, address: u64) {
        // Waits for the work that may still use it. That work has reported any error.
        if self.context.enter().is_ok() {
            // SAFETY: made by `allocate`.
            let _ = unsafe {
                result::stream::synchronize(self.context.stream).and_then(|()| result::free_sync(address))
            };
        }
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.context.enter()?;
        // SAFETY: buffers have checked their lengths; the source is waited for, since it may be gone afterwards.
        unsafe {
            result::memcpy_htod_async(to, bytes, self.context.stream).map_err(failure)?;
        }
        self.synchronize()
    }

    fn write_beside(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.context.enter()?;
        // SAFETY: buffers have checked their lengths; the source is waited for, since it may be gone afterwards.
        unsafe {
            result::memcpy_htod_async(to, bytes, self.context.copies)
                .and_then(|()| result::stream::synchronize(self.context.copies))
        }
        .map_err(failure)
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.context.enter()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(bytes, from, self.context.stream).map_err(failure)? };
        self.synchronize()
    }

    fn read_beside(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.context.enter()?;
        // SAFETY: as above.
        unsafe {
            result::memcpy_dtoh_async(bytes, from, self.context.copies)
                .and_then(|()| result::stream::synchronize(self.context.copies))
        }
        .map_err(failure)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.context.stream) }.map_err(failure)
    }

    fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(at, 0, bytes, self.context.stream) }.map_err(failure)
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.context.enter()?;
        let function = self.function(launch.kernel)?;
        let refused = |error: DriverError| {
            DeviceError::Failure(format!(
                "kernel {} could not be started: {}",
                launch.kernel,
                sentence(error)
            ))
        };
        // SAFETY: the kernel takes one struct, which is read before this returns; the caller of `Device::launch` vouches
        // for its addresses.
        unsafe {
            if launch.shared_bytes > SHARED_BYTES {
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, attribute, launch.shared_bytes as c_int)
                    .map_err(refused)?;
            }
            let [x, y, z] = launch.grid;
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                launch.shared_bytes as u32,
                self.context.stream,
                &mut [launch.parameters.cast_mut()],
            )
            .map_err(refused)
        }
    }

    fn multiply(&self, product: &Gemm) -> Result<()> {
        self.context.enter()?;
        let blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |n: usize| {
            c_int::try_from(n)
                .map_err(|_| DeviceError::Failure(format!("a product of {n} rows is too large")))
        };
        let (rows, inputs, outputs) = (size(product.rows)?, size(product.inputs)?, size(product.outputs)?);
        let kind = |element| match element {
            Element::F32 => blas_sys::cudaDataType::CUDA_R_32F,
            Element::Bf16 => blas_sys::cudaDataType::CUDA_R_16BF,
        };
        let (one, before) = (1f32, if product.accumulate { 1f32 } else { 0f32 });
        // Row-major y = x·Wᵀ is column-major yᵀ = W·xᵀ, where what is row-major [n, k] reads as [k, n].
        // SAFETY: the caller of `Device::multiply` vouches for the addresses.
        unsafe {
            blas::gemm_ex(
                *blas,
                blas_sys::cublasOperation_t::CUBLAS_OP_T,
                blas_sys::cublasOperation_t::CUBLAS_OP_N,
                outputs,
                rows,
                inputs,
                std::ptr::from_ref(&one).cast(),
                product.weights as *const c_void,
                kind(product.inputs_in),
                inputs,
                product.x as *const c_void,
                kind(product.inputs_in),
                inputs,
                std::ptr::from_ref(&before).cast(),
                product.output as *mut c_void,
                kind(product.output_in),
                size(product.output_stride)?,
                blas_sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                blas_sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(blas_failure)
    }

    fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives as long as the context.
        unsafe { result::stream::synchronize(self.context.stream) }.map_err(failure)
    }

    fn begin_capture(&self) -> Result<()> {
        self.context.enter()?;
        CAPTURES.begin();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: as above.
        let begun = unsafe { result::stream::begin_capture(self.context.stream, mode) };
        begun.inspect_err(|_| CAPTURES.end()).map_err(failure)
    }

    fn end_capture(&self) -> Result<Box<dyn Captured>> {
        let entered = self.context.enter();
        // SAFETY: as above.
        let graph = unsafe { result::stream::end_capture(self.context.stream) };
        CAPTURES.end();
        entered?;
        // SAFETY: the graph is destroyed once it is made executable.
        unsafe {
            let graph = graph.map_err(failure)?;
            if graph.is_null() {
                return Err(DeviceError::Failure("nothing was captured; please report this".to_owned()));
            }
            let executable =
                result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)).map_err(failure);
            let destroyed = result::graph::destroy(graph).map_err(failure);
            let executable = executable?;
            destroyed?;
            Ok(Box::new(CapturedWork { executable, context: Arc::clone(&self.context) }))
        }
    }
}

struct CapturedWork {
    executable: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: as for `Driver`.
unsafe impl Send for CapturedWork {}
// SAFETY: as for `Driver`.
unsafe impl Sync for CapturedWork {}

impl Captured for CapturedWork {
    fn launch(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: both handles live as long as this.
        unsafe { result::graph::launch(self.executable, self.context.stream) }.map_err(failure)
    }
}

impl Drop for CapturedWork {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: nothing is queued any more once the stream is idle.
            let _ = unsafe {
                result::stream::synchronize(self.context.stream)
                    .and_then(|()| result::graph::exec_destroy(self.executable))
            };
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: made by `open`, used by nothing any more.
        CAPTURES.without(|| unsafe {
            let _ = result::stream::synchronize(self.context.stream);
            let blas = self.blas.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = blas::destroy_handle(*blas);
            let _ = result::free_sync(self.blas_memory);
            let _ = result::module::unload(self.module);
        });
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `new`; whoever used them is gone.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::stream::destroy(self.copies);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

fn information(device: sys::CUdevice) -> Result<DeviceInformation> {
    use sys::CUdevice_attribute as Attribute;
    // SAFETY: the device exists.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map_err(unavailable);
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(unavailable)?;
    Ok(DeviceInformation {
        name: result::device::get_name(device).map_err(unavailable)?,
        driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }.map_err(unavailable)?,
    })
}

fn sentence(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("error {}", error.0 as u32),
    }
}

fn failure(error: DriverError) -> DeviceError {
    DeviceError::Failure(format!("the GPU failed: {}", sentence(error)))
}

fn unavailable(error: DriverError) -> DeviceError {
    DeviceError::Unavailable(format!("the GPU cannot be used: {}", sentence(error)))
}

fn blas_failure(error: blas::CublasError) -> DeviceError {
    DeviceError::Failure(format!("cuBLAS failed: {:?}", error.0))
}
