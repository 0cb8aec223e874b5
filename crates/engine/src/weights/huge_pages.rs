//! Memory in huge pages. A decode step reads all weights once; from pages of 4 KiB, as the system maps files, it waits for the
//! translation of their addresses.

use layerscope_kernels::matmul::{Layout, WeightFormat};
use memmap2::MmapMut;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, ScopedJoinHandle};

/// Smallest file that is worth it: smaller ones stay in the processor's caches for the most part.
const LEAST: usize = 32 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a file that are read at a time.
const PIECE: usize = 1 << 20;
/// Rows that are interleaved.
const SIXTEEN: usize = 16;
/// Bytes of a cache line, at which matrices best begin.
const LINE: usize = 64;

/// A file's content in huge pages.
pub(crate) struct HugePages {
    map: MmapMut,
    /// Where the content begins.
    start: usize,
    len: usize,
    /// Those whose rows are interleaved, in the order of the file.
    matrices: Vec<FileMatrix>,
}

/// A matrix in a file, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileMatrix {
    /// Its bytes.
    pub(crate) range: Range<usize>,
    pub(crate) format: WeightFormat,
    pub(crate) columns: usize,
}

impl FileMatrix {
    /// Bytes of sixteen rows.
    fn sixteen(&self) -> usize {
        SIXTEEN * self.format.bytes(self.columns)
    }
}

impl HugePages {
    /// Reads a file of `len` bytes, and brings some of its matrices into [`Layout::Interleaved`]; `None` where it is small, the system has no
    /// such pages to give, less than twice the memory is free, or the file cannot be read. `LAYERSCOPE_HUGE_PAGES=off` leaves
    /// every file where it is.
    pub(super) fn read(file: &File, len: usize, mut matrices: Vec<FileMatrix>) -> Option<Self> {
        let free = crate::memory::available_memory()?;
        if len < LEAST || !available() || free / 2 < len as u64 {
            return None;
        }
        matrices.sort_unstable_by_key(|matrix| matrix.range.start);
        // A damaged file may have them one in another.
        let mut end = 0;
        matrices.retain(|matrix| {
            let follows = matrix.range.start >= end && matrix.range.end <= len;
            if follows {
                end = matrix.range.end;
            }
            follows
        });
        let map = MmapMut::map_anon(len.checked_add(HUGE_PAGE + LINE)?).ok()?;
        advise(&map).ok()?;
        crate::placement::interleave_over_nodes(&map);
        let first = matrices.first().map_or(0, |matrix| matrix.range.start);
        let start = map.as_ptr().align_offset(HUGE_PAGE) + first.next_multiple_of(LINE) - first;
        let mut pages = Self { map, start, len, matrices };
        read_pieces(file, &pages.matrices, &mut pages.map[start..][..len]).ok()?;
        Some(pages)
    }

    /// Bytes of the file, and their order; `None` where they are part of interleaved rows, so that they must be read from the file.
    pub(super) fn layout(&self, range: &Range<usize>) -> Option<Layout> {
        let behind = self.matrices.partition_point(|matrix| matrix.range.end <= range.start);
        match self.matrices.get(behind).filter(|matrix| matrix.range.start < range.end) {
            None => Some(Layout::Rows),
            Some(matrix) => {
                let (start, sixteen) = (matrix.range.start, matrix.sixteen());
                let whole = range.start >= start && (range.start - start).is_multiple_of(sixteen);
                let to_the_end = range.end == matrix.range.end;
                let ends = to_the_end || range.end < matrix.range.end && range.len().is_multiple_of(sixteen);
                (whole && ends).then_some(Layout::Interleaved)
            }
        }
    }

    /// The bytes of the file, each matrix in its order.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map[self.start..][..self.len]
    }

    /// The file as it is, where no matrix is in another order.
    pub(super) fn as_file(&self) -> Option<&[u8]> {
        self.matrices.is_empty().then(|| self.bytes())
    }
}

/// A part of a file that is read at a time, and the matrix whose whole rows it has.
struct Piece<'a> {
    start: usize,
    to: &'a mut [u8],
    matrix: Option<&'a FileMatrix>,
}

/// Reads a file with as many threads as the pool has, but outside the pool: its only thread may be waiting for this file. The system
/// zeroes a huge page when it is first written, so several threads are faster.
fn read_pieces(file: &File, matrices: &[FileMatrix], to: &mut [u8]) -> io::Result<()> {
    let pieces = Mutex::new(pieces(matrices, to).into_iter());
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || {
        let mut rows = vec![];
        while let Some(Piece { start, to, matrix }) = next() {
            let Some(FileMatrix { format, columns, .. }) = matrix else {
                read_at(file, to, start)?;
                continue;
            };
            rows.resize(to.len(), 0);
            read_at(file, &mut rows, start)?;
            format.interleave(*columns, &rows, to);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let start = |_| Builder::new().spawn_scoped(scope, read);
        let threads: Vec<ScopedJoinHandle<'_, io::Result<()>>> =
            (0..rayon::current_num_threads()).map(start).collect::<io::Result<_>>()?;
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })
}

