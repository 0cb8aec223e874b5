//! Writing whole files.

use crate::{Error, Result};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes a temporary file beside `path` and renames it, so that a full disk leaves no incomplete file.
///
/// # Errors
/// [`Error::Failure`] where it cannot be written; an existing file is kept.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let written = layerscope_files::create(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&unfinished);
        Error::failure(format!("cannot write {}: {error}", path.display()))
    })
}
