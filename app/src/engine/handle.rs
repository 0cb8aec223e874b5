//! The window's side of the engine.

use super::events::Events;
use super::inbox::{COMMANDS, EVENTS, Inbox, full};
use super::message::{Command, Event};
use super::worker::{self, Request, Resolve};
use layerscope_engine::{Error, Interrupt, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Stack size, as of a main thread, because this thread renders chat templates of users.
const STACK: usize = 8 << 20;

/// The window's side of the engine: sends commands and receives events without blocking.
///
/// Dropping it stops the work like [`Command::Cancel`] and waits for the thread to end; recorded prompts are
/// kept.
pub struct LocalEngine {
    /// The channels; `None` only while being dropped.
    commands: Option<SyncSender<Request>>,
    inbox: Option<Inbox>,
    /// Cancel flag of all commands sent since the last cancel. Each cancel sets it and installs a new flag,
    /// so that it affects all older commands and no newer one.
    interrupt: RefCell<Arc<Interrupt>>,
    thread: Option<JoinHandle<()>>,
}

impl LocalEngine {
    /// Starts the engine's thread, which calls `wake` after each event to redraw the window.
    pub fn start(wake: impl Fn() + Send + 'static) -> Self {
        Self::with_room(EVENTS, None, wake)
    }

    /// [`Self::start`] with a way to find the models of names and ids, which a window elsewhere cannot resolve.
    pub(super) fn resolving(resolve: Resolve, wake: impl Fn() + Send + 'static) -> Self {
        Self::with_room(EVENTS, Some(resolve), wake)
    }

    /// [`Self::start`] with this capacity for events.
    pub(super) fn with_room(
        events: usize,
        resolve: Option<Resolve>,
        wake: impl Fn() + Send + 'static,
    ) -> Self {
        let (commands, requests) = sync_channel(COMMANDS);
        let (sender, events) = sync_channel(events);
        let teller = Events::new(sender, wake);
        // If the thread cannot start, the channels are closed and `send` fails.
        let thread = Builder::new()
            .name("engine".into())
            .stack_size(STACK)
            .spawn(move || {
                // Where threads cannot be started, the first request says so.
                let _ = layerscope_engine::one_pool();
                worker::run(&requests, &teller, resolve);
            })
            .ok();
        Self {
            commands: Some(commands),
            inbox: Some(Inbox::new(events)),
            interrupt: RefCell::default(),
            thread,
        }
    }

    /// Queues a command; [`Command::Cancel`] takes effect at once.
    ///
    /// # Errors
    /// [`Error::Failure`] if the queue is full.
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
                self.inbox.iter().for_each(Inbox::expect_idle);
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(full()),
            Err(TrySendError::Disconnected(_)) => Err(stopped()),
        }
    }

    /// The next event, if any.
    pub fn try_event(&self) -> Option<Event> {
        self.inbox.as_ref()?.try_event()
    }

    /// Whether a command is running or queued, according to the events received so far.
    pub fn is_busy(&self) -> bool {
        self.inbox.as_ref().is_some_and(Inbox::is_busy)
    }

    fn cancel(&self) {
        self.interrupt.take().store(true, Ordering::Relaxed);
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.cancel();
        // Closed channels end the thread, even while it waits on a full event channel.
        self.commands = None;
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
