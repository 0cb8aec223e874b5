//! Files that users and run folders name. Only regular files are opened: a pipe waits for its other end, a device may never
//! end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

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

/// The bytes of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
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
