//! Device memory: buffers that free themselves on drop, and pools that keep freed memory for the next request.
//!
//! Since all work is queued on one stream, freed memory can be reused at once.

use super::backend::Result;
use super::device::WeakDevice;
use super::{Device, DeviceError, Element};
use bytemuck::{AnyBitPattern, NoUninit};
use half::bf16;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory on a device; freed on drop.
pub struct Buffer {
    device: Device,
    address: u64,
    bytes: usize,
    /// The pool that it returns to, with its size there.
    home: Option<(Pool, usize)>,
}

/// Freed memory, by size. A [`super::Graph`] has a pool of its own. Clones are the same pool; when the last clone and the last
/// buffer are dropped, its memory returns to the driver.
#[derive(Clone)]
pub struct Pool(Arc<Waiting>);

struct Waiting {
    device: WeakDevice,
    addresses: Mutex<BTreeMap<usize, Vec<u64>>>,
    /// Whether graphs were captured with it, which use its free memory.
    of_graphs: AtomicBool,
}

impl Pool {
    /// An empty one of a device.
    pub fn new(device: &Device) -> Self {
        Self::of(device.downgrade())
    }

    pub(super) fn of(device: WeakDevice) -> Self {
        let of_graphs = AtomicBool::new(false);
        Self(Arc::new(Waiting { device, addresses: Mutex::default(), of_graphs }))
    }

    /// Keeps its memory from here on until the pool is dropped.
    pub(super) fn keep_for_graphs(&self) {
        self.0.of_graphs.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_of_graphs(&self) -> bool {
        self.0.of_graphs.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, bytes: usize) -> Option<u64> {
        self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&bytes)?.pop()
    }

    fn give(&self, bytes: usize, address: u64) {
        let mut addresses = self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.entry(bytes).or_default().push(address);
    }

    /// Takes all out.
    pub(super) fn drain(&self) -> Vec<u64> {
        self.0.drain()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        let addresses = self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.iter().map(|(bytes, addresses)| bytes * addresses.len()).sum()
    }
}

impl Waiting {
    fn drain(&self) -> Vec<u64> {
        let sizes = std::mem::take(&mut *self.addresses.lock().unwrap_or_else(PoisonError::into_inner));
        sizes.into_values().flatten().collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(device) = self.device.upgrade() {
            self.drain().into_iter().for_each(|address| device.backend().free(address));
        }
    }
}

impl Buffer {
    pub(super) fn new(device: Device, address: u64, bytes: usize, home: Option<(Pool, usize)>) -> Self {
        Self { device, address, bytes, home }
    }

    /// Where it is, for the parameters of kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies from host memory, from `offset` bytes on.
    ///
    /// # Errors
    /// Where it does not fit, while a graph is captured, and where the device fails.
    pub fn write<T: NoUninit>(&self, offset: usize, numbers: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(numbers);
        self.check(offset, bytes.len())?;
        self.device.check_not_capturing("host memory is written")?;
        if bytes.is_empty() {
            Ok(())
        } else {
            self.device.backend().write(self.address + offset as u64, bytes)
        }
    }

    /// As [`Self::write`], but beside all queued work rather than after it, from any thread; nothing that is queued may use
    /// the buffer meanwhile.
    ///
    /// # Errors
    /// Where it does not fit, and where the device fails.
    pub fn write_beside<T: NoUninit>(&self, offset: usize, numbers: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(numbers);
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            Ok(())
        } else {
            self.device.backend().write_beside(self.address + offset as u64, bytes)
        }
    }

    /// Copies into host memory, from `offset` bytes on, after all queued work.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read<T: NoUninit + AnyBitPattern>(&self, offset: usize, numbers: &mut [T]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(numbers);
        self.check(offset, bytes.len())?;
        self.device.check_not_capturing("device memory is read")?;
        if bytes.is_empty() {
            Ok(())
        } else {
            self.device.backend().read(self.address + offset as u64, bytes)
        }
    }

    /// All of it as bytes, beside all queued work rather than after it, from any thread; nothing that is queued may write the
    /// buffer meanwhile.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn bytes_beside(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        if !bytes.is_empty() {
            self.device.backend().read_beside(self.address, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// All of it as numbers.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn to_vec<T: NoUninit + AnyBitPattern>(&self) -> Result<Vec<T>> {
        let mut numbers = vec![T::zeroed(); self.bytes / size_of::<T>()];
        self.read(0, &mut numbers)?;
        Ok(numbers)
    }

    /// Copies `bytes` of another buffer of the same device.
    ///
    /// # Errors
    /// Where either is too short, and where the device fails.
    pub fn copy_from(&self, offset: usize, from: &Self, from_offset: usize, bytes: usize) -> Result<()> {
        self.check(offset, bytes)?;
        from.check(from_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.backend().copy(from.address + from_offset as u64, self.address + offset as u64, bytes)
    }

    /// Zeros everywhere.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn clear(&self) -> Result<()> {
        if self.bytes == 0 { Ok(()) } else { self.device.backend().clear(self.address, self.bytes) }
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(DeviceError::Failure(format!(
                "{bytes} bytes at {offset} are beyond a buffer of {}; please report this",
                self.bytes
            ))),
        }
    }
}

/// Numbers of one type, one after the other, in a buffer.
#[derive(Clone, Copy)]
pub struct Numbers<'a> {
    buffer: &'a Buffer,
    element: Element,
    first: usize,
    len: usize,
}

impl<'a> Numbers<'a> {
    /// `len` numbers from the one with index `first` on.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn new(buffer: &'a Buffer, element: Element, first: usize, len: usize) -> Self {
        assert!((first + len) * element.bytes() <= buffer.bytes(), "numbers within their buffer");
        Self { buffer, element, first, len }
    }

    /// All numbers of a buffer.
    pub fn all(buffer: &'a Buffer, element: Element) -> Self {
        Self::new(buffer, element, 0, buffer.bytes() / element.bytes())
    }

    /// Where the first is.
    pub fn address(&self) -> u64 {
        self.buffer.address() + (self.first * self.element.bytes()) as u64
    }

    /// Their type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that they are on.
    pub fn device(&self) -> &'a Device {
        self.buffer.device()
    }

    /// In f32 on the host.
    ///
    /// # Errors
    /// As [`Buffer::read`].
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let offset = self.first * self.element.bytes();
        match self.element {
            Element::F32 => {
                let mut numbers = vec![0.0; self.len];
                self.buffer.read(offset, &mut numbers)?;
                Ok(numbers)
            }
            Element::Bf16 => {
                let mut bits = vec![0u16; self.len];
                self.buffer.read(offset, &mut bits)?;
                Ok(bits.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect())
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.home {
            Some((pool, size)) => {
                pool.give(*size, self.address);
                self.device.take_back(*size);
            }
            None => {
                self.device.backend().free(self.address);
                self.device.take_back(self.bytes);
            }
        }
    }
}
