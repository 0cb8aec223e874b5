//! Folders for what can only be read from files.

use std::path::Path;
use tempfile::TempDir;

/// A folder of these files, for as long as the value lives.
pub(crate) fn folder<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for (name, bytes) in files {
        write(folder.path(), name, bytes);
    }
    folder
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).expect("room for a small file");
}
