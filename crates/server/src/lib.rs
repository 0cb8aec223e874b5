//! An OpenAI-compatible server on which every request names its policy.
//!
//! Requests come in on a tokio runtime ([`http`]) and go through one channel to the thread that runs the model ([`scheduler`]): sequences
//! under different policies join and leave at every step. What they yield goes back through a channel of each ([`job`]), and becomes
//! text where the request is answered ([`text`]).

mod http;
mod job;
mod metrics;
mod prefixes;
mod scheduler;
mod sequence;
mod served;
mod text;

use layerscope_engine::{Error, Interrupt, Model, Policy, Result};
use metrics::Metrics;
use scheduler::Scheduler;
use served::Served;
use std::io::{Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Serves one viewer of another machine: takes what it sends and gives what it is sent, until either way is closed or the interrupt
/// is set.
pub type Viewer = fn(Box<dyn Read + Send>, Box<dyn Write + Send>, &Interrupt) -> Result<()>;

/// Where and how to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name or address of the interface.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// The model's name in requests; `None`: its own.
    pub name: Option<String>,
    /// What clients must send as bearer token; needed where others than this machine can connect.
    pub api_key: Option<String>,
    /// Web pages whose scripts may send requests, as `https://host:port`.
    pub allow_origins: Vec<String>,
    /// Whether texts are multiplied as exactly as scores.
    pub exact: bool,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// Most sequences that run at once.
    pub max_sequences: usize,
    /// Most sequences that wait.
    pub queue: usize,
    /// Bytes for keys and values of running sequences and kept prefixes; `None`: half of what is free once the model is loaded.
    pub kv_memory: Option<u64>,
    /// New tokens where a request for a chat does not say how many.
    pub default_max_tokens: usize,
    /// Longest time from a request's arrival to its end.
    pub timeout: Duration,
    /// Serves viewers at `/viewer/engine`, a WebSocket; `None` lets none in. It needs a key.
    pub viewer: Option<Viewer>,
    /// The viewer as a page of a browser, served at `/viewer/` beside `viewer`; empty where it is not built in.
    pub page: &'static [PageFile],
}

/// A file of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageFile {
    /// Its name, with its extension; `index.html` is the page.
    pub name: &'static str,
    /// Its bytes, compressed by gzip.
    pub gzip: &'static [u8],
}

/// A model and the policies it is served under.
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// The same without the adapter that `model` has beside its weights; served as `NAME:base`.
    pub base: Option<Model>,
    /// The first is that of requests that name none; all are listed.
    pub policies: Vec<Policy>,
}

/// What those who start a server are told.
#[derive(Debug)]
pub enum Event<'a> {
    /// It listens, while the model loads.
    Listening {
        /// The address without a path.
        url: &'a str,
    },
    /// The model is loaded.
    Ready {
        /// Its id under the default policy.
        id: &'a str,
        /// Bytes that keys and values may take.
        kv_memory: u64,
    },
    /// No new requests are taken; those that run are finished.
    Stopping,
}

/// Serves until the interrupt is set, then finishes what runs. `load` is called on the thread that runs the model.
///
/// # Errors
/// [`Error::Input`] where the address cannot be listened on, or is open to others or to viewers without a key; whatever `load` says.
pub fn serve(
    options: Options,
    load: impl FnOnce() -> Result<Loaded> + Send + 'static,
    interrupt: &Interrupt,
    told: &(dyn Fn(Event<'_>) + Sync),
) -> Result<()> {
    let listener = listen(&options)?;
    if options.viewer.is_some() {
        // What runs models for viewers needs threads while the model's own thread waits for requests.
        layerscope_engine::pool_for_several()?;
    }
    let io = |action: &str, error: std::io::Error| Error::failure(format!("cannot {action}: {error}"));
    let address = listener.local_addr().map_err(|error| io("tell the server's address", error))?;
    listener.set_nonblocking(true).map_err(|error| io("listen", error))?;
    let url = format!("http://{address}");
    told(Event::Listening { url: &url });
    let (messages, inbox) = mpsc::channel();
    let (ended, engine_ended) = tokio::sync::oneshot::channel();
    let metrics = Arc::new(Metrics::new());
    let served = Arc::new(OnceLock::new());
    let (options, inner, counted, jobs) =
        (Arc::new(options), Arc::clone(&served), Arc::clone(&metrics), messages.clone());
    let settings = Arc::clone(&options);
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let engine = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
        let run = move || -> Result<()> {
            layerscope_engine::one_pool()?;
            let loaded = load()?;
            let served = Served::new(loaded, &settings, jobs)?;
            let scheduler = Scheduler::new(&served, inbox, counted);
            let said = (served.name().to_owned(), served.kv_memory());
            let _ = inner.set(served);
            let _ = ready.send(said);
            scheduler.run();
            Ok(())
        };
        let done = run();
        let _ = ended.send(());
        done
    });
    let engine = engine.map_err(|error| io("start a thread", error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| io("start the server", error))?;
    let state = http::State { options, served, metrics, viewers: Arc::default() };
    runtime.block_on(async {
        let stop = async {
            tokio::select! {
                () = interrupted(interrupt) => {}
                _ = engine_ended => {}
            }
            told(Event::Stopping);
        };
        let say_ready = async {
            if let Ok((id, kv_memory)) = is_ready.await {
                told(Event::Ready { id: &id, kv_memory });
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            done = http::serve(state, listener, stop) => done,
            () = say_ready => Ok(()),
        }
    })?;
    let _ = messages.send(job::Message::Stop);
    runtime.shutdown_timeout(Duration::from_secs(1));
    engine.join().map_err(|_| Error::failure("the engine's thread ended"))?
}

/// Whether only this machine can connect to an address.
fn listen(options: &Options) -> Result<TcpListener> {
    let Options { host, port, api_key, viewer, .. } = options;
    if api_key.is_none() && viewer.is_some() {
        return Err(Error::input(
            "--viewer lets whoever connects read and write files with your account, and other accounts of this machine can connect \
             to 127.0.0.1, too: give a key with --api-key or LAYERSCOPE_API_KEY",
        ));
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (bare, *port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let addresses = addresses
        .map_err(|error| Error::input(format!("--host {host}: {error}; give a name or an address")))?;
    if api_key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(Error::input(format!(
            "--host {host} can be reached from other machines: give clients a key with --api-key, or serve on 127.0.0.1"
        )));
    }
    TcpListener::bind(&addresses[..]).map_err(|error| {
        Error::input(format!("cannot listen on {host}, port {port}: {error}; choose another with --port"))
    })
}

async fn interrupted(interrupt: &Interrupt) {
    while !interrupt.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
