//! A window on another machine: its connection, and what is read there.

use super::files::{Files, prompt_text};
use super::{Open, Viewer};
use crate::data::{Found, Task, look};
use crate::engine::Engine;
use crate::engine::message::{Command, Event};
use crate::engine::remote::{Answer, Link, Pipes, Question, RemoteEngine, Traffic};
use crate::state::View;
use layerscope_engine::{Error, ModelSource, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Another machine, and how to reach the engine on it.
#[derive(Clone)]
pub struct Host {
    /// Its name for the status line and for sentences.
    pub name: String,
    /// Starts whatever leads to the engine.
    pub reach: Arc<dyn Fn() -> Result<Pipes> + Send + Sync>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}

/// The other machine of a window.
pub(super) struct There {
    host: Host,
    connection: Connection,
    /// What to open once the connection stands.
    open: Option<Open>,
    /// Whether what the window was started with was found.
    is_started: bool,
    /// Why it was not.
    in_vain: Option<String>,
    /// The model to load again after the connection broke.
    reload: Option<ModelSource>,
    looking: Option<(PathBuf, Task<Look>)>,
    /// Names of the models there.
    models: Option<Task<Vec<ModelSource>>>,
    /// The text of a prompt file that was asked for.
    text: Option<Task<String>>,
    /// A command that needs something from there first.
    preparing: Option<Task<Command>>,
}

/// What is at a path, and the model if it is one.
type Look = (Found, Option<ModelSource>);

enum Connection {
    Coming(Task<(Link, RemoteEngine)>),
    Standing(Arc<Link>),
    /// Why.
    Gone(String),
}

impl There {
    pub(super) fn new(host: Host, open: Open, ctx: &eframe::egui::Context) -> Self {
        let connection = Connection::Coming(connect(&host, ctx));
        Self {
            host,
            connection,
            open: Some(open),
            is_started: false,
            in_vain: None,
            reload: None,
            looking: None,
            models: None,
            text: None,
            preparing: None,
        }
    }

    /// Whether something is on its way.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.connection, Connection::Coming(_))
            || self.looking.is_some()
            || self.models.is_some()
            || self.text.is_some()
            || self.preparing.is_some()
    }

    /// The connection, while it stands.
    pub(super) fn link(&self) -> Option<&Arc<Link>> {
        match &self.connection {
            Connection::Standing(link) => Some(link),
            Connection::Coming(_) | Connection::Gone(_) => None,
        }
    }

    /// Why there is none.
    pub(super) fn gone(&self) -> Option<&str> {
        match &self.connection {
            Connection::Gone(reason) => Some(reason),
            Connection::Coming(_) | Connection::Standing(_) => None,
        }
    }

    /// Whether it is being connected to.
    pub(super) fn is_coming(&self) -> bool {
        matches!(self.connection, Connection::Coming(_))
    }

    pub(super) fn host(&self) -> &str {
        &self.host.name
    }
}

fn connect(host: &Host, ctx: &eframe::egui::Context) -> Task<(Link, RemoteEngine)> {
    let (host, redraw, wake) = (host.clone(), ctx.clone(), ctx.clone());
    Task::run(move || redraw.request_repaint(), async move {
        Link::reach(&host.name, (host.reach)()?, move || wake.request_repaint()).await
    })
}

impl Viewer {
    /// The bytes that crossed the present connection.
    pub fn traffic(&self) -> Option<Traffic> {
        self.there.as_ref()?.link().map(|link| link.traffic())
    }

    /// Why the connection to the other machine is gone, if it is.
    pub fn connection_lost(&self) -> Option<&str> {
        self.there.as_ref()?.gone()
    }

    /// Why the window was started in vain: the other machine cannot be reached, or has nothing at the path.
    pub fn started_in_vain(&self) -> Option<&str> {
        self.there.as_ref()?.in_vain.as_deref()
    }

    /// Where files are read.
    ///
    /// # Errors
    /// [`Error::Failure`] while a connection does not stand.
    pub(super) fn files(&self) -> Result<Files> {
        let Some(there) = &self.there else { return Ok(Files::Here) };
        match &there.connection {
            Connection::Standing(link) => Ok(Files::There(Arc::clone(link))),
            Connection::Coming(_) => {
                Err(Error::failure(format!("{} is still being connected to", there.host())))
            }
            Connection::Gone(_) => {
                Err(Error::failure(format!("the connection to {} is gone; reconnect first", there.host())))
            }
        }
    }

    /// Connects anew, where the connection is gone.
    pub(super) fn reconnect(&mut self) {
        let ctx = self.ctx.clone();
        match &mut self.there {
            None => self.say_error(
                "this window is on this machine; layerscope view ssh://HOST/RUN opens one on another",
            ),
            Some(there) if there.gone().is_some() => {
                there.connection = Connection::Coming(connect(&there.host, &ctx));
            }
            Some(_) => {}
        }
    }

