//! The SHA-256 of a model's files.

use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// A hash, in hexadecimal, that is computed when it is first asked for.
#[derive(Clone)]
pub(super) struct FileHash(Arc<LazyLock<String, Box<dyn FnOnce() -> String + Send>>>);

impl FileHash {
    /// What `compute` gives, once that is wanted.
    pub(super) fn later(compute: impl FnOnce() -> String + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(compute))))
    }

    pub(super) fn get(&self) -> &str {
        &self.0
    }
}

/// Of the pieces that `pieces` passes to its argument, one after the other.
pub(super) fn of(pieces: impl FnOnce(&mut dyn FnMut(&[u8]))) -> String {
    let mut digest = Sha256::new();
    pieces(&mut |piece| digest.update(piece));
    hexadecimal(digest)
}

/// Of a file.
pub(super) fn of_file(path: &Path) -> Result<String> {
    let error = |e: std::io::Error| Error::io("read the weights", path, &e);
    let mut file = layerscope_files::open(path).map_err(error)?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(error)? {
            0 => return Ok(hexadecimal(digest)),
            read => digest.update(&buffer[..read]),
        }
    }
}

fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
