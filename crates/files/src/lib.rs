//! Files that users and run folders name. Only regular files are opened: a pipe waits for its other end, a device may never
//! end. Folders can be in memory ([`InMemory`]).

mod memory;

pub use memory::InMemory;

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

/// Opens a regular file for reading.
///
/// # Errors
/// The system's error; [`ErrorKind::IsADirectory`] for a folder and [`ErrorKind::InvalidData`] for a pipe, socket or device.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, File::options().read(true))
}

/// Opens a regular file with `options`, which may create it.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Opening acts on some devices, so that they are refused before.
    match std::fs::metadata(path) {
        Ok(metadata) => check_regular(&metadata)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The file may have been exchanged for a pipe since: such an open does not wait.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// A file that is read in parts, on a disk or in memory.
#[derive(Debug)]
pub enum Source {
    /// On a disk.
    Disk(File),
    /// In a folder in memory.
    Memory(Arc<[u8]>),
}

impl Source {
    /// Its bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn size(&self) -> io::Result<u64> {
        match self {
            Self::Disk(file) => Ok(file.metadata()?.len()),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads bytes from a position on; how many, none at its end.
    ///
    /// # Errors
    /// The system's error.
    pub fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match self {
            Self::Disk(file) => read_at(file, buffer, position),
            Self::Memory(bytes) => {
                let start = usize::try_from(position).map_or(bytes.len(), |start| start.min(bytes.len()));
                (&bytes[start..]).read(buffer)
            }
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, position)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, position)
}

/// In a browser nothing is on a disk.
#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(ErrorKind::Unsupported.into())
}

/// A regular file that is read in parts.
///
/// # Errors
/// As [`open`].
pub fn source(path: &Path) -> io::Result<Source> {
    match memory::file(path) {
        Some(bytes) => Ok(Source::Memory(bytes.ok_or(ErrorKind::NotFound)?)),
        None => open(path).map(Source::Disk),
    }
}

/// Whether there is a file or a folder.
pub fn exists(path: &Path) -> bool {
    memory::exists(path).unwrap_or_else(|| path.exists())
}

/// Names of the files and folders in a folder, in no order.
///
/// # Errors
/// The system's error.
pub fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    match memory::names(folder) {
        Some(names) => Ok(names),
        None => std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect(),
    }
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if let Some(bytes) = memory::file(path) {
        return Ok(bytes.ok_or(ErrorKind::NotFound)?.to_vec());
    }
    let mut bytes = vec![];
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`open`]; [`ErrorKind::InvalidData`] where it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// A new file. What has its name is removed, so that nothing is written through a link or into a pipe.
///
/// # Errors
/// The system's error.
pub fn create(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// The system's sentence, with the mend where it is not plain.
pub fn reason(error: &io::Error) -> String {
    match mend(error) {
        Some(mend) => format!("{error}; {mend}"),
        None => error.to_string(),
    }
}

#[cfg(unix)]
fn mend(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => Some("raise the limit with `ulimit -n 1024`"),
        libc::ENFILE => Some("close other programs"),
        libc::EACCES => Some("check its permissions"),
        libc::ENOMEM => Some("free some memory"),
        libc::EIO => Some("check the disk and its cables"),
        _ => None,
    }
}

#[cfg(not(unix))]
fn mend(_: &io::Error) -> Option<&'static str> {
    None
}

fn check_regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    if metadata.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder, not a file"));
    }
    let sentence = format!("it is {}, and only regular files are opened", special(metadata));
    Err(io::Error::new(ErrorKind::InvalidData, sentence))
}

#[cfg(unix)]
fn special(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    match () {
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(not(unix))]
fn special(_: &Metadata) -> &'static str {
    "a device"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "naïve").unwrap();
        assert_eq!(read(&path).unwrap(), "naïve".as_bytes());
        assert_eq!(read_text(&path).unwrap(), "naïve");
        assert_eq!(open(&folder.path().join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn a_folder_in_memory_is_read_as_one_on_a_disk() {
        let folder = PathBuf::from("elsewhere:/data/run");
        let files = [("manifest.json", "{}"), ("parts/00007/heads", "abc"), ("parts/00007/steps", "")];
        let files = files.map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec()));
        let first = InMemory::new(folder.clone(), files.clone());
        let second = InMemory::new(folder.clone(), files);
        drop(first);
        assert_eq!(second.path(), folder);
        assert_eq!(read(&folder.join("manifest.json")).unwrap(), b"{}");
        assert_eq!(read(&folder.join("absent")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(exists(&folder.join("parts")) && !exists(&folder.join("merged")));
        assert_eq!(names(&folder.join("parts")).unwrap(), ["00007"]);
        assert_eq!(names(&folder.join("parts/00007")).unwrap(), ["heads", "steps"]);
        let part = source(&folder.join("parts/00007/heads")).unwrap();
        let mut bytes = [0; 8];
        assert_eq!((part.size().unwrap(), part.read_at(&mut bytes, 1).unwrap()), (3, 2));
        assert_eq!(&bytes[..2], b"bc");
        assert_eq!(part.read_at(&mut bytes, u64::MAX).unwrap(), 0);
        drop(second);
        assert!(!exists(&folder));
        // What was opened stays.
        assert_eq!(part.read_at(&mut bytes, 0).unwrap(), 3);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket, link] = ["pipe", "socket", "link"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let null = Path::new("/dev/null").to_owned();
        for (path, kind) in [(&pipe, "a pipe"), (&link, "a pipe"), (&socket, "a socket"), (&null, "a device")]
        {
            for options in
                [File::options().read(true), File::options().write(true).create(true).truncate(true)]
            {
                let error = open_with(path, options).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData);
                assert!(error.to_string().contains(kind), "{error}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_written_through_a_link() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        create(&link).unwrap().write_all(b"new").unwrap();
        assert_eq!(read(&target).unwrap(), b"kept");
        assert_eq!(read(&link).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn full_tables_of_files_are_named() {
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(reason(&error).contains("ulimit -n"), "{}", reason(&error));
        assert_eq!(reason(&io::Error::other("odd")), "odd");
    }
}
