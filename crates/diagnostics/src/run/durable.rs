//! Crash-safe files: written under a temporary name, synced, renamed, folder synced.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use layerscope_engine::{Error, Result};

/// A failure to write at `path`, with the remedy for common causes.
pub(super) fn write_error(path: &Path, error: &io::Error) -> Error {
    let mend = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space and run the same command again, what was finished is kept"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose an --out folder that you may write to"
        }
        _ => "; what was finished is kept",
    };
    Error::failure(format!("cannot write {}: {error}{mend}", path.display()))
}

/// Creates the folder and its parents.
pub(super) fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Error::input(format!(
            "cannot create the folder {}: a file is in the way; choose another --out",
            path.display()
        )),
        _ => write_error(path, &error),
    })
}

/// Makes renames and new names within the folder durable.
pub(super) fn sync_folder(path: &Path) -> Result<()> {
    // Only Unix can sync a folder; other systems rely on the file system's journal.
    #[cfg(unix)]
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| write_error(path, &error))?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Renames, without making the new name durable yet.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| write_error(to, &error))
}

/// Removes a folder and its content, if it exists.
pub(super) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::failure(format!(
            "cannot remove the folder {}: {error}; remove it yourself",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes a new file and syncs its content. The name is not durable until the folder is synced.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = layerscope_files::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| write_error(path, &error))
}

/// Replaces the file `name` in `folder` atomically.
pub(super) fn replace_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let temporary = folder.join(temporary_name(name));
    write_synced(&temporary, bytes)?;
    rename(&temporary, &folder.join(name))?;
    sync_folder(folder)
}

/// The temporary name of a file.
pub(super) fn temporary_name(name: &str) -> String {
    format!(".{name}.tmp")
}

/// Attempts to take a lock, 20 ms apart.
const PATIENCE: usize = 10;

/// Takes a recording's lock on its folder. It is released when the returned file is closed, even by a kill.
///
/// # Errors
/// [`Error::Input`] if another recording holds it.
pub(super) fn lock(folder: &Path, name: &str) -> Result<File> {
    let path = folder.join(name);
    let file = layerscope_files::open_with(&path, File::options().create(true).truncate(false).write(true))
        .map_err(|error| write_error(&path, &error))?;
    // A child process that another thread is just starting briefly inherits open files, including this lock.
    let mut locked = file.try_lock();
    for _ in 0..PATIENCE {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::input(format!(
            "another recording is writing to {}; wait until it ends or choose another --out",
            folder.display()
        ))),
        // Some network file systems have no locks; recording works there without.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(error)) => Err(Error::failure(format!(
            "cannot lock {}: {error}; choose an --out folder on a local disk",
            path.display()
        ))),
    }
}
