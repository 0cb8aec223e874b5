//! Fetches one file: takes its lock, resumes a partial download, verifies the checksum and links it into its snapshot.

use super::cache::{Repository, make_parent};
use super::client::{Client, RequestError, Tries};
use super::digest::Running;
use super::listing::RemoteFile;
use super::refusal;
use crate::reference::HubReference;
use crate::text::bytes;
use crate::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// After this many bytes the count of failed attempts is reset.
const GOOD_STRETCH: u64 = 1 << 20;

/// The file to fetch.
pub(crate) struct Fetch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repository: &'a Repository,
    pub(crate) reference: &'a HubReference,
    pub(crate) commit: &'a str,
    pub(crate) file: &'a RemoteFile,
    pub(crate) interrupted: &'a AtomicBool,
}

/// Progress of a fetch.
pub(crate) enum Step {
    /// This many of the file's bytes are on disk.
    Bytes(u64),
    /// Another process is fetching the file.
    Waits,
}

impl Fetch<'_> {
    /// Fetches the file, or the missing part of it, and links it into the snapshot of its commit.
    pub(crate) fn run(&self, tell: &mut dyn FnMut(Step)) -> Result<()> {
        let _lock = self.repository.lock(self.file, self.interrupted, &mut || tell(Step::Waits))?;
        // Another commit has the same file, or another process has just fetched it.
        if !self.repository.has_blob(self.file) {
            let path = self.repository.partial(self.file);
            make_parent(&path)?;
            let mut partial = Partial::open(&path, self.file, self.interrupted)?;
            self.complete(&mut partial, tell)?;
            self.check(partial)?;
            let blob = self.repository.blob(self.file);
            std::fs::rename(&path, &blob).map_err(|e| Error::io("move the file to", &blob, &e))?;
        }
        self.repository.link(self.commit, self.file)
    }

    fn complete(&self, partial: &mut Partial<'_>, tell: &mut dyn FnMut(Step)) -> Result<()> {
        let mut tries = Tries::default();
        while partial.length < self.file.bytes {
            let before = partial.length;
            let Some(error) = self.go_on(partial, tell)? else { continue };
            if partial.length >= before + GOOD_STRETCH {
                tries.forget();
            }
            if !tries.wait(&error, self.interrupted)? {
                return Err(refusal::sentence(
                    &error,
                    &self.client.hub,
                    self.reference,
                    Some(&self.file.name),
                ));
            }
        }
        Ok(())
    }

    /// Fetches the rest; returns the error that stopped it early.
    fn go_on(&self, partial: &mut Partial<'_>, tell: &mut dyn FnMut(Step)) -> Result<Option<RequestError>> {
        let from = partial.length;
        let response = match self.client.file(
            &self.reference.id,
            self.commit,
            &self.file.name,
            from,
            self.interrupted,
        ) {
            Ok(response) => response,
            Err(error) => return Ok(Some(error)),
        };
        // Without range support, the server sends the file from the start. Another range is an error.
        match (from, response.head.status.as_u16()) {
            (0, _) => {}
            (_, 206) if response.header("content-range").is_some_and(|range| begins_at(range, from)) => {}
            (_, 206) => return Ok(Some(RequestError::invalid_response("another part of the file"))),
            _ => partial.begin_anew()?,
        }
        loop {
            match response.next(self.interrupted) {
                Ok(Some(piece)) if partial.length + piece.len() as u64 > self.file.bytes => {
                    partial.begin_anew()?;
                    return Ok(Some(RequestError::invalid_response("more bytes than the file has")));
                }
                Ok(Some(piece)) => partial.append(&piece)?,
                Ok(None) if partial.length < self.file.bytes => {
                    return Ok(Some(RequestError::Broken("it ended early".to_owned())));
                }
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(error)),
            }
            tell(Step::Bytes(partial.length));
        }
    }

    fn check(&self, partial: Partial<'_>) -> Result<()> {
        let (path, is) = (partial.path, partial.finish()?);
        let should = self.file.checksum.hex();
        if is == should {
            return Ok(());
        }
        std::fs::remove_file(path).map_err(|e| Error::io("delete the damaged file", path, &e))?;
        Err(Error::failure(format!(
            "{} of {} arrived damaged and was deleted (its checksum is {is} and should be {should}); fetch it again",
            self.file.name, self.reference.id
        )))
    }
}

/// Whether `Content-Range: bytes 5-9/10` begins at a byte.
fn begins_at(range: &str, from: u64) -> bool {
    let first = range.strip_prefix("bytes ").and_then(|range| range.split('-').next());
    first.and_then(|first| first.trim().parse().ok()) == Some(from)
}

/// The first bytes of a file, on disk, and their digest.
struct Partial<'a> {
    path: &'a Path,
    remote: &'a RemoteFile,
    file: File,
    length: u64,
    digest: Running,
}

impl<'a> Partial<'a> {
    /// Opens the partial file of an earlier fetch, or creates it.
    fn open(path: &'a Path, remote: &'a RemoteFile, interrupted: &AtomicBool) -> Result<Self> {
        let error = |e: std::io::Error| Error::io("open", path, &e);
        let file = layerscope_files::open_with(
            path,
            File::options().read(true).write(true).create(true).truncate(false),
        )
        .map_err(error)?;
        let there = file.metadata().map_err(error)?.len();
        let digest = remote.checksum.digest(remote.bytes);
        let mut partial = Self { path, remote, file, length: 0, digest };
        if there > remote.bytes {
            partial.begin_anew()?;
        }
        partial.read_what_is_there(interrupted)?;
        Ok(partial)
    }

    fn read_what_is_there(&mut self, interrupted: &AtomicBool) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match self.file.read(&mut buffer).map_err(|e| Error::io("read", self.path, &e))? {
                0 => return Ok(()),
                read => {
                    self.digest.update(&buffer[..read]);
                    self.length += read as u64;
                }
            }
        }
    }

    fn begin_anew(&mut self) -> Result<()> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|e| Error::io("empty", self.path, &e))?;
        self.length = 0;
        self.digest = self.remote.checksum.digest(self.remote.bytes);
        Ok(())
    }

    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|e| self.write_error(&e))?;
        self.digest.update(piece);
        self.length += piece.len() as u64;
        Ok(())
    }

    /// Syncs the file to disk and returns the checksum.
    fn finish(self) -> Result<String> {
        self.file.sync_data().map_err(|e| self.write_error(&e))?;
        Ok(self.digest.hex())
    }

    fn write_error(&self, error: &std::io::Error) -> Error {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
        if !full.contains(&error.kind()) {
            return Error::io("write", self.path, error);
        }
        let folder = self.path.parent().unwrap_or(self.path);
        Error::failure(format!(
            "no room for {} in {} ({error}); {} of {} are kept: make room and fetch it again, it goes on from there",
            self.remote.name,
            folder.display(),
            bytes(self.length),
            bytes(self.remote.bytes)
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::begins_at;

    #[test]
    fn ranges_are_read() {
        assert!(begins_at("bytes 5-9/10", 5));
        assert!(!begins_at("bytes 5-9/10", 6));
        assert!(!begins_at("5-9/10", 5));
        assert!(!begins_at("bytes */10", 0));
    }
}
