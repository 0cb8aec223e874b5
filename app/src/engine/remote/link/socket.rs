//! A WebSocket of the browser to an engine elsewhere. Nothing here waits: the browser calls when bytes have come.

use super::super::BEAT;
use super::super::question::{Answered, Question};
use super::super::wire::{self, MOST_FRAME, NotGreeted, PROTOCOL, ToEngine};
use super::{Link, RemoteEngine, Shared, lock};
use crate::engine::inbox::Inbox;
use crate::engine::message::Event;
use layerscope_engine::{Error, Result};
use send_wrapper::SendWrapper;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{BinaryType, CloseEvent, MessageEvent, WebSocket};
use web_time::Instant;

/// Most bytes of a message: servers take no larger ones.
const MOST_MESSAGE: usize = 1 << 20;
/// Bytes of a greeting before its text.
const GREETING: usize = 13;

/// A connection that is being made.
pub struct Pipes {
    socket: SendWrapper<WebSocket>,
}

impl Pipes {
    /// Opens a WebSocket; the server chooses among `protocols`.
    ///
    /// # Errors
    /// [`Error::Input`] if the address is none.
    pub fn open(url: &str, protocols: &[String]) -> Result<Self> {
        let names: js_sys::Array = protocols.iter().map(|name| JsValue::from_str(name)).collect();
        let socket = WebSocket::new_with_str_sequence(url, &names)
            .map_err(|_| Error::input(format!("{url} is no address of a WebSocket")))?;
        socket.set_binary_type(BinaryType::Arraybuffer);
        Ok(Self { socket: SendWrapper::new(socket) })
    }
}

/// What frames go through.
pub(super) struct Way {
    socket: SendWrapper<WebSocket>,
    /// What the browser calls; it must not before this is dropped.
    calls: SendWrapper<RefCell<Option<Calls>>>,
}

struct Calls {
    _open: Closure<dyn FnMut()>,
    _message: Closure<dyn FnMut(MessageEvent)>,
    _close: Closure<dyn FnMut(CloseEvent)>,
    _beat: Closure<dyn FnMut()>,
    beats: i32,
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some(window) = web_sys::window() {
            window.clear_interval_with_handle(self.beats);
        }
    }
}

impl Way {
    /// Sends nothing more.
    pub(super) fn close(&self) {
        let _ = self.socket.close();
    }

    /// There is no program to end.
    pub(super) fn end(&self) {}

    /// No program of this machine leads to the engine.
    pub(super) fn is_direct(&self) -> bool {
        true
    }

    /// Why the other side has closed its output.
    pub(super) fn ended(&self, host: &str) -> String {
        format!("the connection to {host} is closed")
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.socket.set_onopen(None);
        self.socket.set_onmessage(None);
        self.socket.set_onclose(None);
        let _ = self.socket.close();
    }
}

impl Shared {
    /// Sends a frame; before the connection stands and after it has ended, nothing.
    pub(super) fn send(&self, frame: Vec<u8>) {
        self.sent.fetch_add(frame.len() as u64, Ordering::Relaxed);
        for part in frame.chunks(MOST_MESSAGE) {
            let _ = self.way.socket.send_with_u8_array(part);
        }
    }
}

/// Messages from bytes as they come.
struct Reader {
    /// Bytes of what is not whole yet.
    bytes: Vec<u8>,
    /// For the other side's greeting, until it has come.
    greeting: Option<Promise<std::result::Result<String, NotGreeted>>>,
    events: Sender<Event>,
}

impl Reader {
    /// Takes what is whole.
    ///
    /// # Errors
    /// Why the connection ends with it.
    fn take(&mut self, shared: &Shared) -> std::result::Result<(), String> {
        let mut read = 0;
        let outcome = loop {
            let rest = &self.bytes[read..];
            if let Some(greeting) = self.greeting.take_if(|_| is_greeting(rest)) {
                let mut input = rest;
                greeting.keep(wire::read_greeting(&mut input));
                read = self.bytes.len() - input.len();
                continue;
            }
            if self.greeting.is_some() || !is_frame(rest) {
                break Ok(());
            }
            let mut input = rest;
            let message = match wire::read(&mut input) {
                Ok(Some(message)) => message,
                Ok(None) => break Ok(()),
                Err(error) => break Err(shared.unreadable(&error)),
            };
            read = self.bytes.len() - input.len();
            let deliver = |event| self.events.send(event).map_err(|_| "the window is closed".to_owned());
            if let Err(reason) = shared.take(message, deliver) {
                break Err(reason);
            }
        };
        self.bytes.drain(..read);
        outcome
    }
}

/// Whether a greeting is whole, or something else than its beginning has come.
fn is_greeting(bytes: &[u8]) -> bool {
    bytes.get(GREETING - 1).is_some_and(|&length| bytes.len() >= GREETING + usize::from(length))
}

/// Whether a frame is whole, or longer than any.
fn is_frame(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|length| {
        let length = u32::from_le_bytes(*length) as usize;
        length > MOST_FRAME || bytes.len() >= 4 + length
    })
}

