//! The bytes of a weight file: mapped, so that weights are read where they are and nothing is copied, or in memory.

use super::mapped::{FileState, MappedFile};
use crate::{Error, Result};
use std::borrow::Cow;
use std::path::Path;

/// A whole file.
pub(super) enum FileBytes {
    Mapped(MappedFile),
    InMemory(Cow<'static, [u8]>),
}

impl FileBytes {
    pub(super) fn map(path: &Path) -> Result<Self> {
        let file = layerscope_files::open(path).map_err(|e| Error::io("open the model", path, &e))?;
        Ok(Self::Mapped(MappedFile::map(path, &file)?))
    }

    /// The file as it was when it was mapped.
    pub(super) fn state(&self) -> Option<&FileState> {
        match self {
            Self::Mapped(file) => Some(&file.state),
            Self::InMemory(_) => None,
        }
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.as_ref(),
            Self::InMemory(bytes) => bytes,
        }
    }
}
