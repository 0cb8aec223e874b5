//! KV transfers under a policy that offloads KV.

use layerscope_engine::TransferCounters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// KV on its way out and back, of one generation: means over repeats, but for the longest waits. What moves is the same in
/// each; how long it takes is not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Transfers {
    /// Bytes of KV taken away from the device.
    pub bytes_out: u64,
    /// Bytes of KV brought back.
    pub bytes_in: u64,
    /// Times that blocks were scored again.
    pub rescored: u64,
    /// Times that this changed which of them are active.
    pub swaps: u64,
    /// Share of the blocks wanted that were active already; `None` where none was wanted.
    pub hit_rate: Option<f64>,
    /// Time that bringing back took, seconds, most of it beside the model's work.
    pub transfer_s: f64,
    /// Time waited for it, seconds.
    pub wait_s: f64,
    /// Time waited, before the first decode step, until everything was taken away, seconds.
    pub write_wait_s: f64,
    /// The longest wait for what a layer needed, seconds.
    pub longest_wait_s: f64,
    /// By how much a wait was longer than its own transfer at most, seconds.
    pub longest_excess_s: f64,
}

impl Transfers {
    /// Summarises the repeats of a policy; `None` if it does not offload.
    pub(crate) fn of<'a>(repeats: impl Iterator<Item = &'a TransferCounters>) -> Option<Self> {
        let repeats: Vec<&TransferCounters> = repeats.collect();
        let first = repeats.first()?;
        let mean = |figure: fn(&TransferCounters) -> f64| {
            repeats.iter().map(|counters| figure(counters)).sum::<f64>() / repeats.len() as f64
        };
        let most = |figure: fn(&TransferCounters) -> f64| {
            repeats.iter().map(|counters| figure(counters)).fold(0.0, f64::max)
        };
        Some(Self {
            bytes_out: first.bytes_out,
            bytes_in: first.bytes_in,
            rescored: first.rescored,
            swaps: first.swaps,
            hit_rate: first.hit_rate(),
            transfer_s: mean(|counters| counters.transfer_s),
            wait_s: mean(|counters| counters.wait_s),
            write_wait_s: mean(|counters| counters.write_wait_s),
            longest_wait_s: most(|counters| counters.longest_wait_s),
            longest_excess_s: most(|counters| counters.longest_excess_s),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let counters = |wait_s: f64| TransferCounters {
            bytes_out: 7,
            blocks_wanted: 4,
            blocks_active: 3,
            wait_s,
            longest_wait_s: wait_s,
            ..TransferCounters::default()
        };
        let found = Transfers::of([counters(1.0), counters(2.0)].iter()).expect("two repeats");
        assert_eq!((found.bytes_out, found.hit_rate), (7, Some(0.75)));
        assert_eq!((found.wait_s, found.longest_wait_s), (1.5, 2.0));
        assert_eq!(Transfers::of(std::iter::empty()), None);
    }
}
