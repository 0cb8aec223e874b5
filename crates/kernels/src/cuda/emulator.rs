//! A GPU's kernels on the CPU (`emulator.cpp`). Device memory is host memory between guard pages.

use super::backend::{Backend, Captured, Launch, Result};
use super::{DeviceError, DeviceInformation, Element, Gemm};
use half::bf16;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

unsafe extern "C" {
    fn layerscope_emulate(
        name: *const c_char,
        grid: *const u32,
        threads: u32,
        shared_bytes: usize,
        most_shared_bytes: usize,
        parameters: *const c_void,
        parameter_bytes: usize,
        seed: u64,
        message: *mut c_char,
        message_bytes: usize,
    ) -> c_int;
    fn layerscope_emulated_allocate(bytes: usize) -> *mut c_void;
    fn layerscope_emulated_free(data: *mut c_void, bytes: usize) -> c_int;
}

/// The contents of memory before it is written: NaN in every type.
const POISON: u8 = 0xff;
/// As much memory as it says it has.
const MEMORY: usize = 4 << 30;

pub(super) struct Emulator {
    information: DeviceInformation,
    state: Arc<State>,
}

struct State {
    /// Shared memory that a block can have.
    shared_bytes: usize,
    /// Bytes of each allocation, by address.
    allocations: Mutex<HashMap<u64, usize>>,
    /// What was queued since a capture began; an error where it did what a capture does not allow.
    captured: Mutex<Option<Result<Vec<Work>>>>,
    /// Drawn anew for each launch.
    seed: AtomicU64,
}

#[derive(Clone)]
enum Work {
    Launch {
        kernel: &'static str,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: usize,
        parameters: Vec<u64>,
        bytes: usize,
    },
    Multiply(Gemm),
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Clear {
        at: u64,
        bytes: usize,
    },
}

struct CapturedWork {
    state: Arc<State>,
    work: Vec<Work>,
}

impl Emulator {
    pub(super) fn new(compute_capability: (u32, u32)) -> Self {
        let information = DeviceInformation {
            name: "emulated GPU".to_owned(),
            driver: "none".to_owned(),
            compute_capability,
            multiprocessors: 4,
            memory: MEMORY,
        };
        let kibibytes = match compute_capability {
            (8, 0 | 7) => 163,
            (9..=11, _) => 227,
            _ => 99,
        };
        let state = State {
            shared_bytes: kibibytes << 10,
            allocations: Mutex::default(),
            captured: Mutex::default(),
            seed: AtomicU64::new(0),
        };
        Self { information, state: Arc::new(state) }
    }

    fn queue(&self, work: Work) -> Result<()> {
        match &mut *self.state.captured.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Ok(captured)) => captured.push(work),
            Some(Err(error)) => return Err(error.clone()),
            None => return self.state.run(&work),
        }
        Ok(())
    }

    /// Waiting for the stream or the GPU during a capture invalidates the graph.
    fn wait(&self, what: &str) -> Result<()> {
        let error = || DeviceError::Failure(format!("{what} while a graph is captured; please report this"));
        match &mut *self.state.captured.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(captured) => {
                *captured = Err(error());
                Err(error())
            }
        }
    }
}

impl State {
    fn run(&self, work: &Work) -> Result<()> {
        match work {
            Work::Launch { kernel, grid, threads, shared_bytes, parameters, bytes } => {
                let seed = self.seed.fetch_add(1, Ordering::Relaxed) + 1;
                let name = CString::new(*kernel).map_err(|e| DeviceError::Failure(e.to_string()))?;
                let mut message = [0u8; 256];
                // SAFETY: the parameters are as long as said, and the caller of `Device::launch` vouches for the rest.
                let code = unsafe {
                    layerscope_emulate(
                        name.as_ptr(),
                        grid.as_ptr(),
                        *threads,
                        *shared_bytes,
                        self.shared_bytes,
                        parameters.as_ptr().cast(),
                        *bytes,
                        seed,
                        message.as_mut_ptr().cast(),
                        message.len(),
                    )
                };
                match code {
                    0 => Ok(()),
                    _ => {
                        let sentence = CStr::from_bytes_until_nul(&message).unwrap_or(c"the emulator failed");
                        Err(DeviceError::Failure(sentence.to_string_lossy().into_owned()))
                    }
                }
            }
            // SAFETY: the caller of `Device::multiply` vouches for the addresses.
            Work::Multiply(product) => unsafe { multiply(product) },
            Work::Copy { from, to, bytes } => {
                // SAFETY: buffers have checked their lengths.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
                Ok(())
            }
            Work::Clear { at, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(*at as *mut u8, 0, *bytes) };
                Ok(())
            }
        }
    }
}

impl Backend for Emulator {
    fn information(&self) -> &DeviceInformation {
        &self.information
    }

