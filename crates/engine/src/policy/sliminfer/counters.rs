//! What was moved between the device and where blocks go from it.

use serde::Serialize;
use std::time::Duration;

/// Transfers of a sequence so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TransferCounters {
    /// Bytes of KV that were taken away from the device; each block of a layer once.
    pub bytes_out: u64,
    /// Time waited, before the first decode step, until all of it was taken away, seconds.
    pub write_wait_s: f64,
    /// Bytes of KV that came back.
    pub bytes_in: u64,
    /// Times that a stage's blocks were scored again.
    pub rescored: u64,
    /// Times that this changed which of them are active.
    pub swaps: u64,
    /// Blocks that were wanted, over all these times.
    pub blocks_wanted: u64,
    /// Those of them that were active already.
    pub blocks_active: u64,
    /// Transfers of a layer's blocks that came back.
    pub transfers: u64,
    /// Those of them that a layer had to wait for, more than a tenth of a millisecond.
    pub waits: u64,
    /// Time waited for them, seconds.
    pub wait_s: f64,
    /// Time that they took, seconds, most of it beside the model's work.
    pub transfer_s: f64,
    /// The longest wait, seconds.
    pub longest_wait_s: f64,
    /// By how much a wait was longer than its own transfer at most, seconds; 0 where none was.
    pub longest_excess_s: f64,
}

impl TransferCounters {
    /// Share of the blocks wanted that were active already; `None` where none was ever wanted.
    pub fn hit_rate(&self) -> Option<f64> {
        (self.blocks_wanted > 0).then(|| self.blocks_active as f64 / self.blocks_wanted as f64)
    }

    pub(super) fn took_in(&mut self, bytes: usize, waited: Duration, took: Duration) {
        const NOTICEABLE: Duration = Duration::from_micros(100);
        self.bytes_in += bytes as u64;
        self.transfers += 1;
        self.waits += u64::from(waited > NOTICEABLE);
        self.wait_s += waited.as_secs_f64();
        self.transfer_s += took.as_secs_f64();
        self.longest_wait_s = self.longest_wait_s.max(waited.as_secs_f64());
        self.longest_excess_s = self.longest_excess_s.max(waited.saturating_sub(took).as_secs_f64());
    }
}
