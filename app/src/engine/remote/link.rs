//! The window's side: a connection to an engine elsewhere, over which commands, events, questions and answers go.

use super::outbox::{Next, Outbox};
use super::question::{Answered, Question};
use super::wire::{self, NotGreeted, PROTOCOL, ToEngine, ToWindow};
use super::{BEAT, MOST_FRAME, WINDOW_PATIENCE};
use crate::engine::inbox::{EVENTS, Inbox, full};
use crate::engine::message::{Command, Event, Pattern};
use layerscope_engine::{Error, Result};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Most bytes of an answer.
const MOST_ANSWER: usize = 1 << 30;
/// Most layers, and heads of a layer, of a model elsewhere.
const MOST_LAYERS: usize = 1 << 16;
/// How long a program is waited for that has closed its output.
const ENDING: Duration = Duration::from_secs(3);

/// Both ways to an engine elsewhere.
pub struct Pipes {
    /// What it says.
    pub input: Box<dyn Read + Send>,
    /// What it is told.
    pub output: Box<dyn Write + Send>,
    /// The program that leads there, such as ssh.
    pub program: Option<Program>,
}

/// A program that leads to an engine.
pub struct Program {
    /// It.
    pub child: Child,
    /// The end of what it wrote to its standard error.
    pub said: Arc<Mutex<String>>,
    /// The thread that reads it; it ends when standard error is closed.
    pub listener: JoinHandle<()>,
    /// Why it ended, in a sentence.
    pub explain: Explain,
}

