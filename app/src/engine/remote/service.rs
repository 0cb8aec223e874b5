//! The engine's side: one engine, whose commands and events cross two pipes, and questions answered on threads of their own.

use super::answering::Answering;
use super::outbox::{Next, Outbox};
use super::question::Question;
use super::wire::PROTOCOL;
use super::wire::{self, NotGreeted, ToEngine, ToWindow};
use super::{BEAT, ENGINE_PATIENCE};
use crate::engine::LocalEngine;
use crate::engine::message::{Command, Event};
use crate::viewer::SeenModels;
use layerscope_engine::{Error, Interrupt, ModelSource, Result, guarded};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// Time between looks at the interrupt.
const LOOK: Duration = Duration::from_millis(200);
/// Messages that were read and wait; the window's way is not read further meanwhile.
const MESSAGES: usize = 64;
/// Questions that are answered at once.
const MOST_QUESTIONS: usize = 64;

/// What the program knows of the machine that it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The model of a path, a name or a Hugging Face id, which is downloaded.
    pub resolve: fn(&str) -> Result<ModelSource>,
    /// The models that can be loaded by name.
    pub models: fn() -> Vec<ModelSource>,
    /// Where models were loaded from.
    pub seen: SeenModels,
}

/// What the service waits for.
enum Happening {
    Message(Box<ToEngine>),
    /// The window is gone, or sends what cannot be read.
    Gone(Option<String>),
    /// The engine has an event, or there is room for one.
    Wake,
}

/// Runs an engine for the window at the other end of two pipes, until the input ends, the window falls silent, or the program is
/// interrupted. Work is then stopped as by [`Command::Cancel`]: recorded prompts are kept.
///
/// # Errors
/// [`Error::Input`] if the other side is no window of this protocol or sends what cannot be read; [`Error::Interrupted`].
pub fn serve(
    input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    machine: Machine,
    interrupt: &Interrupt,
) -> Result<()> {
    let unwritable = |error| Error::failure(format!("cannot write to the window ({error})"));
    let greeting = wire::greeting(PROTOCOL, env!("CARGO_PKG_VERSION"));
    wire::write(&mut output, &greeting).map_err(unwritable)?;
    let (happens, happenings) = sync_channel(MESSAGES);
    let (outbox, pending) = (Arc::new(Outbox::default()), Arc::new(AtomicBool::new(false)));
    // Wakes that have not been looked at are one.
    let (sender, is_pending) = (happens.clone(), Arc::clone(&pending));
    let wake = move || {
        // Where messages wait, events are passed on behind each of them, so that nobody has to wait here.
        if !is_pending.swap(true, Ordering::AcqRel) && sender.try_send(Happening::Wake).is_err() {
            is_pending.store(false, Ordering::Release);
        }
    };
    let sender = happens.clone();
    spawn("input", move || read(input, &sender))?;
    let (frames, room, gone) = (Arc::clone(&outbox), wake.clone(), happens);
    spawn("output", move || {
        write(&frames, &mut output, room);
        let _ = gone.send(Happening::Gone(None));
    })?;
    let service = Service {
        engine: LocalEngine::resolving(machine.resolve, wake),
        outbox: Arc::clone(&outbox),
        answering: Arc::new(Answering::new(machine)),
        asked: Arc::default(),
        machine,
    };
    let ended = service.run(&happenings, &pending, interrupt);
    outbox.close();
    ended
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>> {
    let spawned = Builder::new().name(name.into()).spawn(work);
    spawned.map_err(|error| Error::failure(format!("cannot start a thread ({error})")))
}

/// Reads messages until there are none.
fn read(input: impl Read, happens: &SyncSender<Happening>) {
    let mut input = BufReader::new(input);
    let problem = match wire::read_greeting(&mut input) {
        Ok(_) => loop {
            match wire::read(&mut input) {
                Ok(Some(message)) => {
                    if happens.send(Happening::Message(Box::new(message))).is_err() {
                        break None;
                    }
                }
                Ok(None) => break None,
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    break Some(format!("the window sends what cannot be read: {error}"));
                }
                Err(_) => break None,
            }
        },
        Err(NotGreeted::Silent) => None,
        Err(NotGreeted::Other(_)) => Some(
            "`layerscope engine --stdio` is started by `layerscope view ssh://HOST/RUN`; its input is no window"
                .into(),
        ),
        Err(NotGreeted::Protocol { number, version }) => Some(format!(
            "the window is layerscope {version} with protocol {number}, this is layerscope {} with protocol {PROTOCOL}; install \
             the same version on both machines",
            env!("CARGO_PKG_VERSION")
        )),
    };
    let _ = happens.send(Happening::Gone(problem));
}

