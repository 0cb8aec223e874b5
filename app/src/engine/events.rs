//! The worker's end of the event channel.

use super::message::Event;
use layerscope_engine::{Error, Interrupt, Result, check_interrupt};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::sleep;
use std::time::Duration;

/// Pause before a full channel is tried again.
const PAUSE: Duration = Duration::from_millis(2);

/// Where events go.
pub(super) struct Events {
    sender: SyncSender<Event>,
    wake: Box<dyn Fn() + Send>,
}

impl Events {
    pub(super) fn new(sender: SyncSender<Event>, wake: impl Fn() + Send + 'static) -> Self {
        Self { sender, wake: Box::new(wake) }
    }

    /// Tells how far something has come; left out where the window is behind, so that a window out of sight does not
    /// hold up the work.
    pub(super) fn progress(&self, event: Event) {
        if self.sender.try_send(event).is_ok() {
            (self.wake)();
        }
    }

    /// Tells something that must not be missed, and waits for room.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where a cancel comes first or the window is gone.
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

    /// Tells how something ended, and waits for room whatever is cancelled, unless the window is gone.
    pub(super) fn deliver(&self, event: Event) {
        if self.sender.send(event).is_ok() {
            (self.wake)();
        }
    }
}
