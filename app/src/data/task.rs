//! Background work: one thread, one result.

use layerscope_engine::{Error, Result, guarded};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// A computation in a background thread.
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
        let (sender, result) = sync_channel(1);
        std::thread::spawn(move || {
            let done: std::result::Result<_, String> = guarded(|| Ok::<_, String>(work()));
            let done = done.unwrap_or_else(|problem| Err(Error::failure(problem)));
            // The task may have been dropped.
            let _ = sender.send(done);
            wake();
        });
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
    pub fn wait(&self) -> Result<T> {
        self.result.recv().unwrap_or_else(|_| Err(Error::failure("a task ended without a result")))
    }
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
