//! The bytes of a table for the Parquet reader, which turns errors of the system into words: they are kept here.

use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use layerscope_files::Source;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// An open file. Clones share it; each reader has a position of its own.
#[derive(Debug, Clone)]
pub(super) struct TableBytes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: Source,
    length: u64,
    failure: Mutex<Option<io::Error>>,
}

impl TableBytes {
    pub(super) fn new(file: Source) -> io::Result<Self> {
        let length = file.size()?;
        Ok(Self(Arc::new(Shared { file, length, failure: Mutex::default() })))
    }

    /// The last error of the system while reading.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Length for TableBytes {
    fn len(&self) -> u64 {
        self.0.length
    }
}

impl ChunkReader for TableBytes {
    type T = BufReader<Reader>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(Reader { bytes: self.clone(), position: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = Vec::with_capacity(length);
        let reader = Reader { bytes: self.clone(), position: start };
        match reader.take(length as u64).read_to_end(&mut bytes)? {
            read if read == length => Ok(bytes.into()),
            read => Err(ParquetError::EOF(format!("it ends {} bytes early", length - read))),
        }
    }
}

/// Reads on from a position.
pub(super) struct Reader {
    bytes: TableBytes,
    position: u64,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Shared { file, failure, .. } = &*self.bytes.0;
        let read = file.read_at(buffer, self.position).inspect_err(|error| {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy(error));
        })?;
        self.position += read as u64;
        Ok(read)
    }
}

/// The same error of the system.
fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_error_of_the_system_is_kept() {
        // A folder opens and cannot be read.
        let folder = tempfile::tempdir().expect("a folder");
        let bytes =
            TableBytes::new(Source::Disk(File::open(folder.path()).expect("open"))).expect("a length");
        assert!(bytes.take_failure().is_none());
        assert!(bytes.get_bytes(0, 4).is_err());
        assert_eq!(bytes.take_failure().map(|error| error.kind()), Some(io::ErrorKind::IsADirectory));
        assert!(bytes.take_failure().is_none());
    }
}
