//! Mapped weight files, which must stay as they are while a model runs: weights may be read where they are in the file.

use crate::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A whole mapped file.
pub(crate) struct MappedFile {
    map: Mmap,
    file: File,
    pub(super) state: FileState,
    #[cfg(unix)]
    watched: &'static bus_error::Watched,
}

/// A weight file as it was when it was mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    path: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    fn of(path: &Path, file: &File) -> Result<Self> {
        let metadata = file.metadata().map_err(|e| Error::io("read the model", path, &e))?;
        Ok(Self { path: path.to_owned(), size: metadata.len(), modified: metadata.modified().ok() })
    }

    /// Checks that the file at the path still is what it was.
    ///
    /// # Errors
    /// [`Error::Failure`] where it is gone, or has another size or time of modification.
    pub fn check(&self) -> Result<()> {
        let now = std::fs::metadata(&self.path).ok();
        let same = |now: &std::fs::Metadata| now.len() == self.size && now.modified().ok() == self.modified;
        match now.is_some_and(|now| same(&now)) {
            true => Ok(()),
            false => Err(Error::failure(format!(
                "{} was changed while the model was in use; start again, and leave the file as it is meanwhile",
                self.path.display()
            ))),
        }
    }
}

impl MappedFile {
    pub(super) fn map(path: &Path, file: File) -> Result<Self> {
        // SAFETY: the map is only read. A file that others shorten meanwhile is the documented risk of mapping: `check` finds
        // it between prompts, and a read beyond the end raises SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io("map the model", path, &e))?;
        let state = FileState::of(path, &file)?;
        #[cfg(unix)]
        let watched = bus_error::watch(path, &map);
        Ok(Self {
            map,
            file,
            state,
            #[cfg(unix)]
            watched,
        })
    }

    /// The file, opened.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Gives back the memory of so many bytes, from the first on; when they are read again, they come from the file.
    pub(super) fn release(&self, bytes: usize) {
        #[cfg(unix)]
        // SAFETY: the map is of a file and only read, so its pages keep nothing that the file has not. Where it fails, they stay.
        unsafe {
            let _ = self.map.unchecked_advise_range(
                memmap2::UncheckedAdvice::DontNeed,
                0,
                bytes.min(self.map.len()),
            );
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }

    /// Passes the file's bytes to `take`, piece by piece. They are read, because pages of a map that were touched count as the program's memory.
    pub(super) fn for_each_piece(&self, mut take: impl FnMut(&[u8])) {
        let mut buffer = vec![0; 1 << 20];
        let mut start = 0;
        while start < self.map.len() {
            let piece = &mut buffer[..(self.map.len() - start).min(1 << 20)];
            match read_at(&self.file, piece, start) {
                Ok(()) => take(piece),
                // Reading from the map ends with a sentence where the file is cut short.
                Err(_) => return take(&self.map[start..]),
            }
            start += piece.len();
        }
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// Reads so many bytes of a file from an offset on.
#[cfg(unix)]
pub(super) fn read_at(file: &File, to: &mut [u8], offset: usize) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, offset as u64)
}

#[cfg(not(unix))]
pub(super) fn read_at(_: &File, _: &mut [u8], _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
impl Drop for MappedFile {
    fn drop(&mut self) {
        self.watched.forget();
    }
}

/// Makes a program end with a sentence and exit code 1 where a mapped model is read beyond the end of its file, which somebody has
/// shortened. It would end with SIGBUS otherwise. For programs to call once, at their start.
#[cfg(unix)]
pub fn explain_bus_errors() {
    bus_error::install();
}

/// Does nothing: the system keeps mapped files from being shortened.
#[cfg(not(unix))]
pub fn explain_bus_errors() {}

#[cfg(unix)]
mod bus_error {
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::path::Path;
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

    /// A mapped file, as the signal handler finds it. Entries are never freed, so that the handler needs no lock.
    pub(super) struct Watched {
        addresses: Range<usize>,
        is_mapped: AtomicBool,
        /// A whole line.
        sentence: String,
        next: Option<&'static Watched>,
    }

    static FIRST: AtomicPtr<Watched> = AtomicPtr::new(null_mut());
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    impl Watched {
        pub(super) fn forget(&self) {
            self.is_mapped.store(false, Ordering::Release);
        }
    }

    /// The entry of a file, before all others.
    pub(super) fn watch(path: &Path, map: &[u8]) -> &'static Watched {
        let start = map.as_ptr() as usize;
        let entry = Box::leak(Box::new(Watched {
            addresses: start..start + map.len(),
            is_mapped: AtomicBool::new(true),
            sentence: format!(
                "layerscope: {} was shortened while the model was in use; start again, and leave the file as it is meanwhile\n",
                path.display().to_string().escape_debug()
            ),
            next: None,
        }));
        let mut first = FIRST.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or an entry that is never freed and no longer changed.
            entry.next = unsafe { first.as_ref() };
            match FIRST.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return entry,
                Err(other) => first = other,
            }
        }
    }

    pub(super) fn install() {
        // SAFETY: a zeroed sigaction is valid; the handler calls only what is safe in a signal handler.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut before = MaybeUninit::zeroed();
            if libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) == 0 {
                let _ = BEFORE.set(before.assume_init());
            }
        }
    }

    extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo, and entries are never freed.
        let (address, mut entry) =
            unsafe { ((*info).si_addr() as usize, FIRST.load(Ordering::Acquire).as_ref()) };
        while let Some(watched) = entry {
            if watched.is_mapped.load(Ordering::Acquire) && watched.addresses.contains(&address) {
                // SAFETY: both are safe in a signal handler, and the sentence is not changed.
                unsafe {
                    libc::write(
                        libc::STDERR_FILENO,
                        watched.sentence.as_ptr().cast(),
                        watched.sentence.len(),
                    );
                    libc::_exit(1);
                }
            }
            entry = watched.next;
        }
        // Not ours: the instruction runs again under the handler of before.
        // SAFETY: both are safe in a signal handler.
        unsafe {
            match BEFORE.get() {
                Some(before) => {
                    libc::sigaction(signal, before, null_mut());
                }
                None => {
                    libc::signal(signal, libc::SIG_DFL);
                }
            }
        }
    }
}
