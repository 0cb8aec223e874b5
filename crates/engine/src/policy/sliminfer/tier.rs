//! Where the KV of prompt blocks is that decode does not read: host memory beside a GPU, else a file.

use crate::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The folder of the spill file, where it is not to be the system's for temporary files.
const FOLDER_VARIABLE: &str = "LAYERSCOPE_SPILL_DIR";

/// A prompt block of a layer.
pub(super) type Key = (usize, usize);

/// A place that keeps records; each is written once and may be read often.
pub(super) trait Tier: Send {
    /// # Errors
    /// [`Error::Failure`] where there is no room.
    fn write(&mut self, key: Key, record: &[u8]) -> Result<()>;

    /// Appends the record to `bytes`.
    ///
    /// # Errors
    /// [`Error::Failure`] where it is not there, or not what was written.
    fn read(&mut self, key: Key, bytes: &mut Vec<u8>) -> Result<()>;
}

/// Records in memory.
#[derive(Default)]
pub(super) struct HostMemory(HashMap<Key, Box<[u8]>>);

impl Tier for HostMemory {
    fn write(&mut self, key: Key, record: &[u8]) -> Result<()> {
        self.0.insert(key, record.into());
        Ok(())
    }

    fn read(&mut self, key: Key, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend_from_slice(self.0.get(&key).ok_or_else(|| lost(key, "it is not in host memory"))?);
        Ok(())
    }
}

/// Records in a file without a name, which is gone with the process; each is checked when it is read.
pub(super) struct SpillFile {
    file: File,
    folder: PathBuf,
    end: u64,
    /// Where each begins, its length and its checksum.
    records: HashMap<Key, (u64, usize, u32)>,
}

impl SpillFile {
    /// In the folder of `LAYERSCOPE_SPILL_DIR`, or the system's for temporary files.
    ///
    /// # Errors
    /// [`Error::Input`] naming the folder where no file can be made in it.
    pub(super) fn create() -> Result<Self> {
        let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(std::env::temp_dir, PathBuf::from);
        let file = tempfile::tempfile_in(&folder).map_err(|error| {
            Error::input(format!(
                "cannot make a file for KV in {}: {error}; set {FOLDER_VARIABLE} to a folder that can be written to",
                folder.display()
            ))
        })?;
        Ok(Self::of(file, &folder))
    }

    pub(super) fn of(file: File, folder: &Path) -> Self {
        Self { file, folder: folder.to_owned(), end: 0, records: HashMap::new() }
    }
}

impl Tier for SpillFile {
    fn write(&mut self, key: Key, record: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.write_all(record));
        written.map_err(|error| {
            Error::failure(format!(
                "cannot write KV to a file in {}: {error}; make room there, set {FOLDER_VARIABLE} to another folder, or \
                 use the policy without +read",
                self.folder.display()
            ))
        })?;
        self.records.insert(key, (self.end, record.len(), crc32fast::hash(record)));
        self.end += record.len() as u64;
        Ok(())
    }

    fn read(&mut self, key: Key, bytes: &mut Vec<u8>) -> Result<()> {
        let &(start, len, checksum) =
            self.records.get(&key).ok_or_else(|| lost(key, "it was never written"))?;
        let first = bytes.len();
        bytes.resize(first + len, 0);
        let read =
            self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.read_exact(&mut bytes[first..]));
        read.map_err(|error| lost(key, &error.to_string()))?;
        if crc32fast::hash(&bytes[first..]) == checksum {
            Ok(())
        } else {
            Err(lost(key, "its bytes have changed"))
        }
    }
}

fn lost((layer, block): Key, why: &str) -> Error {
    Error::failure(format!(
        "KV of prompt block {block} at layer {layer} does not come back ({why}); no token was made without it: generate again"
    ))
}
