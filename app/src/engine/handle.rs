//! The window's side of the engine.

use super::events::Events;
use super::message::{Command, Event};
use super::worker::{self, Request, Resolve};
use layerscope_engine::{Error, Interrupt, Result};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Capacity of the command channel.
const COMMANDS: usize = 16;
/// Capacity of the event channel.
const EVENTS: usize = 1024;
/// Stack size, as of a main thread, because this thread renders chat templates of users.
const STACK: usize = 8 << 20;

/// The window's side of the engine: sends commands and receives events without blocking.
///
/// Dropping it stops the work like [`Command::Cancel`] and waits for the thread to end; recorded prompts are
/// kept.
pub struct LocalEngine {
    /// The channels; `None` only while being dropped.
    commands: Option<SyncSender<Request>>,
    events: Option<Receiver<Event>>,
    /// Cancel flag of all commands sent since the last cancel. Each cancel sets it and installs a new flag,
    /// so that it affects all older commands and no newer one.
    interrupt: RefCell<Arc<Interrupt>>,
    /// Commands whose [`Event::Idle`] was not received yet.
    unfinished: Cell<usize>,
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
            events: Some(events),
            interrupt: RefCell::default(),
            unfinished: Cell::new(0),
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
                self.unfinished.set(self.unfinished.get() + 1);
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(Error::failure(format!(
                "the engine has {COMMANDS} commands waiting already; wait for one to end, or cancel"
            ))),
            Err(TrySendError::Disconnected(_)) => Err(stopped()),
        }
    }

    /// The next event, if any.
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

    /// Whether a command is running or queued, according to the events received so far.
    pub fn is_busy(&self) -> bool {
        self.unfinished.get() > 0
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
        self.events = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
