//! Memory in huge pages. A decode step reads all weights once; from pages of 4 KiB, as the system maps files, it waits for the
//! translation of their addresses.

use super::mapped::read_at;
use super::place::RowOrder;
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
    /// The place of the file's first byte.
    start: usize,
    /// So many first bytes of the file were not read.
    skipped: usize,
    len: usize,
    /// Those that are not as in the file, in the order of the file.
    matrices: Vec<FileMatrix>,
}

/// A matrix in a file, row by row, and what it becomes in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileMatrix {
    /// Its bytes.
    pub(crate) range: Range<usize>,
    pub(crate) format: WeightFormat,
    pub(crate) columns: usize,
    /// The order of its rows in the file: [`RowOrder::All`], or [`RowOrder::InPairs`] with an even number of rows for each head.
    pub(crate) rows: RowOrder,
    pub(crate) layout: Layout,
}

impl FileMatrix {
    /// Bytes of sixteen rows.
    fn sixteen(&self) -> usize {
        SIXTEEN * self.format.bytes(self.columns)
    }

    /// Bytes of the rows of one of `heads` heads.
    fn head(&self, heads: usize) -> usize {
        self.range.len() / heads
    }

    /// The fewest bytes that can be reordered without the others: whole heads, and whole sixteens of interleaved rows.
    fn unit(&self) -> usize {
        let interleaved = match self.layout {
            Layout::Rows => self.format.bytes(self.columns),
            Layout::Interleaved => self.sixteen(),
        };
        match self.rows {
            RowOrder::InPairs { heads } => least_common_multiple(self.head(heads), interleaved),
            _ => interleaved,
        }
    }

    /// Brings whole units, or the last rows, into their order.
    fn arrange(&self, from: &[u8], ordered: &mut Vec<u8>, to: &mut [u8]) {
        let row = self.format.bytes(self.columns);
        let from = match self.rows {
            RowOrder::InPairs { heads } => {
                let (rows, heads) = (from.len() / row, from.len() / self.head(heads));
                let sources = (0..rows).map(|at| RowOrder::InPairs { heads }.source(at, rows));
                ordered.clear();
                sources.for_each(|source| ordered.extend_from_slice(&from[source * row..][..row]));
                &ordered[..]
            }
            _ => from,
        };
        match self.layout {
            Layout::Rows => to.copy_from_slice(from),
            Layout::Interleaved => self.format.interleave(self.columns, from, to),
        }
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

impl HugePages {
    /// Reads a file of `len` bytes, and brings some of its matrices into another order; `None` where it is small, the system has no
    /// such pages to give, less than twice the memory is free, or the file cannot be read. `LAYERSCOPE_HUGE_PAGES=off` leaves
    /// every file where it is.
    ///
    /// The first `header` bytes hold no weights. They are read only where the whole file stays as it is.
    pub(super) fn read(
        file: &File,
        len: usize,
        header: usize,
        mut matrices: Vec<FileMatrix>,
    ) -> Option<Self> {
        let free = crate::memory::available_memory()?;
        if len < LEAST || !available() || free / 2 < len as u64 {
            return None;
        }
        matrices.sort_unstable_by_key(|matrix| matrix.range.start);
        let skipped = if matrices.is_empty() { 0 } else { header.min(len) };
        // A damaged file may have them one in another.
        let mut end = skipped;
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
        let mut pages = Self { map, start, skipped, len, matrices };
        read_pieces(file, &pages.matrices, skipped, &mut pages.map[start + skipped..start + len]).ok()?;
        Some(pages)
    }

    /// The layout of these bytes of the file, if their rows are here in the order that is wanted; `None` where they must be read from the
    /// file.
    pub(super) fn layout(&self, range: &Range<usize>, rows: RowOrder) -> Option<Layout> {
        if range.start < self.skipped {
            return None;
        }
        let behind = self.matrices.partition_point(|matrix| matrix.range.end <= range.start);
        match self.matrices.get(behind).filter(|matrix| matrix.range.start < range.end) {
            None => (rows == RowOrder::All).then_some(Layout::Rows),
            Some(matrix) if matrix.rows != rows => None,
            Some(matrix) if rows != RowOrder::All => (matrix.range == *range).then_some(matrix.layout),
            Some(matrix) => {
                let (start, sixteen) = (matrix.range.start, matrix.sixteen());
                let whole = range.start >= start && (range.start - start).is_multiple_of(sixteen);
                let to_the_end = range.end == matrix.range.end;
                let ends = to_the_end || range.end < matrix.range.end && range.len().is_multiple_of(sixteen);
                (whole && ends).then_some(Layout::Interleaved)
            }
        }
    }

    /// The bytes of the file, each matrix in its order; zeros for those that were not read.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map[self.start..][..self.len]
    }

    /// The file as it is, where all of it was read and no matrix is in another order.
    pub(super) fn as_file(&self) -> Option<&[u8]> {
        (self.skipped == 0 && self.matrices.is_empty()).then(|| self.bytes())
    }
}

/// A part of a file that is read at a time, and the matrix whose whole rows it has.
struct Piece<'a> {
    start: usize,
    to: &'a mut [u8],
    matrix: Option<&'a FileMatrix>,
}

