//! Folders in memory: what came from another machine is read as if it were on a disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// Files by their paths.
type Files = BTreeMap<PathBuf, Arc<[u8]>>;

static FOLDERS: RwLock<BTreeMap<PathBuf, Arc<Files>>> = RwLock::new(BTreeMap::new());

fn folders() -> RwLockReadGuard<'static, BTreeMap<PathBuf, Arc<Files>>> {
    FOLDERS.read().unwrap_or_else(PoisonError::into_inner)
}

/// A folder in memory. Until it is dropped, [`super::read`], [`super::source`], [`super::exists`] and [`super::names`] find its files, whatever
/// a disk has there.
#[derive(Debug)]
pub struct InMemory {
    path: PathBuf,
    files: Arc<Files>,
}

impl InMemory {
    /// Files by their paths within a folder.
    pub fn new(path: PathBuf, files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (path.join(name), bytes.into()));
        let files: Arc<Files> = Arc::new(files.collect());
        let mut folders = FOLDERS.write().unwrap_or_else(PoisonError::into_inner);
        folders.insert(path.clone(), Arc::clone(&files));
        Self { path, files }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let mut folders = FOLDERS.write().unwrap_or_else(PoisonError::into_inner);
        // A newer one of this name stays.
        if folders.get(&self.path).is_some_and(|files| Arc::ptr_eq(files, &self.files)) {
            folders.remove(&self.path);
        }
    }
}

/// The files of the folder in memory that a path is in.
fn files_of(path: &Path) -> Option<Arc<Files>> {
    let folders = folders();
    if folders.is_empty() {
        return None;
    }
    path.ancestors().find_map(|folder| folders.get(folder)).cloned()
}

/// A file in memory; `Some(None)` where its folder is, and the file is not.
pub(super) fn file(path: &Path) -> Option<Option<Arc<[u8]>>> {
    files_of(path).map(|files| files.get(path).cloned())
}

/// Whether a folder in memory has such a file or folder; `None` where the path is in no folder in memory.
pub(super) fn exists(path: &Path) -> Option<bool> {
    files_of(path).map(|files| files.keys().any(|file| file.starts_with(path)))
}

/// Names of what is in a folder in memory.
pub(super) fn names(folder: &Path) -> Option<Vec<std::ffi::OsString>> {
    let files = files_of(folder)?;
    let inside = files.keys().filter_map(|file| file.strip_prefix(folder).ok()?.iter().next());
    let mut names: Vec<_> = inside.map(ToOwned::to_owned).collect();
    names.dedup();
    Some(names)
}