    fn memory(&self) -> Result<(usize, usize)> {
        let allocations = self.state.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: usize = allocations.values().sum();
        Ok((MEMORY.saturating_sub(taken), MEMORY))
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.wait("memory is taken")?;
        let (free, _) = self.memory()?;
        if bytes > free {
            return Err(DeviceError::OutOfMemory { wanted: bytes, free });
        }
        // SAFETY: given back by `free`.
        let address = unsafe { layerscope_emulated_allocate(bytes) } as u64;
        if address == 0 {
            return Err(DeviceError::OutOfMemory { wanted: bytes, free: 0 });
        }
        self.state.allocations.lock().unwrap_or_else(PoisonError::into_inner).insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let _ = self.wait("memory is given back");
        let bytes = self.state.allocations.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let bytes = bytes.unwrap_or_default();
        // SAFETY: made by `allocate` with this length.
        let intact = unsafe { layerscope_emulated_free(address as *mut c_void, bytes) } != 0;
        assert!(intact || std::thread::panicking(), "a kernel wrote beyond a buffer of {bytes} bytes");
    }

    fn pool_bytes(&self, bytes: usize) -> usize {
        // Nothing more, so that an access beyond it is seen.
        bytes.max(1)
    }

    fn reuse(&self, address: u64, bytes: usize) {
        // SAFETY: memory of that length, which nobody has at present.
        unsafe { std::ptr::write_bytes(address as *mut u8, POISON, bytes) };
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.wait("host memory is written")?;
        // SAFETY: buffers have checked their lengths.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn write_beside(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: buffers have checked their lengths, and nothing queued uses this memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.wait("device memory is read")?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn read_beside(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: buffers have checked their lengths, and nothing queued writes this memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.queue(Work::Copy { from, to, bytes })
    }

    fn clear(&self, at: u64, bytes: usize) -> Result<()> {
        self.queue(Work::Clear { at, bytes })
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let bytes = launch.parameter_bytes;
        let mut parameters = vec![0u64; bytes.div_ceil(size_of::<u64>())];
        // SAFETY: a struct of that length; its padding is copied without being looked at.
        unsafe {
            std::ptr::copy_nonoverlapping(
                launch.parameters.cast::<u8>(),
                parameters.as_mut_ptr().cast(),
                bytes,
            );
        }
        let &Launch { kernel, grid, threads, shared_bytes, .. } = launch;
        self.queue(Work::Launch { kernel, grid, threads, shared_bytes, parameters, bytes })
    }

    fn multiply(&self, product: &Gemm) -> Result<()> {
        self.queue(Work::Multiply(*product))
    }

    fn synchronize(&self) -> Result<()> {
        self.wait("work is waited for")
    }

    fn begin_capture(&self) -> Result<()> {
        *self.state.captured.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(vec![]));
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Captured>> {
        let work = self.state.captured.lock().unwrap_or_else(PoisonError::into_inner).take();
        let work = work.unwrap_or(Ok(vec![]))?;
        Ok(Box::new(CapturedWork { state: Arc::clone(&self.state), work }))
    }
}

impl Captured for CapturedWork {
    fn launch(&self) -> Result<()> {
        self.work.iter().try_for_each(|work| self.state.run(work))
    }
}

/// The product, plainly.
///
/// # Safety
/// The addresses are of memory as long as the product says.
unsafe fn multiply(product: &Gemm) -> Result<()> {
    let Gemm { rows, inputs, outputs, inputs_in, output_in, output_stride, accumulate, .. } = *product;
    if (inputs_in, output_in) == (Element::F32, Element::Bf16) || inputs == 0 || output_stride < outputs {
        return Err(DeviceError::Failure("cuBLAS has no such product".to_owned()));
    }
    // SAFETY: by the contract.
    let (x, weights) = unsafe {
        (numbers(product.x, inputs_in, rows * inputs), numbers(product.weights, inputs_in, outputs * inputs))
    };
    for row in 0..rows {
        let x = &x[row * inputs..][..inputs];
        for column in 0..outputs {
            let w = &weights[column * inputs..][..inputs];
            let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            let at = row * output_stride + column;
            // SAFETY: within y.
            unsafe {
                match output_in {
                    Element::F32 => {
                        let y = (product.output as *mut f32).add(at);
                        *y = if accumulate { *y + sum } else { sum };
                    }
                    Element::Bf16 => {
                        let y = (product.output as *mut u16).add(at);
                        let before = if accumulate { bf16::from_bits(*y).to_f32() } else { 0.0 };
                        *y = bf16::from_f32(before + sum).to_bits();
                    }
                }
            }
        }
    }
    Ok(())
}

/// # Safety
/// `address` is of `len` numbers of that type.
unsafe fn numbers(address: u64, element: Element, len: usize) -> Vec<f32> {
    // SAFETY: by the contract.
    unsafe {
        match element {
            Element::F32 => std::slice::from_raw_parts(address as *const f32, len).to_vec(),
            Element::Bf16 => std::slice::from_raw_parts(address as *const u16, len)
                .iter()
                .map(|&bits| bf16::from_bits(bits).to_f32())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