/// Reads a file from `start` on with as many threads as the pool has, but outside the pool: its only thread may be waiting for this file. The system
/// zeroes a huge page when it is first written, so several threads are faster.
fn read_pieces(file: &File, matrices: &[FileMatrix], start: usize, to: &mut [u8]) -> io::Result<()> {
    let pieces = Mutex::new(pieces(matrices, start, to).into_iter());
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || {
        let (mut rows, mut ordered) = (vec![], vec![]);
        while let Some(Piece { start, to, matrix }) = next() {
            let Some(matrix) = matrix else {
                read_at(file, to, start)?;
                continue;
            };
            rows.resize(to.len(), 0);
            read_at(file, &mut rows, start)?;
            matrix.arrange(&rows, &mut ordered, to);
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

/// All of a file from `start` on: matrices in pieces of whole units, with the rest of rows in the last one, and what is between them.
fn pieces<'a>(matrices: &'a [FileMatrix], mut start: usize, mut to: &'a mut [u8]) -> Vec<Piece<'a>> {
    let (mut pieces, mut end, all) = (vec![], start, start + to.len());
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
    for matrix in matrices {
        cut(matrix.range.start - end, None, PIECE);
        let unit = matrix.unit();
        end = cut(matrix.range.len(), Some(matrix), (PIECE / unit).max(1) * unit);
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
            let pages = HugePages::read(&file, content.len(), 4096, vec![]).expect("huge pages");
            assert!(pages.as_file() == Some(&content[..]));
            assert_eq!(pages.bytes().as_ptr().align_offset(HUGE_PAGE), 0);
        }
        assert!(HugePages::read(&file, LEAST - 1, 0, vec![]).is_none(), "small");
        assert!(HugePages::read(&file, content.len() + 1, 0, vec![]).is_none(), "longer than the file");
    }

    #[test]
    fn rows_of_matrices_are_interleaved_and_all_else_stays() {
        let (rows, layout) = (RowOrder::All, Layout::Interleaved);
        let (file, content) = file(LEAST + 12_345);
        if !available() {
            return;
        }
        let (format, columns) = (WeightFormat::Q8_0, 1024);
        let row = format.bytes(columns);
        let matrix = |start: usize, count: usize| FileMatrix {
            range: start..start + count * row,
            format,
            columns,
            rows,
            layout,
        };
        let first = matrix(1_000_032, 5 * SIXTEEN + 3);
        let second = matrix(first.range.end, 1234 * SIXTEEN);
        let third = matrix(second.range.end + 320, 5);
        // One within another, and one beyond the end, are left.
        let damaged = [matrix(first.range.start + row, SIXTEEN), matrix(content.len() - row, SIXTEEN)];
        let header = 12_321;
        let mut matrices = vec![third.clone(), second.clone(), first.clone()];
        matrices.extend(damaged);
        let pages = HugePages::read(&file, content.len(), header, matrices).expect("huge pages");
        let mut expected = content;
        expected[..header].fill(0);
        for FileMatrix { range, .. } in [&first, &second, &third] {
            let rows = expected[range.clone()].to_vec();
            format.interleave(columns, &rows, &mut expected[range.clone()]);
        }
        assert!(pages.bytes() == expected && pages.as_file().is_none());
        assert_eq!(pages.bytes()[first.range.start..].as_ptr().align_offset(LINE), 0);
        let Range { start, end } = first.range;
        let interleaved = [start..end, start + SIXTEEN * row..end, start..start + 2 * SIXTEEN * row];
        assert!(interleaved.iter().all(|range| pages.layout(range, rows) == Some(Layout::Interleaved)));
        let cut = [start..end - row, start + row..end, start - 1..end, start..end + 1];
        assert!(cut.iter().all(|range| pages.layout(range, rows).is_none()));
        assert_eq!(pages.layout(&(header..start), rows), Some(Layout::Rows));
        assert_eq!(pages.layout(&(header - 1..start), rows), None);
        assert_eq!(pages.layout(&(second.range.end..third.range.start), rows), Some(Layout::Rows));
    }

    #[test]
    fn rows_in_pairs_come_out_in_rotate_half_order() {
        let (file, content) = file(LEAST + 12_345);
        if !available() {
            return;
        }
        let (format, columns) = (WeightFormat::Q8_0, 512);
        let row = format.bytes(columns);
        // Heads of whole sixteens of rows, of others, and more of them than are read at a time.
        let shapes = [(4, 64, Layout::Interleaved), (3, 10, Layout::Interleaved), (70, 128, Layout::Rows)];
        let mut start = 4096;
        let matrices = shapes.map(|(heads, head_dim, layout)| {
            let range = start..start + heads * head_dim * row;
            start = range.end + 64;
            FileMatrix { range, format, columns, rows: RowOrder::InPairs { heads }, layout }
        });
        let pages = HugePages::read(&file, content.len(), 0, matrices.to_vec()).expect("huge pages");
        let mut expected = content.clone();
        for (FileMatrix { range, rows, layout, .. }, (heads, head_dim, _)) in matrices.iter().zip(shapes) {
            let count = heads * head_dim;
            let ordered: Vec<u8> = (0..count)
                .flat_map(|at| &content[range.start + rows.source(at, count) * row..][..row])
                .copied()
                .collect();
            match layout {
                Layout::Rows => expected[range.clone()].copy_from_slice(&ordered),
                Layout::Interleaved => format.interleave(columns, &ordered, &mut expected[range.clone()]),
            }
            assert_eq!(pages.layout(range, *rows), Some(*layout));
            let others = [RowOrder::All, RowOrder::InPairs { heads: heads + 1 }];
            assert!(others.iter().all(|rows| pages.layout(range, *rows).is_none()));
            assert!(pages.layout(&(range.start..range.end - row), *rows).is_none());
        }
        assert!(pages.bytes() == expected && pages.as_file().is_none());
        let between = matrices[0].range.end..matrices[1].range.start;
        assert_eq!(pages.layout(&between, RowOrder::All), Some(Layout::Rows));
        assert_eq!(pages.layout(&between, RowOrder::InPairs { heads: 1 }), None);
    }

    #[test]
    fn advice_leaves_a_vector_as_it_is() {
        let mut numbers = Vec::with_capacity(LEAST);
        advise_for(&mut numbers);
        numbers.extend((0..1000u32).map(f64::from));
        assert!(numbers.iter().zip(0..).all(|(number, index)| *number == f64::from(index)));
    }
}
