//! Messages as bytes. Each side begins with a greeting: a mark, the protocol's number, and its version as text. Then frames follow:
//! the length of a message, four bytes, least first, and the message in postcard's format.

use super::question::{Answer, Question};
use crate::engine::message::{Command, Event};
use layerscope_engine::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, ErrorKind, Read};

/// Number of the protocol, which is raised with every change of a message; it is no version of the program.
pub const PROTOCOL: u32 = 3;
/// Most bytes of a frame.
pub const MOST_FRAME: usize = 64 << 20;
/// What a greeting begins with.
const MARK: [u8; 8] = *b"\x01lscope\n";

/// From the window to the engine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToEngine {
    /// For the engine's thread, but [`Command::Cancel`], which takes effect at once.
    Command(Command),
    /// Answered beside whatever the engine does.
    Question { id: u64, question: Question },
    /// A [`ToWindow::Piece`] or [`ToWindow::Answer`] has come.
    Taken,
    /// A sign of life.
    Beat,
}

/// From the engine to the window.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWindow {
    Event(Event),
    /// Bytes of an answer, before it.
    Piece {
        id: u64,
        #[serde(with = "super::plain::bytes")]
        bytes: Vec<u8>,
    },
    Answer {
        id: u64,
        answer: std::result::Result<Answer, String>,
    },
    /// A sign of life.
    Beat,
}

/// The bytes that a side begins with.
pub(super) fn greeting(protocol: u32, version: &str) -> Vec<u8> {
    let version = &version.as_bytes()[..version.len().min(255)];
    [&MARK[..], &protocol.to_le_bytes(), &[version.len() as u8], version].concat()
}

/// Why there is no greeting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotGreeted {
    /// The pipe was closed before anything came.
    Silent,
    /// Something else came; the beginning of it.
    Other(String),
    /// The other side has another protocol.
    Protocol { number: u32, version: String },
}

/// Reads the other side's greeting; returns its version.
pub(super) fn read_greeting(input: &mut impl BufRead) -> std::result::Result<String, NotGreeted> {
    let mut mark = [0; MARK.len()];
    let mut read = 0;
    while read < mark.len() {
        match input.read(&mut mark[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if mark[..read] != MARK[..read] {
            let rest = input.fill_buf().unwrap_or_default();
            return Err(NotGreeted::Other(beginning(&[&mark[..read], rest].concat())));
        }
    }
    if read == 0 {
        return Err(NotGreeted::Silent);
    }
    let other = |_| NotGreeted::Other(beginning(&mark[..read]));
    let mut number = [0; 4];
    input.read_exact(&mut number).map_err(other)?;
    let mut length = [0];
    input.read_exact(&mut length).map_err(other)?;
    let mut version = vec![0; usize::from(length[0])];
    input.read_exact(&mut version).map_err(other)?;
    let version = layerscope_figures::visible_line(&String::from_utf8_lossy(&version)).to_string();
    match u32::from_le_bytes(number) {
        PROTOCOL => Ok(version),
        number => Err(NotGreeted::Protocol { number, version }),
    }
}

/// The first line of what came instead of a greeting, for a sentence.
fn beginning(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    layerscope_figures::visible_line(line).chars().take(120).collect()
}

/// A message as a frame.
///
/// # Errors
/// [`Error::Failure`] if it is too large, or holds a path that is no text.
pub(super) fn frame(message: &impl Serialize) -> Result<Vec<u8>> {
    let frame = postcard::to_extend(message, vec![0; 4]);
    let mut frame = frame.map_err(|error| Error::failure(format!("a message cannot be sent ({error})")))?;
    let length = frame.len() - 4;
    if length > MOST_FRAME {
        return Err(Error::failure(format!(
            "what is asked for takes {} MiB at once, and at most {} MiB cross the connection; ask for less",
            length >> 20,
            MOST_FRAME >> 20
        )));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// The next frame's message; `None` where the pipe was closed between frames. Memory is taken as bytes come, whatever length the
/// frame claims.
///
/// # Errors
/// [`ErrorKind::InvalidData`] if it is none; errors of the pipe.
pub(super) fn read<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let mut read = 0;
    while read < length.len() {
        match input.read(&mut length[read..]) {
            Ok(0) if read == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_FRAME {
        let problem = format!("a message of {length} bytes was announced, more than {MOST_FRAME}");
        return Err(io::Error::new(ErrorKind::InvalidData, problem));
    }
    let mut bytes = vec![];
    input.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let invalid = |problem: &str| io::Error::new(ErrorKind::InvalidData, problem);
    match postcard::take_from_bytes(&bytes) {
        Ok((message, [])) => Ok(Some(message)),
        Ok(_) => Err(invalid("a message has bytes behind its end")),
        Err(_) => Err(invalid("a message cannot be read")),
    }
}

/// Writes bytes and sees to it that they go.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn write(output: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    output.write_all(bytes)?;
    output.flush()
}

/// Reads what one side sends as the other side does, a greeting and messages until one is none, and writes the same again: for tests
/// with hostile bytes.
#[doc(hidden)]
pub fn reread(stream: &[u8], is_from_window: bool) -> Vec<u8> {
    let mut input = io::BufReader::new(stream);
    let mut again = vec![];
    if read_greeting(&mut input).is_ok() {
        again = greeting(PROTOCOL, env!("CARGO_PKG_VERSION"));
        if is_from_window {
            while let Ok(Some(message)) = read::<ToEngine>(&mut input) {
                again.extend(frame(&message).unwrap_or_default());
            }
        } else {
            while let Ok(Some(message)) = read::<ToWindow>(&mut input) {
                if let ToWindow::Event(event) = &message {
                    super::link::is_sound(event);
                }
                again.extend(frame(&message).unwrap_or_default());
            }
        }
    }
    again
}
