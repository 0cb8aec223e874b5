//! An engine on another machine: the messages of [`super::message`] and questions about files cross the pipes of a program that
//! runs there, such as `ssh HOST layerscope engine --stdio`, or a WebSocket of `layerscope serve --viewer`.
//!
//! [`Link`] and [`RemoteEngine`] are the window's side, [`serve`] is the other. Both greet first ([`wire`]); then frames go both
//! ways. What is live goes before what is bulk ([`outbox`]), of which little is on its way at once ([`pace`]). A pipe on which nothing
//! is heard for a while counts as broken.

mod address;
#[cfg(not(target_arch = "wasm32"))]
mod answering;
mod link;
#[cfg(not(target_arch = "wasm32"))]
mod outbox;
#[cfg(not(target_arch = "wasm32"))]
mod pace;
pub(super) mod plain;
mod question;
#[cfg(not(target_arch = "wasm32"))]
mod service;
#[cfg(not(target_arch = "wasm32"))]
mod ssh;
#[cfg(not(target_arch = "wasm32"))]
mod websocket;
mod wire;

#[cfg(test)]
mod tests;

pub use address::{Address, Scheme};
#[cfg(not(target_arch = "wasm32"))]
pub use link::Program;
pub use link::{Link, Pipes, RemoteEngine, Traffic};
pub use question::{Answer, Answered, MapPart, MapTops, PromptOf, Question};
pub(crate) use question::{OTHERS, is_relative};
#[cfg(not(target_arch = "wasm32"))]
pub use service::{Machine, serve};
#[cfg(not(target_arch = "wasm32"))]
pub use ssh::Ssh;
#[cfg(not(target_arch = "wasm32"))]
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
#[cfg(not(target_arch = "wasm32"))]
const ENGINE_PATIENCE: Duration = Duration::from_secs(120);
