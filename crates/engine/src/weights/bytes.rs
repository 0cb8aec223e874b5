//! The bytes of a weight file: mapped, so that weights are read where they are and nothing is copied, or in memory.

use crate::{Error, Result};
use memmap2::Mmap;
use std::borrow::Cow;
use std::path::Path;

/// A whole file.
pub(super) enum FileBytes {
    Mapped(Mmap),
    InMemory(Cow<'static, [u8]>),
}

impl FileBytes {
    pub(super) fn map(path: &Path) -> Result<Self> {
        let file = layerscope_files::open(path).map_err(|e| Error::io("open the model", path, &e))?;
        // SAFETY: the map is only read; a file that others shorten meanwhile is the documented risk of mapping.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map the model", path, &e))?;
        Ok(Self::Mapped(map))
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::InMemory(bytes) => bytes,
        }
    }
}
