//! Two pipes to an engine elsewhere, with threads of their own that write, read and watch.

use super::super::BEAT;
use super::super::outbox::{Next, Outbox};
use super::super::question::{Answered, Question};
use super::super::wire::{self, NotGreeted, PROTOCOL, ToEngine};
use super::{Link, RemoteEngine, Shared, lock};
use crate::engine::inbox::{EVENTS, Inbox};
use crate::engine::message::Event;
use layerscope_engine::{Error, Result};
use std::io::{self, BufReader, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

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
pub(in crate::engine::remote) type Explain = Box<dyn Fn(Option<ExitStatus>, &str) -> String + Send + Sync>;

/// What frames go through.
pub(super) struct Way {
    outbox: Outbox,
    program: Mutex<Option<Program>>,
    /// Whether the window has yet to take what was heard.
    is_delivering: AtomicBool,
}

impl Way {
    /// Sends nothing more.
    pub(super) fn close(&self) {
        self.outbox.close();
    }

    /// Ends the program that leads to the engine.
    pub(super) fn end(&self) {
        if let Some(mut program) = lock(&self.program).take() {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
    }

    /// Whether no program of this machine leads to the engine.
    pub(super) fn is_direct(&self) -> bool {
        lock(&self.program).is_none()
    }

    /// Why the other side has closed its output.
    pub(super) fn ended(&self, host: &str) -> String {
        match &mut *lock(&self.program) {
            Some(program) => program.explained(),
            None => format!("the connection to {host} is closed"),
        }
    }
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
        let way =
            Way { outbox: Outbox::default(), program: Mutex::new(program), is_delivering: false.into() };
        let shared = Shared::new(host, way, wake);
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

    /// [`Self::connect`], for a task.
    pub(crate) async fn reach(
        host: &str,
        pipes: Pipes,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, RemoteEngine)> {
        Self::connect(host, pipes, wake)
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

    /// [`Self::ask`], for a task.
    pub(crate) async fn answer(&self, question: Question) -> Result<Answered> {
        self.ask(question)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The engine finds its input closed and stops; the program that leads to it then ends by itself.
        self.shared.way.close();
        let shared = Arc::clone(&self.shared);
        let _ = spawn("end of the connection", move || {
            if let Some(mut program) = lock(&shared.way.program).take()
                && program.ended().is_none()
            {
                let _ = program.child.kill();
                let _ = program.child.wait();
            }
        });
    }
}

impl Shared {
    /// Sends a frame, sooner or later.
    pub(super) fn send(&self, frame: Vec<u8>) {
        self.way.outbox.put(frame);
    }

    /// Writes frames, and a sign of life where there are none for a while.
    fn write(&self, output: &mut dyn Write) {
        let beat = wire::frame(&ToEngine::Beat).unwrap_or_default();
        loop {
            let frame = match self.way.outbox.next(BEAT) {
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
                Ok(None) => return self.way.ended(&self.host),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.unreadable(&error);
                }
                Err(_) => return self.way.ended(&self.host),
            };
            let deliver = |event| {
                self.way.is_delivering.store(true, Ordering::Release);
                let sent = events.send(event);
                *lock(&self.heard) = Instant::now();
                self.way.is_delivering.store(false, Ordering::Release);
                sent.map_err(|_| "the window is closed".into())
            };
            if let Err(reason) = self.take(message, deliver) {
                return reason;
            }
        }
    }
}

impl Program {
    /// Why it ended.
    pub(in crate::engine::remote) fn explained(&mut self) -> String {
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
        if let Some(reason) = shared.silence()
            && !shared.way.is_delivering.load(Ordering::Acquire)
        {
            return shared.break_off(&reason);
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
