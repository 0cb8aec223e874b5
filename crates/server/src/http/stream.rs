//! Server-sent events.

use super::answer::Whole;
use super::error::Refused;
use crate::text::{Piece, Update};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Time without an event after which a comment says that the server is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What a kind of answer makes of its sequences' pieces.
pub(super) trait Chunks: Send + 'static {
    /// The chunk that says that a text begins, if there is one.
    fn begin(&mut self, index: usize) -> Option<Value>;
    /// The chunks of a piece.
    fn of(&mut self, index: usize, piece: &Piece) -> Vec<Value>;
    /// The chunk behind all, with the usage, if it was asked for.
    fn end(&mut self, wholes: &[Whole]) -> Option<Value>;
}

/// Sends chunks as they come. A request that failed before it began has an error's status instead.
pub(super) async fn stream(
    mut updates: Receiver<Update>,
    count: usize,
    mut chunks: impl Chunks,
) -> Result<Response, Refused> {
    let first = match updates.recv().await {
        Some((_, Err(failure))) => return Err(failure.into()),
        first => first,
    };
    let (sender, receiver) = channel(1);
    tokio::spawn(async move {
        let mut wholes: Vec<Whole> = (0..count).map(|_| Whole::default()).collect();
        for index in 0..count {
            if let Some(chunk) = chunks.begin(index)
                && send(&sender, chunk.to_string()).await.is_err()
            {
                return;
            }
        }
        let mut next = first;
        while let Some((index, update)) = next {
            let piece = match update {
                Ok(piece) => piece,
                Err(failure) => {
                    let _ = send(&sender, Refused::from(failure).body().to_string()).await;
                    return;
                }
            };
            for chunk in chunks.of(index, &piece) {
                if send(&sender, chunk.to_string()).await.is_err() {
                    return;
                }
            }
            wholes[index].add(piece);
            next = tokio::select! {
                next = updates.recv() => next,
                () = sender.closed() => return,
            };
        }
        if let Some(chunk) = chunks.end(&wholes)
            && send(&sender, chunk.to_string()).await.is_err()
        {
            return;
        }
        let _ = send(&sender, "[DONE]".to_owned()).await;
    });
    Ok(Sse::new(Events(receiver)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

async fn send(sender: &Sender<Event>, data: String) -> Result<(), ()> {
    sender.send(Event::default().data(data)).await.map_err(|_| ())
}

struct Events(Receiver<Event>);

impl futures_util::Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}
