//! The window's end of the engine.

use super::events::Events;
use super::message::{Command, Event};
use super::worker::{self, Request};
use layerscope_engine::{Error, Interrupt, Result};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Commands that may wait.
const COMMANDS: usize = 16;
/// Events that may wait for the window.
const EVENTS: usize = 1024;
/// Bytes of stack, as a program's main thread has them: chat templates of users are read on this thread.
const STACK: usize = 8 << 20;

/// The window's end of the engine: commands go in, events come out, nothing here ever waits.
///
/// Dropping it stops the work as [`Command::Cancel`] does and waits for the thread to end; prompts recorded so far are in
/// their folder.
pub struct Engine {
    /// The channels; `None` only while being dropped.
    commands: Option<SyncSender<Request>>,
    events: Option<Receiver<Event>>,
    /// Stops every command sent since the last cancel. Each cancel sets it for good and leaves a new one, so that it can
    /// neither miss an older command nor hit a newer one.
    interrupt: RefCell<Arc<Interrupt>>,
    /// Commands whose [`Event::Idle`] was not taken yet.
    unfinished: Cell<usize>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine's thread; `wake` is called there after each event, to have the window drawn again.
    pub fn start(wake: impl Fn() + Send + 'static) -> Self {
        Self::with_room(EVENTS, wake)
    }

    /// [`Self::start`] with room for so many events.
    pub(super) fn with_room(events: usize, wake: impl Fn() + Send + 'static) -> Self {
        let (commands, requests) = sync_channel(COMMANDS);
        let (sender, events) = sync_channel(events);
        let teller = Events::new(sender, wake);
        // Without a thread the channels are closed, and `send` says so.
        let thread = Builder::new()
            .name("engine".into())
            .stack_size(STACK)
            .spawn(move || {
                // Where another engine has made it already, that one serves.
                let _ = layerscope_engine::one_pool();
                worker::run(&requests, &teller);
            })
            .ok();
        Self {
            commands: Some(commands),
            events: Some(events),
            interrupt: RefCell::default(),
            unfinished: Cell::new(0),
            thread,
        }
    }

    /// Queues a command; [`Command::Cancel`] acts at once.
    ///
    /// # Errors
    /// [`Error::Failure`] where too many commands wait already.
    pub fn send(&self, command: Command) -> Result<()> {
        if matches!(command, Command::Cancel) {
            self.cancel();
            return Ok(());
        }
        let stopped = || Error::failure("the engine has stopped; start the program again");
        let interrupt = Arc::clone(&self.interrupt.borrow());
        let commands = self.commands.as_ref().ok_or_else(stopped)?;
        match commands.try_send(Request { command, interrupt }) {
            Ok(()) => {
                self.unfinished.set(self.unfinished.get() + 1);
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(Error::failure(format!(
                "the engine has {COMMANDS} commands waiting already; wait for one to end, or cancel"
            ))),
            Err(TrySendError::Disconnected(_)) => Err(stopped()),
        }
    }

    /// The next event, if there is one.
    pub fn try_event(&self) -> Option<Event> {
        match self.events.as_ref()?.try_recv() {
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

    /// Whether a command is being done or waits, as far as the events taken so far tell.
    pub fn is_busy(&self) -> bool {
        self.unfinished.get() > 0
    }

    fn cancel(&self) {
        self.interrupt.take().store(true, Ordering::Relaxed);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.cancel();
        // Closed channels end the thread, even where it waits for room for an event.
        self.commands = None;
        self.events = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
