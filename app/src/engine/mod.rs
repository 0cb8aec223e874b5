//! The engine behind the window: one thread that loads, records, generates, reads patterns and removes spans, one command at a time.
//!
//! [`Engine`] is the window's end. Commands go in and events come out through bounded channels ([`message`]); nothing
//! else is shared but a flag that stops the work in hand.

mod candidates;
mod events;
mod generation;
mod handle;
pub mod message;
mod pattern;
mod recording;
mod span;
mod worker;

#[cfg(test)]
mod tests;

pub use handle::Engine;
pub use message::{Command, Event};
