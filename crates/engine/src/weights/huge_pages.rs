//! Memory in huge pages. A decode step reads all weights once; from pages of 4 KiB, as the system maps files, it waits for the
//! translation of their addresses.

use memmap2::MmapMut;
use std::fs::File;
use std::io;
use std::thread::{self, Builder, ScopedJoinHandle};

/// Smallest file that is worth it: smaller ones stay in the processor's caches for the most part.
const LEAST: usize = 32 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// A file's content in huge pages.
pub(crate) struct HugePages {
    map: MmapMut,
    /// Where the content begins: at a huge page.
    start: usize,
    len: usize,
}

impl HugePages {
    /// Reads a file of `len` bytes; `None` where it is small, the system has no such pages to give, less than twice the memory is
    /// free, or the file cannot be read. `LAYERSCOPE_HUGE_PAGES=off` leaves every file where it is.
    pub(super) fn read(file: &File, len: usize) -> Option<Self> {
        let free = crate::memory::available_memory()?;
        if len < LEAST || !available() || free / 2 < len as u64 {
            return None;
        }
        let map = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        advise(&map).ok()?;
        let start = map.as_ptr().align_offset(HUGE_PAGE);
        let mut pages = Self { map, start, len };
        read_parts(file, &mut pages.map[start..][..len]).ok()?;
        Some(pages)
    }
}

/// Reads a file with as many threads as the pool has, but outside the pool: its only thread may be waiting for this file. The system
/// zeroes a huge page when it is first written, so several threads are faster.
fn read_parts(file: &File, to: &mut [u8]) -> io::Result<()> {
    let part = to.len().div_ceil(rayon::current_num_threads()).next_multiple_of(HUGE_PAGE);
    thread::scope(|scope| {
        let start = |(index, to)| Builder::new().spawn_scoped(scope, move || read_at(file, to, index * part));
        let threads: Vec<ScopedJoinHandle<'_, _>> =
            to.chunks_mut(part).enumerate().map(start).collect::<io::Result<_>>()?;
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

impl AsRef<[u8]> for HugePages {
    fn as_ref(&self) -> &[u8] {
        &self.map[self.start..][..self.len]
    }
}

/// Asks for huge pages behind numbers that are yet to be written.
pub(super) fn advise_for<T>(numbers: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let memory = numbers.spare_capacity_mut();
        let len = size_of_val(memory);
        if len >= 2 * HUGE_PAGE && available() {
            let start = memory.as_mut_ptr().cast::<u8>();
            let ahead = start.align_offset(PAGE);
            // SAFETY: whole pages within the vector's own memory; advice changes nothing that is in them.
            unsafe {
                libc::madvise(start.add(ahead).cast(), (len - ahead) / PAGE * PAGE, libc::MADV_HUGEPAGE)
            };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = numbers;
}

/// Whether the system gives huge pages to those who ask.
fn available() -> bool {
    let off = std::env::var("LAYERSCOPE_HUGE_PAGES").is_ok_and(|value| value == "off");
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    !off && enabled.is_ok_and(|modes| !modes.contains("[never]"))
}

#[cfg(target_os = "linux")]
fn advise(map: &MmapMut) -> io::Result<()> {
    map.advise(memmap2::Advice::HugePage)
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &MmapMut) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], offset: usize) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset as u64)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_large_file_is_read_whole_and_a_small_one_is_left() {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..LEAST + 12_345).map(|i| (i * 31 % 251) as u8).collect();
        file.write_all(&content).expect("written");
        if available() {
            let pages = HugePages::read(&file, content.len()).expect("huge pages");
            assert!(pages.as_ref() == content);
            assert_eq!(pages.as_ref().as_ptr().align_offset(HUGE_PAGE), 0);
        }
        assert!(HugePages::read(&file, LEAST - 1).is_none(), "small");
        assert!(HugePages::read(&file, content.len() + 1).is_none(), "longer than the file");
    }

    #[test]
    fn advice_leaves_a_vector_as_it_is() {
        let mut numbers = Vec::with_capacity(LEAST);
        advise_for(&mut numbers);
        numbers.extend((0..1000u32).map(f64::from));
        assert!(numbers.iter().zip(0..).all(|(number, index)| *number == f64::from(index)));
    }
}