    /// Handles what has come from the other machine since the last frame.
    pub(super) fn progress_there(&mut self) {
        self.take_connection();
        self.notice_break();
        let Some(there) = &mut self.there else { return };
        if let Some((path, found)) =
            there.looking.as_ref().and_then(|(path, task)| Some((path.clone(), task.poll()?)))
        {
            there.looking = None;
            match found {
                Ok((found, model)) => {
                    there.is_started = true;
                    self.open_found(&path, found, model);
                }
                Err(error) => {
                    there.in_vain = Some(error.to_string()).filter(|_| !there.is_started);
                    self.say_error(error.to_string());
                }
            }
        }
        let Some(there) = &mut self.there else { return };
        if let Some(models) = there.models.as_ref().and_then(Task::poll) {
            there.models = None;
            // Without them, models are opened by path.
            self.launch.models = models.unwrap_or_default();
        }
        let Some(there) = &mut self.there else { return };
        if let Some(text) = there.text.as_ref().and_then(Task::poll) {
            there.text = None;
            match text {
                Ok(text) => (self.recorder.text, self.state.view) = (text, View::Record),
                Err(error) => self.say_error(error.to_string()),
            }
        }
        let Some(there) = &mut self.there else { return };
        if let Some(command) = there.preparing.as_ref().and_then(Task::poll) {
            there.preparing = None;
            match command {
                Ok(command) => self.send(command),
                Err(error) => self.say_error(error.to_string()),
            }
        }
    }

    fn take_connection(&mut self) {
        let Some(there) = &mut self.there else { return };
        let Connection::Coming(task) = &there.connection else { return };
        let Some(connected) = task.poll() else { return };
        let (link, engine) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                there.in_vain = Some(error.to_string()).filter(|_| !there.is_started);
                there.connection = Connection::Gone(error.to_string());
                return;
            }
        };
        let link = Arc::new(link);
        there.connection = Connection::Standing(Arc::clone(&link));
        let (open, reload) = (there.open.take(), there.reload.take());
        there.is_started |= !matches!(open, Some(Open::Path(_)));
        let ctx = self.ctx.clone();
        there.models = Some(Task::run(move || ctx.request_repaint(), async move {
            match link.answer(Question::Models).await?.answer {
                Answer::Models(names) => {
                    Ok(names.into_iter().map(|name| ModelSource::named(name.clone(), name)).collect())
                }
                _ => Err(Error::failure("another answer than was asked for")),
            }
        }));
        self.engine = Some(Engine::There(engine));
        if let Some(source) = reload {
            self.load(source);
        }
        if let Some(open) = open {
            self.open_first(open);
        }
    }

    /// Notices that the connection broke: what is shown stays, and nothing more is waited for.
    fn notice_break(&mut self) {
        let Some(there) = &mut self.there else { return };
        let Connection::Standing(link) = &there.connection else { return };
        let Some(reason) = link.broken() else { return };
        // First what came before.
        while let Some(event) = self.engine.as_ref().and_then(Engine::try_event) {
            self.take_event(event);
        }
        let Some(there) = &mut self.there else { return };
        there.connection = Connection::Gone(reason);
        let looking = there.looking.take().map(|(path, _)| path);
        // What was being opened is opened once there is a connection again.
        there.open = self.opening.take().map(|(folder, _)| folder).or(looking).map(Open::Path);
        (there.models, there.text, there.preparing) = (None, None, None);
        if self.model.take().is_some() {
            there.reload = self.loaded_from.clone();
        }
        (self.engine, self.reading) = (None, None);
        self.second.stop_opening();
        self.fetching.forget();
        self.tiling.failed();
        // Recorder, training and generation end with it.
        self.take_event(Event::Idle);
    }

    /// Looks at what is at a path of the other machine, and opens it.
    pub(super) fn look_there(&mut self, link: Arc<Link>, path: &Path) {
        let (ctx, asked) = (self.ctx.clone(), path.to_owned());
        let task = Task::run(move || ctx.request_repaint(), async move {
            match link.answer(Question::Look { path: asked }).await?.answer {
                Answer::Found { found, model } => Ok((found, model)),
                _ => Err(Error::failure("another answer than was asked for")),
            }
        });
        if let Some(there) = &mut self.there {
            there.looking = Some((path.to_owned(), task));
        }
    }

    /// Reads a prompt file of the other machine into the recording form.
    pub(super) fn load_prompts_there(&mut self, files: Files, path: &Path) {
        let (ctx, path) = (self.ctx.clone(), path.to_owned());
        let task = Task::run(move || ctx.request_repaint(), async move { files.prompt_text(&path).await });
        if let Some(there) = &mut self.there {
            there.text = Some(task);
        }
    }

    /// Sends a command once what it needs has come.
    pub(super) fn prepare(&mut self, command: impl Future<Output = Result<Command>> + Send + 'static) {
        let ctx = self.ctx.clone();
        if let Some(there) = &mut self.there {
            there.preparing = Some(Task::run(move || ctx.request_repaint(), command));
        }
    }

    /// A file that was dropped on a window of another machine: prompts are text, everything else would have to be there.
    pub(super) fn take_dropped_here(&mut self, path: &Path) {
        let host = self.there.as_ref().map_or("another machine", |there| there.host());
        match look(path) {
            Found::Prompts if self.state.view != View::Adapt => match prompt_text(path) {
                Ok(text) => (self.recorder.text, self.state.view) = (text, View::Record),
                Err(error) => self.say_error(error.to_string()),
            },
            _ => self.say_error(format!(
                "{} is on this machine, and this window is on {host}; type a path of {host} instead",
                path.display()
            )),
        }
    }
}