/// All of a file: matrices in pieces of whole sixteens of rows, with the rest of rows in the last one, and what is between them.
fn pieces<'a>(matrices: &'a [FileMatrix], mut to: &'a mut [u8]) -> Vec<Piece<'a>> {
    let (mut pieces, mut start, all) = (vec![], 0, to.len());
    let mut cut = |len: usize, matrix: Option<&'a FileMatrix>, at_once: usize| {
        let end = start + len;
        while start < end {
            let left = end - start;
            let here = if left < 2 * at_once { left } else { at_once };
            let (piece, behind) = std::mem::take(&mut to).split_at_mut(here);
            to = behind;
            pieces.push(Piece { start, to: piece, matrix });
            start += here;
        }
        start
    };
    let mut end = 0;
    for matrix in matrices {
        cut(matrix.range.start - end, None, PIECE);
        let sixteen = matrix.sixteen();
        end = cut(matrix.range.len(), Some(matrix), (PIECE / sixteen).max(1) * sixteen);
    }
    cut(all - end, None, PIECE);
    pieces
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

    /// A file of so many bytes, and what is in it.
    fn file(len: usize) -> (File, Vec<u8>) {
        let mut file = tempfile::tempfile().expect("a file");
        let content: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        file.write_all(&content).expect("written");
        (file, content)
    }

    #[test]
    fn a_large_file_is_read_whole_and_a_small_one_is_left() {
        let (file, content) = file(LEAST + 12_345);
        if available() {
            let pages = HugePages::read(&file, content.len(), vec![]).expect("huge pages");
            assert!(pages.as_file() == Some(&content[..]));
            assert_eq!(pages.bytes().as_ptr().align_offset(HUGE_PAGE), 0);
        }
        assert!(HugePages::read(&file, LEAST - 1, vec![]).is_none(), "small");
        assert!(HugePages::read(&file, content.len() + 1, vec![]).is_none(), "longer than the file");
    }

    #[test]
    fn rows_of_matrices_are_interleaved_and_all_else_stays() {
        let (file, content) = file(LEAST + 12_345);
        if !available() {
            return;
        }
        let (format, columns) = (WeightFormat::Q8_0, 1024);
        let row = format.bytes(columns);
        let matrix =
            |start: usize, rows: usize| FileMatrix { range: start..start + rows * row, format, columns };
        let first = matrix(1_000_032, 5 * SIXTEEN + 3);
        let second = matrix(first.range.end, 1234 * SIXTEEN);
        let third = matrix(second.range.end + 320, 5);
        // One within another, and one beyond the end, are left.
        let damaged = [matrix(first.range.start + row, SIXTEEN), matrix(content.len() - row, SIXTEEN)];
        let mut matrices = vec![third.clone(), second.clone(), first.clone()];
        matrices.extend(damaged);
        let pages = HugePages::read(&file, content.len(), matrices).expect("huge pages");
        let mut expected = content;
        for FileMatrix { range, .. } in [&first, &second, &third] {
            let rows = expected[range.clone()].to_vec();
            format.interleave(columns, &rows, &mut expected[range.clone()]);
        }
        assert!(pages.bytes() == expected && pages.as_file().is_none());
        assert_eq!(pages.bytes()[first.range.start..].as_ptr().align_offset(LINE), 0);
        let Range { start, end } = first.range;
        let interleaved = [start..end, start + SIXTEEN * row..end, start..start + 2 * SIXTEEN * row];
        assert!(interleaved.iter().all(|range| pages.layout(range) == Some(Layout::Interleaved)));
        let cut = [start..end - row, start + row..end, start - 1..end, start..end + 1];
        assert!(cut.iter().all(|range| pages.layout(range).is_none()));
        assert_eq!(pages.layout(&(0..start)), Some(Layout::Rows));
        assert_eq!(pages.layout(&(second.range.end..third.range.start)), Some(Layout::Rows));
    }

    #[test]
    fn advice_leaves_a_vector_as_it_is() {
        let mut numbers = Vec::with_capacity(LEAST);
        advise_for(&mut numbers);
        numbers.extend((0..1000u32).map(f64::from));
        assert!(numbers.iter().zip(0..).all(|(number, index)| *number == f64::from(index)));
    }
}
