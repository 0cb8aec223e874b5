//! Background work with one result.

use layerscope_engine::{Error, Result};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// A computation in the background.
#[derive(Debug)]
pub struct Task<T> {
    result: Receiver<Result<T>>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts `work` and calls `wake` when its result is ready. A dropped task continues and its result is
    /// ignored.
    pub fn start(
        wake: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Self {
        Self::run(wake, async { work() })
    }

    /// The same with what may wait: for answers of another machine.
    pub fn run(
        wake: impl FnOnce() + Send + 'static,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        let (sender, result) = sync_channel(1);
        in_background(
            move |done| {
                // The task may have been dropped.
                let _ = sender.send(done);
                wake();
            },
            work,
        );
        Self { result }
    }

    /// The result, if it is ready.
    pub fn poll(&self) -> Option<Result<T>> {
        match self.result.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(Error::failure("a task ended without a result"))),
        }
    }

    /// Waits for the result.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn wait(&self) -> Result<T> {
        self.result.recv().unwrap_or_else(|_| Err(Error::failure("a task ended without a result")))
    }
}

/// Works in a thread; a panic is an error of its own.
#[cfg(not(target_arch = "wasm32"))]
fn in_background<T: Send + 'static>(
    done: impl FnOnce(Result<T>) + Send + 'static,
    work: impl Future<Output = Result<T>> + Send + 'static,
) {
    std::thread::spawn(move || {
        let result: std::result::Result<_, String> =
            layerscope_engine::guarded(|| Ok::<_, String>(pollster::block_on(work)));
        done(result.unwrap_or_else(|problem| Err(Error::failure(problem))));
    });
}

/// Works when the browser has time: it has no threads.
#[cfg(target_arch = "wasm32")]
fn in_background<T: Send + 'static>(
    done: impl FnOnce(Result<T>) + Send + 'static,
    work: impl Future<Output = Result<T>> + Send + 'static,
) {
    wasm_bindgen_futures::spawn_local(async { done(work.await) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_an_error_and_a_panic_arrive() {
        assert_eq!(Task::start(|| {}, || Ok(7)).wait().ok(), Some(7));
        assert!(Task::<u8>::start(|| {}, || Err(Error::input("no"))).wait().is_err());
        assert!(Task::<u8>::start(|| {}, || panic!("on purpose")).wait().is_err());
    }
}
