//! The window's side: a connection to an engine elsewhere, over which commands, events, questions and answers go.

#[cfg(not(target_arch = "wasm32"))]
#[path = "link/pipes.rs"]
mod way;
#[cfg(target_arch = "wasm32")]
#[path = "link/socket.rs"]
mod way;

use super::question::{Answered, Question};
use super::wire::{self, NotGreeted, PROTOCOL, ToEngine, ToWindow};
use super::{MOST_FRAME, WINDOW_PATIENCE};
use crate::engine::inbox::{Inbox, full};
use crate::engine::message::{Command, Event, Pattern};
use layerscope_engine::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use way::Way;
use web_time::Instant;

pub use way::*;

/// Most bytes of an answer.
const MOST_ANSWER: usize = 1 << 30;
/// Most layers, and heads of a layer, of a model elsewhere.
const MOST_LAYERS: usize = 1 << 16;
/// Bytes that crossed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// From the engine.
    pub received: u64,
    /// To the engine.
    pub sent: u64,
}

/// A connection. Its threads end with it, and so does the engine's work.
pub struct Link {
    shared: Arc<Shared>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.shared.host)
    }
}

type Done = Box<dyn FnOnce(Result<Answered>) + Send>;

struct Shared {
    host: String,
    way: Way,
    state: Mutex<State>,
    heard: Mutex<Instant>,
    received: AtomicU64,
    sent: AtomicU64,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Why the connection is gone.
    broken: Option<String>,
    /// The other side's version.
    version: String,
    asked: u64,
    waiting: HashMap<u64, Waiting>,
}

struct Waiting {
    bytes: Vec<u8>,
    done: Done,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// The other machine's name.
    pub fn host(&self) -> &str {
        &self.shared.host
    }

    /// The other side's version of layerscope.
    pub fn version(&self) -> String {
        lock(&self.shared.state).version.clone()
    }

    /// Why the connection is gone; `None` while it stands.
    pub fn broken(&self) -> Option<String> {
        lock(&self.shared.state).broken.clone()
    }

    /// Bytes that crossed so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            received: self.shared.received.load(Ordering::Relaxed),
            sent: self.shared.sent.load(Ordering::Relaxed),
        }
    }

    /// Asks, and gives the answer to `done`, on another thread.
    pub fn ask_then(&self, question: Question, done: impl FnOnce(Result<Answered>) + Send + 'static) {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        if let Some(reason) = state.broken.clone() {
            drop(state);
            return done(Err(Error::failure(reason)));
        }
        let id = state.asked;
        match wire::frame(&ToEngine::Question { id, question }) {
            Ok(frame) => {
                state.asked += 1;
                state.waiting.insert(id, Waiting { bytes: vec![], done: Box::new(done) });
                drop(state);
                shared.send(frame);
            }
            Err(error) => {
                drop(state);
                done(Err(error));
            }
        }
    }
}

/// The window's side of an engine elsewhere: sends commands and receives events without blocking, as
/// [`crate::engine::LocalEngine`] does.
pub struct RemoteEngine {
    shared: Arc<Shared>,
    inbox: Inbox,
}

impl RemoteEngine {
    /// Sends a command; [`Command::Cancel`] takes effect as soon as it arrives.
    ///
    /// # Errors
    /// [`Error::Failure`] if the connection is gone, too many commands wait, or the command is too large.
    pub fn send(&self, command: Command) -> Result<()> {
        if let Some(reason) = lock(&self.shared.state).broken.clone() {
            return Err(Error::failure(reason));
        }
        let counts = !matches!(command, Command::Cancel);
        if counts && self.inbox.is_full() {
            return Err(full());
        }
        self.shared.send(wire::frame(&ToEngine::Command(command))?);
        if counts {
            self.inbox.expect_idle();
        }
        Ok(())
    }

    /// The next event, if any.
    pub fn try_event(&self) -> Option<Event> {
        self.inbox.try_event()
    }

    /// Whether a command is running or queued, according to the events received so far.
    pub fn is_busy(&self) -> bool {
        self.inbox.is_busy()
    }
}

