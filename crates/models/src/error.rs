//! The error type, sorted by who can mend it.

use std::path::Path;

/// What went wrong, as one sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name, setting or token that the user can mend; the sentence names it and the mend.
    #[error("{0}")]
    Input(String),
    /// The machine, the network or the server failed us.
    #[error("{0}")]
    Failure(String),
    /// The user stopped it; what was fetched is kept.
    #[error("interrupted; what was fetched is kept, and fetching again goes on from there")]
    Interrupted,
}

/// A result whose error is one sentence for the user.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self::Failure(message.into())
    }

    /// A failure at `path`; `doing` completes the sentence "cannot …".
    pub(crate) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failure(format!("cannot {doing} {}: {error}", path.display()))
    }
}
