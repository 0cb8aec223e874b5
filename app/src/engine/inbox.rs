//! The window's end of an engine's events, and the count of the commands that they end.

use super::message::Event;
use layerscope_engine::Error;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, TryRecvError};

/// Commands that may wait.
pub(super) const COMMANDS: usize = 16;
/// Capacity for events.
#[cfg(not(target_arch = "wasm32"))]
pub(super) const EVENTS: usize = 1024;

/// Events as they come.
pub(super) struct Inbox {
    events: Receiver<Event>,
    /// Commands whose [`Event::Idle`] was not received yet.
    unfinished: Cell<usize>,
}

impl Inbox {
    pub(super) fn new(events: Receiver<Event>) -> Self {
        Self { events, unfinished: Cell::new(0) }
    }

    /// Counts a command that was sent.
    pub(super) fn expect_idle(&self) {
        self.unfinished.set(self.unfinished.get() + 1);
    }

    /// The next event, if any.
    pub(super) fn try_event(&self) -> Option<Event> {
        match self.events.try_recv() {
            Ok(event) => {
                if matches!(event, Event::Idle) {
                    self.unfinished.set(self.unfinished.get().saturating_sub(1));
                }
                Some(event)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.unfinished.set(0);
                None
            }
        }
    }

    /// Whether a command is running or queued, according to the events received so far.
    pub(super) fn is_busy(&self) -> bool {
        self.unfinished.get() > 0
    }

    /// Whether as many commands wait as may, beside one that runs.
    pub(super) fn is_full(&self) -> bool {
        self.unfinished.get() > COMMANDS
    }
}

/// What is said where too many commands wait.
pub(super) fn full() -> Error {
    Error::failure(format!(
        "the engine has {COMMANDS} commands waiting already; wait for one to end, or cancel"
    ))
}
