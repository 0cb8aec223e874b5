//! Connections: bounded in number, in what they may be slow at, and finished before the server ends.

use super::{State, router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use layerscope_engine::{Error, Result};
use std::future::Future;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

/// Connections at once; others wait to be accepted.
const MOST_CONNECTIONS: usize = 512;
/// Time for a request's header, and between requests.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// Time in which a client takes some bytes, and in which it sends some.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// Answers until `stop` is ready, and then what was asked before.
pub(crate) async fn serve(state: State, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<()> {
    let failure = |error: std::io::Error| Error::failure(format!("cannot listen: {error}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failure)?;
    let longest = state.options.timeout;
    let viewers = Arc::clone(&state.viewers);
    let router = router(state);
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let (stopping, is_stopping) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        let place = tokio::select! {
            place = Arc::clone(&connections).acquire_owned() => place,
            () = &mut stop => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let Ok((stream, _)) = accepted else {
            // No file handle is left, for one: what is open has to close first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(IDLE_TIME));
        let service = TowerToHyperService::new(router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
            .with_upgrades();
        let mut is_stopping = is_stopping.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // A client that leaves is no error.
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = is_stopping.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
    drop(listener);
    viewers.stop();
    let _ = stopping.send(true);
    tokio::select! {
        _ = connections.acquire_many(MOST_CONNECTIONS as u32) => {}
        () = tokio::time::sleep(longest) => {}
    }
    viewers.ended().await;
    Ok(())
}
