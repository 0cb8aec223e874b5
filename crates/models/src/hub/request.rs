//! A request that can be interrupted while it waits.

use super::client::RequestError;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use ureq::http::Response as HttpResponse;
use ureq::{Body, RequestBuilder};

/// How often an interrupt is checked.
const POLL: Duration = Duration::from_millis(100);
/// Chunk size of a body, and the number of buffered chunks.
const PIECE: usize = 256 << 10;
const WAITING: usize = 8;

/// A response's headers, and its body in chunks.
pub(crate) struct Response {
    pub(crate) head: ureq::http::response::Parts,
    pieces: Receiver<Piece>,
}

type Piece = std::result::Result<Vec<u8>, std::io::Error>;
type Head = std::result::Result<ureq::http::response::Parts, ureq::Error>;

impl Response {
    /// Sends a request from its own thread, because name lookups and connection attempts cannot be
    /// interrupted. The thread ends with its connection or at the client's timeouts.
    pub(crate) fn of<S: Send + 'static>(
        request: RequestBuilder<S>,
        send: fn(RequestBuilder<S>) -> std::result::Result<HttpResponse<Body>, ureq::Error>,
        interrupted: &AtomicBool,
    ) -> Result<Self, RequestError> {
        let (head_to, head_from) = sync_channel::<Head>(1);
        let (pieces_to, pieces) = sync_channel::<Piece>(WAITING);
        std::thread::spawn(move || match send(request) {
            Ok(response) => {
                let (head, body) = response.into_parts();
                if head_to.send(Ok(head)).is_ok() {
                    pass_on(body, &pieces_to);
                }
            }
            Err(error) => drop(head_to.send(Err(error))),
        });
        let head =
            wait(&head_from, interrupted)?.ok_or_else(|| RequestError::invalid_response("no answer"))?;
        Ok(Self { head: head.map_err(RequestError::before_answer)?, pieces })
    }

    /// The next chunk of the body; `None` at its end.
    pub(crate) fn next(&self, interrupted: &AtomicBool) -> Result<Option<Vec<u8>>, RequestError> {
        wait(&self.pieces, interrupted)?.transpose().map_err(RequestError::within_answer)
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

/// Waits for the next message; `None` if the sender was dropped.
fn wait<T>(from: &Receiver<T>, interrupted: &AtomicBool) -> Result<Option<T>, RequestError> {
    loop {
        if interrupted.load(Ordering::Relaxed) {
            return Err(RequestError::Interrupted);
        }
        match from.recv_timeout(POLL) {
            Ok(message) => return Ok(Some(message)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn pass_on(body: Body, to: &SyncSender<Piece>) {
    let mut reader = body.into_reader();
    loop {
        let mut piece = vec![0; PIECE];
        let piece = match reader.read(&mut piece) {
            Ok(0) => return,
            Ok(length) => {
                piece.truncate(length);
                Ok(piece)
            }
            Err(error) => Err(error),
        };
        let last = piece.is_err();
        if to.send(piece).is_err() || last {
            return;
        }
    }
}
