//! The engine behind the window: one thread that loads, records, trains, generates, reads patterns, computes their tiles, removes spans
//! and patches, one command at a time.
//!
//! [`LocalEngine`] is the window's side. Commands and events pass through bounded channels ([`message`]); the only
//! other shared state is a cancel flag. With an engine on another machine they cross two pipes or a WebSocket
//! ([`remote`]).

#[cfg(not(target_arch = "wasm32"))]
mod adapting;
#[cfg(not(target_arch = "wasm32"))]
mod candidates;
#[cfg(not(target_arch = "wasm32"))]
mod events;
#[cfg(not(target_arch = "wasm32"))]
mod generation;
#[cfg(not(target_arch = "wasm32"))]
mod handle;
mod inbox;
pub mod message;
#[cfg(not(target_arch = "wasm32"))]
mod patching;
#[cfg(not(target_arch = "wasm32"))]
mod pattern;
#[cfg(not(target_arch = "wasm32"))]
mod recording;
pub mod remote;
#[cfg(not(target_arch = "wasm32"))]
mod span;
#[cfg(not(target_arch = "wasm32"))]
mod tiles;
#[cfg(not(target_arch = "wasm32"))]
mod worker;

#[cfg(test)]
mod tests;

#[cfg(not(target_arch = "wasm32"))]
pub use handle::LocalEngine;
pub use message::{Command, Event};

use layerscope_engine::Result;
use remote::RemoteEngine;

/// An engine, here or on another machine.
pub enum Engine {
    /// On a thread of this program.
    #[cfg(not(target_arch = "wasm32"))]
    Here(LocalEngine),
    /// At the other end of a connection.
    There(RemoteEngine),
}

impl Engine {
    /// Queues a command; [`Command::Cancel`] takes effect at once.
    ///
    /// # Errors
    /// As [`RemoteEngine::send`].
    pub fn send(&self, command: Command) -> Result<()> {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Here(engine) => engine.send(command),
            Self::There(engine) => engine.send(command),
        }
    }

    /// The next event, if any.
    pub fn try_event(&self) -> Option<Event> {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Here(engine) => engine.try_event(),
            Self::There(engine) => engine.try_event(),
        }
    }

    /// Whether a command is running or queued, according to the events received so far.
    pub fn is_busy(&self) -> bool {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Here(engine) => engine.is_busy(),
            Self::There(engine) => engine.is_busy(),
        }
    }
}
