//! Errors that a program can match on. Their `Display` is one sentence for the user.

use crate::{HookPoint, UndefinedFrom};
use layerscope_kernels::cuda::DeviceError;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong. The `Display` names the cause and the remedy in one sentence.
///
/// Variants without fields of their own ([`Error::Input`], [`Error::Failure`]) are for the people who read the sentence; match
/// on [`Error::kind`] to tell them apart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The prompt has no tokens.
    #[error("{0}")]
    EmptyPrompt(&'static str),
    /// The sequence is longer than the model's context.
    #[error(
        "the prompt has {prompt} tokens, which with {decode} new ones exceeds the model's context of {context}; shorten the \
         prompt or ask for fewer new tokens"
    )]
    ContextExceeded {
        /// Prompt tokens.
        prompt: usize,
        /// Tokens to decode, the last prompt token among them.
        decode: usize,
        /// Longest sequence that the model was made for.
        context: usize,
    },
    /// A text of so many bytes that it is longer than the model's context, found before it was tokenized.
    #[error(
        "the text has {bytes} bytes, which are at least {tokens} tokens and exceed the model's context of {context}; shorten it"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// A number of tokens below which it does not come.
        tokens: usize,
        /// Longest sequence that the model was made for.
        context: usize,
    },
    /// A token id that the vocabulary does not have.
    #[error("token {token} is beyond the vocabulary of {vocab}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The device has less free memory than the work needs.
    #[error("{sentence}")]
    OutOfMemory {
        /// Bytes that the work needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// What needs them, and the ways out.
        sentence: String,
    },
    /// A policy name that is not registered.
    #[error("unknown policy `{name}` (known, the nearest first: {})", known.join(", "))]
    UnknownPolicy {
        /// The whole name as it was given.
        name: String,
        /// Known policies, the nearest first.
        known: Vec<&'static str>,
    },
    /// A policy whose argument cannot be read or does not fit the model.
    #[error("{sentence}")]
    InvalidPolicy {
        /// The whole name as it was given.
        name: String,
        /// What is wrong with it.
        sentence: String,
    },
    /// A hook point that does not exist.
    #[error("unknown hook point `{name}`; near it: {}", near.join(", "))]
    UnknownHook {
        /// The name as it was given.
        name: String,
        /// The names that are most like it.
        near: Vec<String>,
    },
    /// A hook returned an activation of another shape than the one it was shown.
    #[error("the hook at {point} returned shape {returned:?} where {expected:?} is expected")]
    HookShape {
        /// Where the hook runs.
        point: HookPoint,
        /// The activation's shape.
        expected: Vec<usize>,
        /// The replacement's shape.
        returned: Vec<usize>,
    },
    /// An architecture that no family runs.
    #[error("{sentence}")]
    UnsupportedFamily {
        /// The architecture as the file or the user names it.
        architecture: String,
        /// The known ones, and what to try.
        sentence: String,
    },
    /// A file that is damaged, incomplete or of an unsupported form.
    #[error("{sentence}")]
    MalformedFile {
        /// The file, or the model's folder.
        path: PathBuf,
        /// What is wrong with it; names the file.
        sentence: String,
    },
    /// A file that cannot be read or written.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was tried, e.g. `read the model`.
        action: String,
        /// The file.
        path: PathBuf,
        /// The kind of the system's error.
        kind: io::ErrorKind,
        /// The system's sentence.
        reason: String,
    },
    /// A logit is NaN or infinite, which only damaged weights cause.
    #[error(
        "the next-token distribution is undefined: {}; the weights are damaged, fetch the model again",
        undefined_logits(*.from)
    )]
    UndefinedLogits {
        /// Where activations first are NaN or infinite, if that was looked for.
        from: Option<UndefinedFrom>,
    },
    /// A GPU that is absent or failed.
    #[error(transparent)]
    Device(DeviceError),
    /// A layer that the model does not have.
    #[error("layer {layer} is not between 0 and {}", layers - 1)]
    UnknownLayer {
        /// The layer that was asked for.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Tensors whose shapes or devices do not fit the operation, or calls in the wrong order.
    #[error("{0}; please report this")]
    Misuse(String),
    /// A file, flag or prompt that the user can correct.
    #[error("{0}")]
    Input(String),
    /// The machine failed: disk full, permission denied, a thread that cannot start.
    #[error("{0}")]
    Failure(String),
    /// The user pressed Ctrl-C. Finished work is kept.
    #[error("interrupted; what was finished is kept")]
    Interrupted,
    /// A tensor operation of candle's failed, which no input should cause.
    #[error("internal tensor error (please report it): {0}")]
    Tensor(#[from] candle_core::Error),
}

/// Who can correct an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The user: a file, flag or prompt is wrong.
    Input,
    /// The machine, or a bug.
    Failure,
    /// The user interrupted the work.
    Interrupted,
}

