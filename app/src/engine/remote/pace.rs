//! How much bulk is on its way at once: as much as the connection carries, and little that waits within it, behind which live frames would
//! be late. After LEDBAT (RFC 6817): more while frames arrive as soon as they can, less when they are late by more than a target.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// By how much frames may be late, beside a quarter of the time that the connection takes at least.
const TARGET: Duration = Duration::from_millis(1);
/// Least and most bytes on their way.
const LEAST: f64 = (16 << 10) as f64;
const MOST: f64 = (16 << 20) as f64;
/// Frames of which the one least late counts: a connection whose times vary is not one in which frames wait.
const LATEST: usize = 8;
/// Share of what has arrived by which a room that was once too large grows or shrinks at most.
const GAIN: f64 = 0.1;

/// What of bulk is on its way.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes that may be.
    room: f64,
    on_way: usize,
    /// When each frame went, and its bytes.
    frames: VecDeque<(Instant, usize)>,
    /// The shortest time from sending to hearing of it.
    shortest: Duration,
    /// The same of the last frames.
    latest: VecDeque<Duration>,
    /// Whether frames were ever late; until then the room doubles with every round.
    was_late: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            room: LEAST,
            on_way: 0,
            frames: VecDeque::new(),
            shortest: Duration::MAX,
            latest: VecDeque::new(),
            was_late: false,
        }
    }
}

impl Pace {
    /// Whether a frame may go; always, where none is on its way.
    pub(super) fn has_room(&self) -> bool {
        self.on_way == 0 || (self.on_way as f64) < self.room
    }

    /// Notes a frame that goes now.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) {
        self.frames.push_back((now, bytes));
        self.on_way += bytes;
    }

    /// Notes that the other side has taken the oldest frame.
    pub(super) fn taken(&mut self, now: Instant) {
        let was_full = !self.has_room();
        let Some((sent, bytes)) = self.frames.pop_front() else { return };
        self.on_way -= bytes;
        let time = now.saturating_duration_since(sent);
        self.shortest = self.shortest.min(time);
        self.latest.push_back(time);
        if self.latest.len() > LATEST {
            self.latest.pop_front();
        }
        let least = self.latest.iter().copied().min().unwrap_or(time);
        let late = (least - self.shortest).as_secs_f64() / (TARGET + self.shortest / 4).as_secs_f64();
        self.was_late |= late > 1.0;
        let gain = if self.was_late { GAIN } else { 1.0 };
        let change = gain * bytes as f64 * (1.0 - late).max(-1.0);
        if change < 0.0 || was_full {
            self.room = (self.room + change).clamp(LEAST, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 16 << 10;

    /// Sends for a while over a connection of so many bytes a second and such a round trip, which takes up to so much longer now and then;
    /// returns bytes a second over the last half, and the longest time that a frame sent in it waited within the connection.
    fn carried(rate: f64, round_trip: f64, longer: f64) -> (f64, f64) {
        let seconds = 20.0;
        let (mut pace, start) = (Pace::default(), Instant::now());
        let at = |time: f64| start + Duration::from_secs_f64(time);
        let (mut now, mut free, mut arrivals) = (0.0, 0.0_f64, VecDeque::new());
        let (mut carried, mut longest, mut random, mut last) = (0, 0.0_f64, 1_u32, 0.0_f64);
        while now < seconds {
            while pace.has_room() {
                pace.sent(FRAME, at(now));
                if now > seconds / 2.0 {
                    carried += FRAME;
                    longest = longest.max(free - now);
                }
                free = free.max(now) + FRAME as f64 / rate;
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                last = last.max(free + round_trip + longer * f64::from(random >> 16) / 65_536.0);
                arrivals.push_back(last);
            }
            now = arrivals.pop_front().expect("a frame is on its way");
            pace.taken(at(now));
        }
        (carried as f64 / (seconds / 2.0), longest)
    }

    #[test]
    fn connections_are_filled_and_nothing_waits_long_in_them() {
        for (rate, round_trip) in [(1e6, 0.05), (1e7, 0.001), (1e7, 0.1), (1e8, 0.0002), (1e8, 0.02)] {
            let (carried, waited) = carried(rate, round_trip, 0.0);
            // A slow connection takes as long for a frame.
            let frame = FRAME as f64 / rate;
            assert!(carried > 0.9 * rate, "{carried} of {rate} bytes/s, {round_trip} s");
            assert!(
                waited < 0.004 + round_trip / 3.0 + 2.0 * frame,
                "{waited} s at {rate} bytes/s, {round_trip} s"
            );
        }
    }

    #[test]
    fn connections_whose_times_vary_are_filled_all_the_same() {
        for (rate, round_trip, longer) in [(1e6, 0.02, 0.01), (1e7, 0.02, 0.01), (1e7, 0.1, 0.02)] {
            let (carried, _) = carried(rate, round_trip, longer);
            assert!(
                carried > 0.5 * rate,
                "{carried} of {rate} bytes/s, {round_trip} s and up to {longer} s more"
            );
        }
    }

    #[test]
    fn one_frame_goes_always_and_what_nobody_sent_is_not_counted() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.taken(now);
        pace.sent(usize::MAX, now);
        assert!(!pace.has_room());
        pace.taken(now);
        assert!(pace.has_room());
    }
}
