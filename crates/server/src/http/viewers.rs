//! Viewers of other machines: a WebSocket carries the bytes between a window and what serves it, which is not known here.

use super::error::Refused;
use crate::Viewer;
use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use futures_util::{SinkExt, StreamExt};
use layerscope_engine::Interrupt;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

/// Viewers at once.
const MOST_VIEWERS: usize = 4;
/// Most bytes of a message either way; the stream of bytes goes on in the next.
const MOST_MESSAGE: usize = 1 << 20;
/// Messages that wait on either way.
const WAITING: usize = 4;
/// Time for what is left to be sent when a viewer is no longer served.
const FAREWELL: Duration = Duration::from_secs(1);

/// The viewers that are connected.
pub(crate) struct Viewers {
    places: Arc<Semaphore>,
    stop: Arc<Interrupt>,
}

impl Default for Viewers {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST_VIEWERS)), stop: Arc::default() }
    }
}

impl Viewers {
    /// Connects one more.
    pub(super) fn connect(
        &self,
        viewer: Viewer,
        upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    ) -> Result<Response, Refused> {
        let upgrade = upgrade.map_err(|_| {
            Refused::bad("this path is a WebSocket: open it with `layerscope view ws://HOST:PORT/RUN`")
        })?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| Refused::viewers(MOST_VIEWERS))?;
        let stop = Arc::clone(&self.stop);
        let upgrade = upgrade.max_message_size(MOST_MESSAGE).max_frame_size(MOST_MESSAGE);
        // A browser breaks a connection off on which none of the names that it offers is chosen.
        let upgrade = upgrade.protocols(["layerscope"]);
        Ok(upgrade.on_upgrade(move |socket| carry(socket, viewer, place, stop)))
    }

    /// Tells all to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until none is served any more.
    pub(super) async fn ended(&self) {
        let _ = self.places.acquire_many(MOST_VIEWERS as u32).await;
    }
}

/// Carries bytes until either side ends. The place is free again once nothing of the viewer's work is left.
async fn carry(socket: WebSocket, viewer: Viewer, place: OwnedSemaphorePermit, stop: Arc<Interrupt>) {
    let (sender, messages) = channel(WAITING);
    let (given, mut receiver) = channel(WAITING);
    let (over, is_over) = oneshot::channel::<()>();
    let work = move || {
        let input = Input { messages, rest: Bytes::new() };
        let output = BufWriter::with_capacity(MOST_MESSAGE, Output { messages: given });
        // What is wrong with a window, the window knows: it reads the greeting first.
        let _ = viewer(Box::new(input), Box::new(output), &stop);
        drop((place, over));
    };
    if std::thread::Builder::new().name("viewer".to_owned()).spawn(work).is_err() {
        return;
    }
    let (mut sink, mut stream) = socket.split();
    let inward = async {
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(bytes) => {
                    if sender.send(bytes).await.is_err() {
                        break;
                    }
                }
                Message::Text(_) | Message::Close(_) => break,
                Message::Ping(_) | Message::Pong(_) => {}
            }
        }
    };
    let outward = async {
        while let Some(bytes) = receiver.recv().await {
            if sink.send(Message::Binary(bytes.into())).await.is_err() {
                break;
            }
        }
    };
    let end = async {
        let _ = is_over.await;
        sleep(FAREWELL).await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
        () = end => {}
    }
    // Whoever reads or writes finds the channels closed from here on, as a broken pipe.
    drop((sender, receiver));
    let _ = timeout(FAREWELL, sink.close()).await;
}

/// What a viewer sends, for a thread that reads.
struct Input {
    messages: Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.messages.blocking_recv() {
                Some(message) => self.rest = message,
                None => return Ok(0),
            }
        }
        let part = self.rest.split_to(self.rest.len().min(buffer.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// What a viewer is sent, by a thread that writes: each write is a message.
struct Output {
    messages: Sender<Vec<u8>>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = &bytes[..bytes.len().min(MOST_MESSAGE)];
        let sent = self.messages.blocking_send(message.to_vec());
        sent.map(|()| message.len()).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
