//! The worker's end of the event channel.

use super::message::Event;
use layerscope_engine::{Error, Interrupt, Result, check_interrupt};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::sleep;
use std::time::Duration;

/// Pause before a retry on a full channel.
const PAUSE: Duration = Duration::from_millis(2);

/// The event sender.
pub(super) struct Events {
    sender: SyncSender<Event>,
    wake: Box<dyn Fn() + Send>,
}

impl Events {
    pub(super) fn new(sender: SyncSender<Event>, wake: impl Fn() + Send + 'static) -> Self {
        Self { sender, wake: Box::new(wake) }
    }

    /// Sends a progress event; drops it if the channel is full, so that a hidden window does not block the
    /// work.
    pub(super) fn progress(&self, event: Event) {
        if self.sender.try_send(event).is_ok() {
            (self.wake)();
        }
    }

    /// Sends an event that must not be lost; waits while the channel is full.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the command is cancelled first or the window is closed.
    pub(super) fn send(&self, mut event: Event, interrupt: &Interrupt) -> Result<()> {
        loop {
            match self.sender.try_send(event) {
                Ok(()) => {
                    (self.wake)();
                    return Ok(());
                }
                Err(TrySendError::Disconnected(_)) => return Err(Error::Interrupted),
                Err(TrySendError::Full(again)) => event = again,
            }
            sleep(PAUSE);
            check_interrupt(interrupt)?;
        }
    }

    /// Sends a final event; waits while the channel is full, even after a cancel, unless the window is
    /// closed.
    pub(super) fn deliver(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            (self.wake)();
        }
    }
}
