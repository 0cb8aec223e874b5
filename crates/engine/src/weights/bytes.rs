//! The bytes of a weight file: mapped, so that weights are read where they are, or in memory.

use super::huge_pages::{FileMatrix, HugePages};
use super::mapped::{FileState, MappedFile};
use crate::{Error, Result};
use layerscope_kernels::matmul::Layout;
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

    /// Reads a mapped file into huge pages, where that can be, so that each decode step reads it faster; rows of these matrices are then
    /// interleaved ([`Layout::Interleaved`]). Only the first call reads; others wait for it.
    pub(crate) fn copy_to_huge_pages(&self, matrices: Vec<FileMatrix>) {
        if let Self::Mapped(file, pages) = self {
            pages.get_or_init(|| HugePages::read(file.file(), file.as_ref().len(), matrices));
        }
    }

    fn pages(&self) -> Option<&HugePages> {
        match self {
            Self::Mapped(_, pages) => pages.get()?.as_ref(),
            Self::InMemory(_) => None,
        }
    }

    /// Where rows are best read, as of now.
    pub(super) fn place(&self, rows: &Range<usize>) -> Where {
        self.pages().and_then(|pages| pages.layout(rows)).map_or(Where::File, Where::HugePages)
    }

    /// Rows at a place, and their order.
    pub(super) fn rows(&self, rows: &Range<usize>, place: Where) -> (&[u8], Layout) {
        match (place, self.pages()) {
            (Where::HugePages(layout), Some(pages)) => (&pages.bytes()[rows.clone()], layout),
            _ => (&self.as_ref()[rows.clone()], Layout::Rows),
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