impl Shared {
    fn new(host: &str, way: Way, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            host: host.to_owned(),
            way,
            state: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            wake: Box::new(wake),
        })
    }

    /// Takes a message; `deliver` passes events on.
    ///
    /// # Errors
    /// Why the connection ends with it.
    fn take(
        &self,
        message: ToWindow,
        deliver: impl FnOnce(Event) -> std::result::Result<(), String>,
    ) -> std::result::Result<(), String> {
        if matches!(message, ToWindow::Piece { .. } | ToWindow::Answer { .. }) {
            self.send(wire::frame(&ToEngine::Taken).unwrap_or_default());
        }
        match message {
            ToWindow::Event(event) if !is_sound(&event) => {
                return Err(format!("{} sends what contradicts itself", self.host));
            }
            ToWindow::Event(event) => {
                deliver(event)?;
                (self.wake)();
            }
            ToWindow::Piece { id, bytes } => {
                if let Some(waiting) = lock(&self.state).waiting.get_mut(&id) {
                    if waiting.bytes.len() + bytes.len() > MOST_ANSWER {
                        return Err(format!(
                            "{} answers with more than {} MiB",
                            self.host,
                            MOST_ANSWER >> 20
                        ));
                    }
                    waiting.bytes.extend(bytes);
                }
            }
            ToWindow::Answer { id, answer } => {
                let waiting = lock(&self.state).waiting.remove(&id);
                if let Some(Waiting { bytes, done }) = waiting {
                    done(answer.map(|answer| Answered { answer, bytes }).map_err(Error::input));
                    (self.wake)();
                }
            }
            ToWindow::Beat => {}
        }
        Ok(())
    }

    /// Why a connection is given up on which nothing was heard for too long; `None` while it was.
    fn silence(&self) -> Option<String> {
        let seconds = WINDOW_PATIENCE.as_secs();
        let is_silent = lock(&self.heard).elapsed() > WINDOW_PATIENCE;
        is_silent.then(|| format!("nothing was heard from {} for {seconds} seconds", self.host))
    }

    /// What is wrong with what the other side sends.
    fn unreadable(&self, error: &io::Error) -> String {
        format!("{} sends what cannot be read: {error}", self.host)
    }

    /// Ends the connection, for a reason that is then told to all who wait for an answer.
    fn break_off(&self, reason: &str) {
        self.way.close();
        let mut state = lock(&self.state);
        let reason = state.broken.get_or_insert_with(|| reason.to_owned()).clone();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.way.end();
        for (_, Waiting { done, .. }) in waiting {
            done(Err(Error::failure(reason.clone())));
        }
        (self.wake)();
    }

    fn not_greeted(&self, problem: NotGreeted) -> String {
        let host = &self.host;
        match problem {
            NotGreeted::Silent => self.way.ended(host),
            NotGreeted::Other(text) if self.way.is_direct() => {
                format!("{host} began with “{text}” rather than as an engine does")
            }
            NotGreeted::Other(text) => format!(
                "{host} began with “{text}” rather than as an engine does; its shell must print nothing at the start of a command \
                 over ssh"
            ),
            NotGreeted::Protocol { number, version } => format!(
                "{host} has layerscope {version} with protocol {number}, this is layerscope {} with protocol {PROTOCOL}; install \
                 the same version on both machines",
                env!("CARGO_PKG_VERSION")
            ),
        }
    }
}

/// Whether the sizes that an event names are those of what it holds: views rely on them.
pub(super) fn is_sound(event: &Event) -> bool {
    match event {
        Event::Loaded(model) => model.layers.max(model.heads) <= MOST_LAYERS,
        Event::Pattern(Pattern { heads, steps, positions, values, .. }) => {
            let sizes = [*heads, *steps, *positions];
            let all = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
            sizes.iter().all(|size| *size <= MOST_FRAME) && all == Some(values.len())
        }
        Event::PatternTile { tile, .. } => {
            let cells = tile.rows.checked_mul(tile.columns);
            [&tile.max, &tile.mean].iter().all(|values| Some(values.len()) == cells)
        }
        _ => true,
    }
}
