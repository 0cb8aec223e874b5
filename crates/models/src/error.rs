//! Errors that a program can match on. Their `Display` is one sentence for the user.

use std::io;
use std::path::{Path, PathBuf};

/// What went wrong. The `Display` names the cause and the remedy in one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No model on this disk has the name, and it is not a Hub id.
    #[error("{sentence}")]
    UnknownModel {
        /// The name that was given.
        name: String,
        /// What to try.
        sentence: String,
    },
    /// A repository whose owner grants access on request.
    #[error("{sentence}")]
    Gated {
        /// `owner/name`.
        id: String,
        /// How to get access.
        sentence: String,
    },
    /// The Hub cannot be reached, or the connection broke.
    #[error("{sentence}")]
    Unreachable {
        /// The Hub's host.
        host: String,
        /// What to check.
        sentence: String,
    },
    /// The server's response is not a Hub's.
    #[error("{sentence}")]
    InvalidResponse {
        /// The Hub's host.
        host: String,
        /// What to check.
        sentence: String,
    },
    /// The disk has less free space than the model's files need.
    #[error("{sentence}")]
    DiskFull {
        /// Bytes that the files need.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// How to make room.
        sentence: String,
    },
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// The failed action, e.g. `open`.
        action: String,
        /// The file.
        path: PathBuf,
        /// The kind of the system's error.
        kind: io::ErrorKind,
        /// The operating system's message.
        reason: String,
    },
    /// A name, setting or token that the user can correct.
    #[error("{0}")]
    Input(String),
    /// The machine, the network or the server failed.
    #[error("{0}")]
    Failure(String),
    /// The user stopped the fetch. Fetched bytes are kept.
    #[error("interrupted; what was fetched is kept, and fetching again goes on from there")]
    Interrupted,
}

/// Who can correct an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The user: a name, setting or token is wrong.
    Input,
    /// The machine, the network or the server.
    Failure,
    /// The user interrupted the work.
    Interrupted,
}

/// A result whose error is one sentence for the user.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Who can correct it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownModel { .. } | Self::Gated { .. } | Self::Input(_) => ErrorKind::Input,
            Self::Unreachable { .. }
            | Self::InvalidResponse { .. }
            | Self::DiskFull { .. }
            | Self::Io { .. }
            | Self::Failure(_) => ErrorKind::Failure,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self::Failure(message.into())
    }

    /// A failure at `path`; `action` completes the sentence "cannot …".
    pub(crate) fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        Self::Io {
            action: action.to_owned(),
            path: path.to_owned(),
            kind: error.kind(),
            reason: layerscope_files::reason(error),
        }
    }
}
