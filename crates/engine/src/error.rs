//! The one error type of the house, sorted by who can mend it.

use std::path::Path;

/// What went wrong, as one sentence for the user.
///
/// The command line turns the variant into an exit code: [`Error::Input`] is 2, [`Error::Interrupted`] 130,
/// everything else 1.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file, flag or prompt that the user can mend; the sentence names it and the mend.
    #[error("{0}")]
    Input(String),
    /// The machine failed us: disk full, permission denied, out of memory.
    #[error("{0}")]
    Failure(String),
    /// The user pressed Ctrl-C; finished work is kept.
    #[error("interrupted; what was finished is kept")]
    Interrupted,
    /// A tensor operation failed, which no input should be able to cause.
    #[error("internal tensor error (please report it): {0}")]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// Bad input: exit code 2.
    pub fn input(message: impl Into<String>) -> Self {
        Self::Input(message.into())
    }

    /// A failure of the machine: exit code 1.
    pub fn failure(message: impl Into<String>) -> Self {
        Self::Failure(message.into())
    }

    /// Logits are NaN, which only damaged weights yield.
    pub fn no_numbers() -> Self {
        Self::input("the model yields no numbers (NaN); its weights are damaged, fetch the file again")
    }

    /// An input/output error at `path`: bad input where the path is wrong, a failure otherwise.
    ///
    /// `doing` completes the sentence "cannot …", e.g. `"read the model"`.
    pub fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let sentence = format!("cannot {doing} {}: {error}", path.display());
        match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidData => Self::Input(sentence),
            _ => Self::Failure(sentence),
        }
    }

    /// The exit code of the command line.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Input(_) => 2,
            Self::Failure(_) | Self::Tensor(_) => 1,
            Self::Interrupted => 130,
        }
    }
}

/// A result whose error is one sentence for the user.
pub type Result<T> = std::result::Result<T, Error>;