impl Link {
    /// Greets the engine at the other end of a WebSocket; `host` is its name in sentences. `wake` is called after each event, and when
    /// the connection breaks.
    ///
    /// # Errors
    /// [`Error::Failure`] if there is no engine of this protocol, in a sentence that says what is there instead.
    pub(crate) async fn reach(
        host: &str,
        pipes: Pipes,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Self, RemoteEngine)> {
        let socket = pipes.socket.clone();
        let way = Way { socket: pipes.socket, calls: SendWrapper::new(RefCell::new(None)) };
        let shared = Shared::new(host, way, wake);
        let (events, come) = channel();
        let (promise, greeting) = promise();
        let reader = Reader { bytes: vec![], greeting: Some(promise), events };
        let calls = calls(&socket, &shared, reader)?;
        *shared.way.calls.borrow_mut() = Some(calls);
        match greeting.await {
            Ok(version) => lock(&shared.state).version = version,
            Err(problem) => {
                let sentence = shared.not_greeted(problem);
                shared.break_off(&sentence);
                return Err(Error::failure(sentence));
            }
        }
        let engine = RemoteEngine { shared: Arc::clone(&shared), inbox: Inbox::new(come) };
        Ok((Self { shared }, engine))
    }

    /// Asks, and gives the answer once it has come.
    ///
    /// # Errors
    /// The other side's, or [`Error::Failure`] if the connection is gone.
    pub(crate) async fn answer(&self, question: Question) -> Result<Answered> {
        let (promise, answer) = promise();
        self.ask_then(question, move |answered| promise.keep(answered));
        answer.await
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.way.close();
    }
}

/// Has the browser call when the connection stands, when bytes have come, when it ends, and every few seconds.
fn calls(socket: &WebSocket, shared: &Arc<Shared>, reader: Reader) -> Result<Calls> {
    let reader = Arc::new(Mutex::new(reader));
    let weak = Arc::downgrade(shared);
    let of = |weak: &Weak<Shared>| weak.upgrade();
    let here = weak.clone();
    let open = Closure::<dyn FnMut()>::new(move || {
        if let Some(shared) = of(&here) {
            shared.send(wire::greeting(PROTOCOL, env!("CARGO_PKG_VERSION")));
        }
    });
    let (here, come) = (weak.clone(), Arc::clone(&reader));
    let message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let Some(shared) = of(&here) else { return };
        let Ok(buffer) = event.data().dyn_into::<js_sys::ArrayBuffer>() else {
            let text = std::io::Error::new(ErrorKind::InvalidData, "text came where bytes should");
            return shared.break_off(&shared.unreadable(&text));
        };
        let bytes = js_sys::Uint8Array::new(&buffer).to_vec();
        shared.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        *lock(&shared.heard) = Instant::now();
        let mut reader = lock(&come);
        reader.bytes.extend(bytes);
        let outcome = reader.take(&shared);
        drop(reader);
        if let Err(reason) = outcome {
            shared.break_off(&reason);
        }
    });
    let (here, come) = (weak.clone(), reader);
    let close = Closure::<dyn FnMut(CloseEvent)>::new(move |_| {
        let Some(shared) = of(&here) else { return };
        let greeting = lock(&come).greeting.take();
        match greeting {
            Some(greeting) => greeting.keep(Err(NotGreeted::Silent)),
            None => shared.break_off(&shared.way.ended(&shared.host)),
        }
    });
    let beat = Closure::<dyn FnMut()>::new(move || {
        let Some(shared) = of(&weak) else { return };
        if let Some(reason) = shared.silence() {
            return shared.break_off(&reason);
        }
        shared.send(wire::frame(&ToEngine::Beat).unwrap_or_default());
    });
    socket.set_onopen(Some(open.as_ref().unchecked_ref()));
    socket.set_onmessage(Some(message.as_ref().unchecked_ref()));
    socket.set_onclose(Some(close.as_ref().unchecked_ref()));
    let beats = web_sys::window().and_then(|window| {
        let beat = beat.as_ref().unchecked_ref();
        window.set_interval_with_callback_and_timeout_and_arguments_0(beat, BEAT.as_millis() as i32).ok()
    });
    let beats = beats.ok_or_else(|| Error::failure("the browser keeps no time"))?;
    Ok(Calls { _open: open, _message: message, _close: close, _beat: beat, beats })
}

/// A value that comes later, to be awaited once.
struct Later<T>(Arc<Mutex<Kept<T>>>);

/// The other end of a [`Later`].
struct Promise<T>(Arc<Mutex<Kept<T>>>);

struct Kept<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

fn promise<T>() -> (Promise<T>, Later<T>) {
    let kept = Arc::new(Mutex::new(Kept { value: None, waker: None }));
    (Promise(Arc::clone(&kept)), Later(kept))
}

impl<T> Promise<T> {
    fn keep(self, value: T) {
        let mut kept = lock(&self.0);
        kept.value = Some(value);
        let waker = kept.waker.take();
        drop(kept);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Later<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut kept = lock(&self.0);
        match kept.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                kept.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
