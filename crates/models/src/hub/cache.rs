//! A repository's folder in the cache, in the layout of `huggingface_hub` (Python): `blobs/CHECKSUM`,
//! `snapshots/COMMIT/FILE` as links to blobs, `refs/BRANCH` with a commit, and locks in `.locks`.

use super::choice::{Choice, choose};
use super::digest::is_hex;
use super::listing::RemoteFile;
use crate::reference::HubReference;
use crate::{Error, Result, checkpoint};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a held lock and an interrupt are checked.
const POLL: Duration = Duration::from_millis(100);

/// One repository in the cache.
pub(crate) struct Repository {
    id: String,
    folder: PathBuf,
    locks: PathBuf,
}

/// Whether a revision is a full commit hash, which never changes.
pub(crate) fn is_commit(revision: &str) -> bool {
    is_hex(revision, 40)
}

impl Repository {
    pub(crate) fn new(cache: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Self { id: id.to_owned(), folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether a commit's file is complete in the cache.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        is_whole(&self.snapshot(commit).join(&file.name), file)
    }

    pub(crate) fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join("blobs").join(file.checksum.hex())
    }

    /// The file of a partial download.
    pub(crate) fn partial(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.incomplete", file.checksum.hex()))
    }

    /// Whether the blob is complete in the cache.
    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        is_whole(&self.blob(file), file)
    }

    pub(crate) fn bytes_to_fetch(&self, file: &RemoteFile) -> u64 {
        if self.has_blob(file) {
            return 0;
        }
        let there = std::fs::metadata(self.partial(file)).map_or(0, |metadata| metadata.len());
        file.bytes.saturating_sub(there)
    }

    /// Free bytes; `None` if the file system does not report them.
    pub(crate) fn free_space(&self) -> Option<u64> {
        let existing = self.folder.ancestors().find(|folder| folder.is_dir())?;
        let space = fs4::statvfs(existing).ok()?;
        (space.total_space() > 0).then(|| space.available_space())
    }

    /// The complete model in the cache; the error names what is missing.
    pub(crate) fn cached(&self, reference: &HubReference) -> std::result::Result<PathBuf, String> {
        let whose = format!("the copy of {}", self.id);
        let snapshot = self
            .commit(&reference.revision)
            .map(|commit| self.snapshot(&commit))
            .filter(|snapshot| snapshot.is_dir())
            .ok_or_else(|| format!("there is no copy of {} at {}", self.id, reference.revision))?;
        match choose(&whose, &reference.wanted, &files(&snapshot)).map_err(|error| error.to_string())? {
            Choice::Gguf(file) => Ok(snapshot.join(file)),
            Choice::Checkpoint => match checkpoint::weights(&snapshot) {
                Ok(_) => Ok(snapshot),
                Err(missing) => Err(format!("{whose} is incomplete ({missing})")),
            },
        }
    }

    /// The commit of a revision at its last fetch.
    fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = layerscope_files::read_text(&self.folder.join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Records the commit of a branch or tag.
    pub(crate) fn set_reference(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        make_parent(&path)?;
        // Renamed into place, so that no other process reads a partial file.
        let new =
            path.with_file_name(format!(".{}-{:?}.new", std::process::id(), std::thread::current().id()));
        std::fs::write(&new, commit)
            .and_then(|()| std::fs::rename(&new, &path))
            .map_err(|e| Error::io("note the commit in", &path, &e))
    }

    /// Makes a commit's file a link to its blob.
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<()> {
        let link = self.snapshot(commit).join(&file.name);
        make_parent(&link)?;
        // Replaces a link to a deleted blob.
        let _ = std::fs::remove_file(&link);
        let up = "../".repeat(2 + file.name.matches('/').count());
        let target = format!("{up}blobs/{}", file.checksum.hex());
        match make_link(&target, &self.blob(file), &link) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io("make", &link, &e)),
            _ => Ok(()),
        }
    }

    /// The lock of a blob, held until it is dropped; `None` if the file system has no locks. Calls `waits`
    /// once if another process holds it.
    pub(crate) fn lock(
        &self,
        file: &RemoteFile,
        interrupted: &AtomicBool,
        waits: &mut dyn FnMut(),
    ) -> Result<Option<File>> {
        let path = self.locks.join(format!("{}.lock", file.checksum.hex()));
        make_parent(&path)?;
        let lock =
            layerscope_files::open_with(&path, File::options().write(true).create(true).truncate(false));
        let lock = lock.map_err(|e| Error::io("make the lock", &path, &e))?;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(lock)),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) if interrupted.load(Ordering::Relaxed) => {
                    return Err(Error::Interrupted);
                }
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        waits();
                        told = true;
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
    }
}

fn is_whole(path: &Path, file: &RemoteFile) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == file.bytes)
}

pub(crate) fn make_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) => std::fs::create_dir_all(folder).map_err(|e| Error::io("make the folder", folder, &e)),
        None => Ok(()),
    }
}

#[cfg(unix)]
fn make_link(target: &str, _blob: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// On Windows, links need developer mode; without it, the file itself goes into the snapshot.
#[cfg(windows)]
fn make_link(target: &str, blob: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target.replace('/', "\\"), link)
        .or_else(|_| std::fs::rename(blob, link))
}

/// Names and sizes of a snapshot's files, including subfolders.
fn files(snapshot: &Path) -> Vec<(String, u64)> {
    let mut files = vec![];
    let mut add = |folder: &Path, prefix: &str| {
        let mut folders = vec![];
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{name}");
            match std::fs::metadata(entry.path()) {
                Ok(metadata) if metadata.is_file() => files.push((name, metadata.len())),
                Ok(_) => folders.push((entry.path(), format!("{name}/"))),
                Err(_) => {}
            }
        }
        folders
    };
    for (folder, prefix) in add(snapshot, "") {
        add(&folder, &prefix);
    }
    files.sort();
    files
}
