//! The engine behind the window: one thread that loads, records, trains, generates, reads patterns, computes their tiles, removes spans
//! and patches, one command at a time.
//!
//! [`Engine`] is the window's side. Commands and events pass through bounded channels ([`message`]); the only
//! other shared state is a cancel flag.

mod adapting;
mod candidates;
mod events;
mod generation;
mod handle;
pub mod message;
mod patching;
mod pattern;
mod recording;
mod span;
mod tiles;
mod worker;

#[cfg(test)]
mod tests;

pub use handle::Engine;
pub use message::{Command, Event};