/// Says in a sentence why a program ended, from its status and what it wrote to its standard error.
pub(super) type Explain = Box<dyn Fn(Option<ExitStatus>, &str) -> String + Send + Sync>;

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
    outbox: Outbox,
    state: Mutex<State>,
    program: Mutex<Option<Program>>,
    heard: Mutex<Instant>,
    /// Whether the window has yet to take what was heard.
    is_delivering: AtomicBool,
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
    /// Greets the engine at the other end of two pipes; `host` is its name in sentences. Waits for its greeting. `wake` is called
    /// after each event, and when the connection breaks.
    ///
    /// # Errors
    /// [`Error::Failure`] if there is no engine of this protocol, in a sentence that says what is there instead.
    pub fn connect(
        host: &str,
        pipes: Pipes,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, RemoteEngine)> {
        let Pipes { input, mut output, program } = pipes;
        let shared = Arc::new(Shared {
            host: host.to_owned(),
            outbox: Outbox::default(),
            state: Mutex::default(),
            program: Mutex::new(program),
            heard: Mutex::new(Instant::now()),
            is_delivering: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            wake: Box::new(wake),
        });
        let (events, come) = sync_channel(EVENTS);
        let (greeted, greeting) = sync_channel(1);
        let ours = wire::greeting(PROTOCOL, env!("CARGO_PKG_VERSION"));
        let writer = Arc::clone(&shared);
        spawn("to the engine", move || {
            if wire::write(&mut output, &ours).is_ok() {
                writer.sent.fetch_add(ours.len() as u64, Ordering::Relaxed);
                writer.write(&mut output);
            }
        })?;
        let reader = Arc::clone(&shared);
        spawn("from the engine", move || {
            let mut input = BufReader::with_capacity(1 << 16, Counted { input, shared: Arc::clone(&reader) });
            let version = wire::read_greeting(&mut input);
            let is_greeted = version.is_ok();
            let _ = greeted.send(version);
            if is_greeted {
                let reason = reader.read(&mut input, &events);
                drop(events);
                reader.break_off(&reason);
            }
        })?;
        let version = greeting.recv().unwrap_or(Err(NotGreeted::Silent));
        match version {
            Ok(version) => lock(&shared.state).version = version,
            Err(problem) => {
                let sentence = shared.not_greeted(problem);
                shared.break_off(&sentence);
                return Err(Error::failure(sentence));
            }
        }
        *lock(&shared.heard) = Instant::now();
        let watched = Arc::downgrade(&shared);
        spawn("watch over the engine", move || watch(&watched))?;
        let engine = RemoteEngine { shared: Arc::clone(&shared), inbox: Inbox::new(come) };
        Ok((Self { shared }, engine))
    }

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

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The other side's, or [`Error::Failure`] if the connection is gone.
    pub fn ask(&self, question: Question) -> Result<Answered> {
        let (sender, answer) = sync_channel(1);
        self.ask_then(question, move |answered| drop(sender.send(answered)));
        answer.recv().unwrap_or_else(|_| Err(Error::failure(format!("{} gave no answer", self.host()))))
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
                shared.outbox.put(frame);
            }
            Err(error) => {
                drop(state);
                done(Err(error));
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The engine finds its input closed and stops; the program that leads to it then ends by itself.
        self.shared.outbox.close();
        let shared = Arc::clone(&self.shared);
        let _ = spawn("end of the connection", move || {
            if let Some(mut program) = lock(&shared.program).take()
                && program.ended().is_none()
            {
                let _ = program.child.kill();
                let _ = program.child.wait();
            }
        });
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
        self.shared.outbox.put(wire::frame(&ToEngine::Command(command))?);
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
    /// Writes frames, and a sign of life where there are none for a while.
    fn write(&self, output: &mut dyn Write) {
        let beat = wire::frame(&ToEngine::Beat).unwrap_or_default();
        loop {
            let frame = match self.outbox.next(BEAT) {
                Next::Frame(frame) => frame,
                Next::Nothing => beat.clone(),
                Next::Closed => break,
            };
            let mut output = &mut *output;
            if wire::write(&mut output, &frame).is_err() {
                break;
            }
            self.sent.fetch_add(frame.len() as u64, Ordering::Relaxed);
        }
    }

    /// Reads messages until there are none; returns why.
    fn read(&self, input: &mut impl Read, events: &SyncSender<Event>) -> String {
        loop {
            let message = match wire::read(input) {
                Ok(Some(message)) => message,
                Ok(None) => return self.ended(),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return format!("{} sends what cannot be read: {error}", self.host);
                }
                Err(_) => return self.ended(),
            };
            match message {
                ToWindow::Event(event) if !is_sound(&event) => {
                    return format!("{} sends what contradicts itself", self.host);
                }
                ToWindow::Event(event) => {
                    self.is_delivering.store(true, Ordering::Release);
                    let sent = events.send(event);
                    *lock(&self.heard) = Instant::now();
                    self.is_delivering.store(false, Ordering::Release);
                    if sent.is_err() {
                        return "the window is closed".into();
                    }
                    (self.wake)();
                }
                ToWindow::Piece { id, bytes } => {
                    if let Some(waiting) = lock(&self.state).waiting.get_mut(&id) {
                        if waiting.bytes.len() + bytes.len() > MOST_ANSWER {
                            return format!("{} answers with more than {} MiB", self.host, MOST_ANSWER >> 20);
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
        }
    }

    /// Ends the connection, for a reason that is then told to all who wait for an answer.
    fn break_off(&self, reason: &str) {
        self.outbox.close();
        let mut state = lock(&self.state);
        let reason = state.broken.get_or_insert_with(|| reason.to_owned()).clone();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        if let Some(mut program) = lock(&self.program).take() {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
        for (_, Waiting { done, .. }) in waiting {
            done(Err(Error::failure(reason.clone())));
        }
        (self.wake)();
    }

    /// Why the other side has closed its output.
    fn ended(&self) -> String {
        match &mut *lock(&self.program) {
            Some(program) => program.explained(),
            None => format!("the connection to {} is closed", self.host),
        }
    }

    fn not_greeted(&self, problem: NotGreeted) -> String {
        let host = &self.host;
        match problem {
            NotGreeted::Silent => self.ended(),
            NotGreeted::Other(text) if lock(&self.program).is_none() => {
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

impl Program {
    /// Why it ended.
    pub(super) fn explained(&mut self) -> String {
        let status = self.ended();
        // Its last words may still be in the pipe; a process that it has left behind may never close that.
        wait(ENDING, || self.listener.is_finished().then_some(()));
        let said = lock(&self.said).clone();
        (self.explain)(status, &said)
    }

    /// How it ended, if it does within [`ENDING`].
    fn ended(&mut self) -> Option<ExitStatus> {
        wait(ENDING, || self.child.try_wait().transpose()).and_then(io::Result::ok)
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

/// Asks every five milliseconds until there is an answer, at most so long.
fn wait<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        match ask() {
            None if start.elapsed() < patience => thread::sleep(Duration::from_millis(5)),
            answer => return answer,
        }
    }
}

/// Gives a connection up on which nothing is heard.
fn watch(shared: &Weak<Shared>) {
    loop {
        thread::sleep(Duration::from_secs(1));
        let Some(shared) = shared.upgrade() else { return };
        if lock(&shared.state).broken.is_some() {
            return;
        }
        let is_silent = lock(&shared.heard).elapsed() > WINDOW_PATIENCE;
        if is_silent && !shared.is_delivering.load(Ordering::Acquire) {
            let seconds = WINDOW_PATIENCE.as_secs();
            return shared
                .break_off(&format!("nothing was heard from {} for {seconds} seconds", shared.host));
        }
    }
}

/// Counts what is read, and notes when.
struct Counted {
    input: Box<dyn Read + Send>,
    shared: Arc<Shared>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.shared.received.fetch_add(read as u64, Ordering::Relaxed);
        *lock(&self.shared.heard) = Instant::now();
        Ok(read)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::failure(format!("cannot start a thread ({error})")))
}
