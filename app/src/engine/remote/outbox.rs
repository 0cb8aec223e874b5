//! Frames on their way out: live ones before bulk, which waits while there is too much of it.

use super::pace::Pace;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of bulk that wait at most, besides one frame.
const MOST_BULK: usize = 1 << 20;
/// Live frames, and bytes of them, after which there is no room for more.
const MOST_LIVE: usize = 256;
const MOST_LIVE_BYTES: usize = 16 << 20;
/// Frames of a kind that are put although there is no room, after which the other side counts as gone: it asks, and does not listen.
const MOST_UNHEARD: usize = 4096;

/// Frames that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    live: VecDeque<Vec<u8>>,
    live_bytes: usize,
    bulk: VecDeque<Vec<u8>>,
    bulk_bytes: usize,
    /// How much bulk is on its way.
    pace: Pace,
    is_closed: bool,
}

impl Waiting {
    /// Whether a frame of bulk is next, if no live one is. What there is when the box is closed goes at once.
    fn has_bulk(&self) -> bool {
        !self.bulk.is_empty() && (self.is_closed || self.pace.has_room())
    }
}

/// What there is to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Frame(Vec<u8>),
    /// Nothing for a while.
    Nothing,
    Closed,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a live frame; never waits. Whoever has many asks for [`Self::has_room`] first.
    pub(super) fn put(&self, frame: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.live.len() >= MOST_UNHEARD {
            *waiting = Waiting { is_closed: true, ..Waiting::default() };
        }
        if !waiting.is_closed {
            waiting.live_bytes += frame.len();
            waiting.live.push_back(frame);
        }
        self.changed.notify_all();
    }

    /// Whether more live frames should be put.
    pub(super) fn has_room(&self) -> bool {
        let waiting = self.lock();
        waiting.live.len() < MOST_LIVE && waiting.live_bytes < MOST_LIVE_BYTES
    }

    /// Puts a frame of bulk; waits while there is too much. Returns whether the box is open.
    pub(super) fn put_bulk(&self, frame: Vec<u8>) -> bool {
        let mut waiting = self.lock();
        while waiting.bulk_bytes > MOST_BULK && !waiting.is_closed {
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        self.push_bulk(waiting, frame)
    }

    /// Puts a small frame of bulk; never waits.
    pub(super) fn put_small(&self, frame: Vec<u8>) {
        let mut waiting = self.lock();
        if waiting.bulk.len() >= MOST_UNHEARD {
            *waiting = Waiting { is_closed: true, ..Waiting::default() };
        }
        self.push_bulk(waiting, frame);
    }

    fn push_bulk(&self, mut waiting: MutexGuard<'_, Waiting>, frame: Vec<u8>) -> bool {
        if !waiting.is_closed {
            waiting.bulk_bytes += frame.len();
            waiting.bulk.push_back(frame);
        }
        self.changed.notify_all();
        !waiting.is_closed
    }

    /// Notes that the other side has taken a frame of bulk.
    pub(super) fn taken(&self) {
        self.lock().pace.taken(Instant::now());
        self.changed.notify_all();
    }

    /// Takes the next frame; waits at most so long. What was put before the box was closed is still given.
    pub(super) fn next(&self, patience: Duration) -> Next {
        let waiting = self.lock();
        let is_idle =
            |waiting: &mut Waiting| waiting.live.is_empty() && !waiting.has_bulk() && !waiting.is_closed;
        let waited = self.changed.wait_timeout_while(waiting, patience, is_idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let next = match waiting.live.pop_front() {
            Some(frame) => {
                waiting.live_bytes -= frame.len();
                Some(frame)
            }
            None if waiting.has_bulk() => {
                let frame = waiting.bulk.pop_front();
                let bytes = frame.as_ref().map_or(0, Vec::len);
                waiting.bulk_bytes -= bytes;
                waiting.pace.sent(bytes, Instant::now());
                frame
            }
            None => None,
        };
        self.changed.notify_all();
        match next {
            Some(frame) => Next::Frame(frame),
            None if waiting.is_closed => Next::Closed,
            None => Next::Nothing,
        }
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_live_goes_first_and_bulk_waits() {
        let outbox = Arc::new(Outbox::default());
        let sender = Arc::clone(&outbox);
        let bulk = thread::spawn(move || (0..4).all(|_| sender.put_bulk(vec![7; MOST_BULK])));
        while outbox.lock().bulk.len() < 2 {
            thread::yield_now();
        }
        outbox.put(vec![1]);
        assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![1]));
        assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![7; MOST_BULK]));
        // The next one waits until this one was taken; what is live does not.
        assert_eq!(outbox.next(Duration::ZERO), Next::Nothing);
        outbox.put(vec![1]);
        assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![1]));
        outbox.taken();
        for _ in 1..4 {
            assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![7; MOST_BULK]));
            outbox.taken();
        }
        assert!(bulk.join().expect("a thread"));
        assert_eq!(outbox.next(Duration::ZERO), Next::Nothing);
    }

    #[test]
    fn closing_lets_out_what_is_there_and_nobody_wait() {
        let outbox = Arc::new(Outbox::default());
        while outbox.has_room() {
            outbox.put(vec![2]);
        }
        outbox.put_bulk(vec![7; MOST_BULK + 1]);
        let sender = Arc::clone(&outbox);
        let waits = thread::spawn(move || sender.put_bulk(vec![8]));
        outbox.close();
        assert!(!waits.join().expect("a thread"));
        outbox.put(vec![3]);
        for _ in 0..MOST_LIVE {
            assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![2]));
        }
        assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![7; MOST_BULK + 1]));
        assert_eq!(outbox.next(PATIENCE), Next::Closed);
    }

    #[test]
    fn few_large_frames_are_many_and_nobody_asks_without_end() {
        let outbox = Outbox::default();
        outbox.put(vec![1; MOST_LIVE_BYTES]);
        assert!(!outbox.has_room());
        assert_eq!(outbox.next(PATIENCE), Next::Frame(vec![1; MOST_LIVE_BYTES]));
        assert!(outbox.has_room());
        (0..MOST_UNHEARD).for_each(|_| outbox.put(vec![2]));
        assert!(!outbox.lock().is_closed);
        outbox.put(vec![2]);
        assert_eq!(outbox.next(PATIENCE), Next::Closed);
    }
}