/// Writes frames, and a sign of life where there are none for a while.
fn write(outbox: &Outbox, output: &mut impl Write, room: impl Fn()) {
    let beat = wire::frame(&ToWindow::Beat).unwrap_or_default();
    loop {
        let frame = match outbox.next(BEAT) {
            Next::Frame(frame) => frame,
            Next::Nothing => beat.clone(),
            Next::Closed => break,
        };
        if wire::write(output, &frame).is_err() {
            break;
        }
        room();
    }
    outbox.close();
}

struct Service {
    engine: LocalEngine,
    outbox: Arc<Outbox>,
    answering: Arc<Answering>,
    /// Questions that are being answered.
    asked: Arc<AtomicUsize>,
    machine: Machine,
}

impl Service {
    fn run(
        mut self,
        happenings: &Receiver<Happening>,
        pending: &AtomicBool,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let mut heard = Instant::now();
        loop {
            match happenings.recv_timeout(LOOK) {
                Ok(Happening::Message(message)) => {
                    heard = Instant::now();
                    match *message {
                        ToEngine::Command(command) => self.command(command),
                        ToEngine::Question { id, question } => self.question(id, question),
                        ToEngine::Taken => self.outbox.taken(),
                        ToEngine::Beat => {}
                    }
                }
                Ok(Happening::Gone(None)) => return Ok(()),
                Ok(Happening::Gone(Some(problem))) => return Err(Error::input(problem)),
                Ok(Happening::Wake) => pending.store(false, Ordering::Release),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            layerscope_engine::check_interrupt(interrupt)?;
            if heard.elapsed() > ENGINE_PATIENCE {
                return Err(Error::failure("the window has been silent for too long; its work is stopped"));
            }
            self.pass_events_on();
        }
    }

    fn command(&mut self, command: Command) {
        if let Err(error) = self.engine.send(command) {
            self.tell(&ToWindow::Event(Event::Failed(error.to_string())));
            self.tell(&ToWindow::Event(Event::Idle));
        }
    }

    fn pass_events_on(&mut self) {
        while self.outbox.has_room()
            && let Some(event) = self.engine.try_event()
        {
            if let Event::Loaded(model) = &event
                && let Some(path) = &model.path
            {
                (self.machine.seen.remember)(&model.sha256, path);
            }
            self.tell(&ToWindow::Event(event));
        }
    }

    fn tell(&self, message: &ToWindow) {
        match wire::frame(message) {
            Ok(frame) => self.outbox.put(frame),
            Err(error) => {
                // A sentence is never too large.
                let failed = wire::frame(&ToWindow::Event(Event::Failed(error.to_string())));
                failed.into_iter().for_each(|frame| self.outbox.put(frame));
            }
        }
    }

    fn question(&self, id: u64, question: Question) {
        let (outbox, answering, asked) =
            (Arc::clone(&self.outbox), Arc::clone(&self.answering), Arc::clone(&self.asked));
        let refuse = |sentence: &str| {
            let answer = Err(sentence.to_owned());
            wire::frame(&ToWindow::Answer { id, answer })
                .into_iter()
                .for_each(|frame| self.outbox.put_small(frame));
        };
        if asked.fetch_add(1, Ordering::AcqRel) >= MOST_QUESTIONS {
            asked.fetch_sub(1, Ordering::AcqRel);
            return refuse("too many questions at once");
        }
        let work = move || {
            let mut piece = |bytes: Vec<u8>| {
                let frame = wire::frame(&ToWindow::Piece { id, bytes });
                frame.is_ok_and(|frame| outbox.put_bulk(frame))
            };
            let answer = guarded(|| answering.answer(question, &mut piece));
            let frame = wire::frame(&ToWindow::Answer { id, answer })
                .or_else(|error| wire::frame(&ToWindow::Answer { id, answer: Err(error.to_string()) }));
            if let Ok(frame) = frame {
                outbox.put_bulk(frame);
            }
            asked.fetch_sub(1, Ordering::AcqRel);
        };
        if spawn("question", work).is_err() {
            self.asked.fetch_sub(1, Ordering::AcqRel);
            refuse("the engine's machine starts no more threads");
        }
    }
}
