//! The bytes of a weight file: mapped, so that weights are read where they are, or in memory.

use super::huge_pages::HugePages;
use super::mapped::{FileState, MappedFile};
use crate::{Error, Result};
use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// A whole file.
pub(crate) enum FileBytes {
    /// And read into huge pages, once that was asked for and can be.
    Mapped(MappedFile, OnceLock<Option<HugePages>>),
    InMemory(Cow<'static, [u8]>),
}

impl FileBytes {
    pub(super) fn map(path: &Path) -> Result<Self> {
        let file = layerscope_files::open(path).map_err(|e| Error::io("open the model", path, &e))?;
        Ok(Self::Mapped(MappedFile::map(path, file)?, OnceLock::new()))
    }

    /// Reads a mapped file into huge pages, where that can be, so that each decode step reads it faster. Only the first call reads;
    /// others wait for it.
    pub(crate) fn copy_to_huge_pages(&self) {
        if let Self::Mapped(file, pages) = self {
            pages.get_or_init(|| HugePages::read(file.file(), file.as_ref().len()));
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
            Self::Mapped(file, pages) => match pages.get() {
                Some(Some(pages)) => pages.as_ref(),
                _ => file.as_ref(),
            },
            Self::InMemory(bytes) => bytes,
        }
    }
}