impl ErrorKind {
    /// The exit code of the command line: 2, 1 and 130.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Input => 2,
            Self::Failure => 1,
            Self::Interrupted => 130,
        }
    }
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

    /// A call that its documentation rules out. The `Display` adds "; please report this".
    pub(crate) fn misuse(message: impl Into<String>) -> Self {
        Self::Misuse(message.into())
    }

    /// "PATH: problem".
    pub(crate) fn malformed(path: &Path, problem: impl std::fmt::Display) -> Self {
        let sentence = format!("{}: {problem}", path.display());
        Self::MalformedFile { path: path.to_owned(), sentence }
    }

    /// "PATH is damaged: reason".
    pub(crate) fn damaged(path: &Path, reason: impl std::fmt::Display) -> Self {
        let sentence = format!("{} is damaged: {reason}", path.display());
        Self::MalformedFile { path: path.to_owned(), sentence }
    }

    /// An input/output error at `path`; `action` completes the sentence "cannot …", e.g. `"read the model"`.
    pub fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        Self::Io {
            action: action.to_owned(),
            path: path.to_owned(),
            kind: error.kind(),
            reason: layerscope_files::reason(error),
        }
    }

    /// Who can correct it. An input/output error is bad input where the path is wrong, else a failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EmptyPrompt(_)
            | Self::ContextExceeded { .. }
            | Self::TextTooLong { .. }
            | Self::UnknownToken { .. }
            | Self::OutOfMemory { .. }
            | Self::UnknownPolicy { .. }
            | Self::InvalidPolicy { .. }
            | Self::UnknownHook { .. }
            | Self::HookShape { .. }
            | Self::UnsupportedFamily { .. }
            | Self::MalformedFile { .. }
            | Self::UndefinedLogits { .. }
            | Self::UnknownLayer { .. }
            | Self::Input(_) => ErrorKind::Input,
            Self::Io { kind, .. } => match kind {
                io::ErrorKind::NotFound
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidFilename
                | io::ErrorKind::InvalidData => ErrorKind::Input,
                _ => ErrorKind::Failure,
            },
            Self::Device(DeviceError::Unavailable(_) | DeviceError::OutOfMemory { .. }) => ErrorKind::Input,
            Self::Device(DeviceError::Failure(_)) | Self::Misuse(_) | Self::Failure(_) | Self::Tensor(_) => {
                ErrorKind::Failure
            }
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    /// The exit code of the command line.
    pub fn exit_code(&self) -> u8 {
        self.kind().exit_code()
    }
}

fn undefined_logits(from: Option<UndefinedFrom>) -> String {
    match from {
        Some(from) => format!("activations are NaN or infinite from {from} on"),
        None => "a logit is NaN or infinite".to_owned(),
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { wanted, free } => {
                Self::OutOfMemory { needed: wanted as u64, free: free as u64, sentence: error.to_string() }
            }
            error => Self::Device(error),
        }
    }
}

/// A result whose error is one sentence for the user.
pub type Result<T> = std::result::Result<T, Error>;
