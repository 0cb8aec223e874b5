//! The bytes of a weight file: mapped, so that weights are read where they are, or in memory.

use super::huge_pages::{FileMatrix, HugePages};
use super::mapped::{FileState, MappedFile};
use super::place::RowOrder;
use crate::{Error, Result};
use layerscope_kernels::matmul::{Layout, WeightFormat, Weights};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// A whole file.
pub(crate) enum FileBytes {
    /// And read into huge pages, once that was asked for and can be.
    Mapped(MappedFile, OnceLock<Option<HugePages>>),
    InMemory(Cow<'static, [u8]>),
}

/// Where bytes of a file are best read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Where {
    /// In the file as it is.
    File,
    /// In huge pages.
    HugePages(Layout),
}

impl FileBytes {
    pub(super) fn map(path: &Path) -> Result<Self> {
        let file = layerscope_files::open(path).map_err(|e| Error::io("open the model", path, &e))?;
        Ok(Self::Mapped(MappedFile::map(path, file)?, OnceLock::new()))
    }

    /// Reads a mapped file, whose first `header` bytes hold no weights, into huge pages, where that can be, so that each decode step
    /// reads it faster; these matrices are then in the order that they name. Only the first call reads; others wait for it.
    pub(crate) fn copy_to_huge_pages(&self, header: usize, matrices: Vec<FileMatrix>) {
        if let Self::Mapped(file, pages) = self {
            pages.get_or_init(|| HugePages::read(file.file(), file.as_ref().len(), header, matrices));
        }
    }

    /// Gives back the memory of so many bytes of a map, from the first on; when they are read again, they come from the file.
    pub(super) fn release(&self, header: usize) {
        if let Self::Mapped(file, _) = self {
            file.release(header);
        }
    }

    fn pages(&self) -> Option<&HugePages> {
        match self {
            Self::Mapped(_, pages) => pages.get()?.as_ref(),
            Self::InMemory(_) => None,
        }
    }

    /// Where rows are best read, as of now, if they are wanted in this order. [`Where::File`] has them in the file's order.
    pub(super) fn place(&self, rows: &Range<usize>, order: RowOrder) -> Where {
        self.pages().and_then(|pages| pages.layout(rows, order)).map_or(Where::File, Where::HugePages)
    }

    /// Rows at a place, and their order.
    pub(super) fn rows(&self, rows: &Range<usize>, place: Where) -> (&[u8], Layout) {
        match (place, self.pages()) {
            (Where::HugePages(layout), Some(pages)) => (&pages.bytes()[rows.clone()], layout),
            _ => (&self.as_ref()[rows.clone()], Layout::Rows),
        }
    }

    /// Rows of so many columns in the file's order, from huge pages where they are there.
    pub(super) fn as_in_file(
        &self,
        rows: &Range<usize>,
        format: WeightFormat,
        columns: usize,
    ) -> Cow<'_, [u8]> {
        let (data, layout) = self.rows(rows, self.place(rows, RowOrder::All));
        let rows = data.len().checked_div(format.bytes(columns)).unwrap_or(0);
        Weights { data, format, rows, columns, layout }.in_rows()
    }

    /// Passes the whole file to `take`, piece by piece, without touching the map's pages.
    pub(crate) fn for_each_piece(&self, mut take: impl FnMut(&[u8])) {
        match self {
            Self::Mapped(file, _) => match self.pages().and_then(HugePages::as_file) {
                Some(bytes) => take(bytes),
                None => file.for_each_piece(take),
            },
            Self::InMemory(bytes) => take(bytes),
        }
    }

    /// The file as it was when it was mapped.
    pub(super) fn state(&self) -> Option<&FileState> {
        match self {
            Self::Mapped(file, _) => Some(&file.state),
            Self::InMemory(_) => None,
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(file, _) => {
                self.pages().and_then(HugePages::as_file).unwrap_or_else(|| file.as_ref())
            }
            Self::InMemory(bytes) => bytes,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_given_as_in_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let content: Vec<u8> = (0..33 << 20).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(file.path(), &content).expect("written");
        let bytes = FileBytes::map(file.path()).expect("mapped");
        let (format, columns) = (WeightFormat::Q4_1, 576);
        let range = 4096..4096 + 3 * 16 * format.bytes(columns) + 5 * format.bytes(columns);
        let (order, layout) = (RowOrder::All, Layout::Interleaved);
        bytes.copy_to_huge_pages(
            4096,
            vec![FileMatrix { range: range.clone(), format, columns, rows: order, layout }],
        );
        let inside = range.start + 16 * format.bytes(columns)..range.start + 32 * format.bytes(columns);
        let cut = range.start + format.bytes(columns)..range.end;
        for rows in [range, inside, cut] {
            assert!(*bytes.as_in_file(&rows, format, columns) == content[rows.clone()], "{rows:?}");
        }
        let mut read = vec![];
        bytes.for_each_piece(|piece| read.extend_from_slice(piece));
        assert!(read == content);
        let others = 100..1000;
        assert!(*bytes.as_in_file(&others, WeightFormat::F32, 225) == content[others.clone()]);
    }
}
