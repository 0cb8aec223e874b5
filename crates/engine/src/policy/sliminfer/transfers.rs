//! A thread that takes KV of prompt blocks away and brings it back while the model goes on.
//!
//! It does what it is told in order, and layers need their blocks in the order in which they were asked for, so a layer
//! never waits for more than what is left of its own transfer. Memory under way is bounded: so many layers' records on the
//! way out, so many on the way back.

use super::tier::{Key, Tier};
use super::{BLOCK, LAYERS_IN_TRANSIT};
use crate::kv::Evicted;
use crate::{Error, Result};
use layerscope_kernels::cuda::Buffer;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The records of one layer on their way back.
pub(super) struct Staging {
    /// On the host.
    pub(super) bytes: Vec<u8>,
    /// The same on a GPU, where the model runs on one.
    pub(super) on_device: Option<Buffer>,
}

enum Request {
    /// What a layer has evicted; its first slots hold the blocks of these keys, one after the other.
    Write {
        keys: Vec<Key>,
        evicted: Evicted,
    },
    Read {
        keys: Vec<Key>,
    },
}

enum Reply {
    Written,
    Read { staging: Staging, took: Duration },
}

/// The thread, seen from the one that runs the model.
pub(super) struct Transfers {
    requests: Option<Sender<Request>>,
    replies: Receiver<Result<Reply>>,
    /// Staging that is not in use, on its way to the thread.
    free: Option<Sender<Staging>>,
    thread: Option<JoinHandle<()>>,
    writes_in_transit: usize,
    /// Once something failed, everything fails.
    failed: bool,
}

/// A transfer that has come.
pub(super) struct Arrival {
    pub(super) staging: Staging,
    /// How long it was waited for.
    pub(super) waited: Duration,
    /// How long it took.
    pub(super) took: Duration,
}

impl Transfers {
    /// Starts the thread; there are as many `stagings` as layers may be under way.
    ///
    /// # Errors
    /// [`Error::Failure`] where the system gives no thread.
    pub(super) fn start(tier: Box<dyn Tier>, stagings: Vec<Staging>) -> Result<Self> {
        let (requests, requested) = channel();
        let (reply, replies) = channel();
        let (free, freed) = channel();
        for staging in stagings {
            // The other end is held until the thread is told to end.
            let _ = free.send(staging);
        }
        let worker = Worker { tier, requested, reply, freed };
        let thread = std::thread::Builder::new()
            .name("layerscope-kv".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| Error::failure(format!("cannot start a thread for KV transfers: {error}")))?;
        Ok(Self {
            requests: Some(requests),
            replies,
            free: Some(free),
            thread: Some(thread),
            writes_in_transit: 0,
            failed: false,
        })
    }

    /// Takes away what a layer has evicted, whose first slots hold the blocks of these keys, one after the other; waits where
    /// too many layers are under way.
    ///
    /// # Errors
    /// [`Error::Failure`] where this or an earlier transfer failed.
    pub(super) fn write(&mut self, keys: Vec<Key>, evicted: Evicted) -> Result<()> {
        while self.writes_in_transit >= LAYERS_IN_TRANSIT {
            self.written()?;
        }
        self.send(Request::Write { keys, evicted })?;
        self.writes_in_transit += 1;
        Ok(())
    }

    /// Asks for records, in the order in which they will be needed.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn read(&mut self, keys: Vec<Key>) -> Result<()> {
        self.send(Request::Read { keys })
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn finish_writing(&mut self) -> Result<()> {
        while self.writes_in_transit > 0 {
            self.written()?;
        }
        Ok(())
    }

    /// The next records that were asked for.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn arrival(&mut self) -> Result<Arrival> {
        self.finish_writing()?;
        let start = Instant::now();
        match self.reply()? {
            Reply::Read { staging, took } => Ok(Arrival { staging, waited: start.elapsed(), took }),
            Reply::Written => Err(self.lost_count()),
        }
    }

    /// Gives staging back for the next transfer.
    pub(super) fn give_back(&self, staging: Staging) {
        if let Some(free) = &self.free {
            // Where the thread has ended, the next request says so.
            let _ = free.send(staging);
        }
    }

    fn written(&mut self) -> Result<()> {
        match self.reply()? {
            Reply::Written => {
                self.writes_in_transit -= 1;
                Ok(())
            }
            Reply::Read { .. } => Err(self.lost_count()),
        }
    }

    fn send(&mut self, request: Request) -> Result<()> {
        self.check()?;
        let sent = match &self.requests {
            Some(requests) => requests.send(request).is_ok(),
            None => false,
        };
        if sent {
            return Ok(());
        }
        loop {
            // The thread has ended; what it said last tells why.
            self.reply()?;
        }
    }

    fn reply(&mut self) -> Result<Reply> {
        self.check()?;
        let reply = self.replies.recv().unwrap_or_else(|_| Err(ended()));
        self.failed = reply.is_err();
        reply
    }

    fn check(&self) -> Result<()> {
        if self.failed { Err(ended()) } else { Ok(()) }
    }

    fn lost_count(&mut self) -> Error {
        self.failed = true;
        Error::failure("KV transfers came in another order; please report this")
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        (self.requests, self.free) = (None, None);
        if let Some(thread) = self.thread.take() {
            // A panic in it was told as an error when something was asked of it.
            let _ = thread.join();
        }
    }
}

fn ended() -> Error {
    Error::failure(
        "the thread that brings KV of the prompt back has ended, so no further token can be made: generate again, or use \
         the policy without +read",
    )
}

struct Worker {
    tier: Box<dyn Tier>,
    requested: Receiver<Request>,
    reply: Sender<Result<Reply>>,
    freed: Receiver<Staging>,
}

impl Worker {
    /// Until nobody asks any more, or something fails.
    fn run(mut self) {
        while let Ok(request) = self.requested.recv() {
            let reply = match request {
                Request::Write { keys, evicted } => self.write(&keys, &evicted),
                Request::Read { keys } => match self.freed.recv() {
                    Ok(staging) => self.read(&keys, staging),
                    Err(_) => return,
                },
            };
            let failed = reply.is_err();
            if self.reply.send(reply).is_err() || failed {
                return;
            }
        }
    }

    fn write(&mut self, keys: &[Key], evicted: &Evicted) -> Result<Reply> {
        let bytes = evicted.bytes()?;
        let mut record = vec![];
        for (index, &key) in keys.iter().enumerate() {
            bytes.record(index * BLOCK..(index + 1) * BLOCK, &mut record);
            self.tier.write(key, &record)?;
        }
        Ok(Reply::Written)
    }

    fn read(&mut self, keys: &[Key], mut staging: Staging) -> Result<Reply> {
        let start = Instant::now();
        staging.bytes.clear();
        for &key in keys {
            self.tier.read(key, &mut staging.bytes)?;
        }
        if let Some(buffer) = &staging.on_device {
            buffer.write_beside(0, &staging.bytes)?;
        }
        Ok(Reply::Read { staging, took: start.elapsed() })
    }
}
