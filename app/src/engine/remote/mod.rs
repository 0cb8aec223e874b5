//! An engine on another machine: the messages of [`super::message`] and questions about files cross the pipes of a program that
//! runs there, such as `ssh HOST layerscope engine --stdio`, or a WebSocket of `layerscope serve --viewer`.
//!
//! [`Link`] and [`RemoteEngine`] are the window's side, [`serve`] is the other. Both greet first ([`wire`]); then frames go both
//! ways. What is live goes before what is bulk ([`outbox`]). A pipe on which nothing is heard for a while counts as broken.

mod address;
mod answering;
mod link;
mod outbox;
pub(super) mod plain;
mod question;
mod service;
mod ssh;
mod websocket;
mod wire;

#[cfg(test)]
mod tests;

pub use address::{Address, Scheme};
pub(crate) use answering::is_relative;
pub use link::{Link, Pipes, Program, RemoteEngine, Traffic};
pub(crate) use question::OTHERS;
pub use question::{Answer, Answered, MapPart, MapTops, PromptOf, Question};
pub use service::{Machine, serve};
pub use ssh::Ssh;
pub use websocket::WebSocket;
#[doc(hidden)]
pub use wire::reread;
pub use wire::{MOST_FRAME, PROTOCOL};

use std::time::Duration;

/// Time between signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// Silence after which a window gives the connection up.
const WINDOW_PATIENCE: Duration = Duration::from_secs(30);
/// Silence after which an engine stops: longer, so that a window that was halted for a moment finds it again.
const ENGINE_PATIENCE: Duration = Duration::from_secs(120);
