//! The engine behind the window: one thread that loads, records, trains, generates, reads patterns, computes their tiles, removes spans
//! and patches, one command at a time.
//!
//! [`LocalEngine`] is the window's side. Commands and events pass through bounded channels ([`message`]); the only
//! other shared state is a cancel flag. With an engine on another machine they cross two pipes or a WebSocket
//! ([`remote`]).

mod adapting;
mod candidates;
mod events;
mod generation;
mod handle;
mod inbox;
pub mod message;
mod patching;
mod pattern;
mod recording;
pub mod remote;
mod span;
mod tiles;
mod worker;

#[cfg(test)]
mod tests;

pub use handle::LocalEngine;
pub use message::{Command, Event};

use layerscope_engine::Result;
use remote::RemoteEngine;

/// An engine, here or on another machine.
pub enum Engine {
    /// On a thread of this program.
    Here(LocalEngine),
    /// At the other end of a connection.
    There(RemoteEngine),
}

impl Engine {
    /// Queues a command; [`Command::Cancel`] takes effect at once.
    ///
    /// # Errors
    /// As [`LocalEngine::send`] and [`RemoteEngine::send`].
    pub fn send(&self, command: Command) -> Result<()> {
        match self {
            Self::Here(engine) => engine.send(command),
            Self::There(engine) => engine.send(command),
        }
    }

    /// The next event, if any.
    pub fn try_event(&self) -> Option<Event> {
        match self {
            Self::Here(engine) => engine.try_event(),
            Self::There(engine) => engine.try_event(),
        }
    }

    /// Whether a command is running or queued, according to the events received so far.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Here(engine) => engine.is_busy(),
            Self::There(engine) => engine.is_busy(),
        }
    }
}
