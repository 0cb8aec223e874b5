//! A prompt whose first tokens have run in another sequence: their keys and values are copied, not computed again.

use super::Session;
use crate::memory::rows_at_once;
use crate::{Device, Error, Result};
use layerscope_kernels::Instructions;
use layerscope_kernels::matmul::ComputeType;
use std::ops::Range;
use std::sync::Arc;

/// Rows that are left to run of the chunk in which a prompt goes on, and of a chunk whose other rows end: attention adds fewer in
/// another order.
pub(super) const FEWEST_ROWS: usize = 16;

impl Session {
    /// How many of the first `alike` tokens of this session's prompt, which are those of another's, have the keys and values that
    /// this one's policy wants; 0 where none do. Below a cutoff they are the full model's, under every policy that lets prompt rows
    /// read all that is before them. What runs behind them has the bits that it has without: chunks end where they would, and models
    /// with windows or experts go on at the beginning of one.
    pub fn can_take_over(&self, other: &Session, alike: usize) -> usize {
        let has_run = !other.is_prefilling() && other.len + 1 >= other.prompt_len;
        let same_rows = Arc::ptr_eq(&self.decoder, &other.decoder)
            || self.decoder.shares_prompts_with(&other.decoder)
            || other.decoder.shares_prompts_with(&self.decoder);
        let same_type = self.store.precision() == other.store.precision()
            && self.rounds_prompts() == other.rounds_prompts();
        if !(has_run && same_rows && same_type && other.shares_its_prompt()) {
            return 0;
        }
        let len = self.rounded(alike.min(self.prompt_len - 1).min(other.prompt_len - 1));
        // An anchor that runs alone above the cutoff is the only row of its experts there.
        let (cutoff, bos) = self.policy.full_prompt_rows().unwrap_or_default();
        let config = self.decoder.config();
        if config.experts.is_some() && bos && cutoff < config.layers {
            return 0;
        }
        let Some(taken) = self.taken_over(len) else { return 0 };
        let complete = taken.into_iter().enumerate().all(|(layer, positions)| {
            positions.into_iter().all(|positions| other.store.holds(layer, positions))
        });
        if complete { len } else { 0 }
    }

    /// Whether the rows of its prompt are multiplied in eight bits.
    fn rounds_prompts(&self) -> bool {
        self.rounds
            && matches!(self.decoder.device(), Device::Cpu)
            && ComputeType::Int8.rounds_many(Instructions::best())
    }

    /// Whether other sequences may take over its prompt's keys and values.
    pub fn shares_its_prompt(&self) -> bool {
        self.policy.full_prompt_rows().is_some()
    }

    /// Fewer tokens, so that what is left of the prompt runs in chunks that end where they would without.
    fn rounded(&self, len: usize) -> usize {
        let at_once = rows_at_once(self.decoder.device());
        let start = len / at_once * at_once;
        let config = self.decoder.config();
        let mut windows = (0..config.layers).filter_map(|layer| self.policy.sliding(layer));
        // How many rows of a chunk an expert gets depends on the whole chunk.
        if config.experts.is_some() || windows.any(|window| window.window < self.prompt_len) {
            return start;
        }
        let end = self.prompt_len.min(start + at_once);
        len.min(end.saturating_sub(FEWEST_ROWS)).max(start)
    }

    /// [`Self::begin_prefill`] for a prompt whose first `len` tokens are those of another session's.
    ///
    /// # Errors
    /// As [`Self::begin_prefill`]; [`Error::Misuse`] where [`Self::can_take_over`] says another number.
    pub fn begin_prefill_after(&mut self, prompt: &[u32], other: &Session, len: usize) -> Result<()> {
        if len == 0 || self.can_take_over(other, len) != len {
            return Err(Error::misuse("the other sequence has not the keys and values that this one wants"));
        }
        self.begin_prefill(prompt)?;
        for (layer, positions) in self.taken_over(len).into_iter().flatten().enumerate() {
            for positions in positions {
                self.store.copy_positions(layer, &other.store, positions)?;
            }
        }
        self.len = len;
        if let Some(prefill) = &mut self.prefill {
            let left: usize = self.policy.prefill_rows(prompt.len() - len).iter().flatten().sum();
            prefill.skip(left);
        }
        Ok(())
    }

    /// Of each layer, which of the first `len` positions are stored once these have run; `None` under policies whose prompt rows
    /// are not the full model's.
    fn taken_over(&self, len: usize) -> Option<Vec<Vec<Range<usize>>>> {
        let (cutoff, bos) = self.policy.full_prompt_rows()?;
        let of_layer = |layer| {
            let stored = if layer < cutoff { len } else { usize::from(bos) };
            let unseen = self.policy.sliding(layer).map_or(0..0, |window| window.unseen(len));
            let parts = [0..unseen.start.min(stored), unseen.end.min(stored)..stored];
            parts.into_iter().filter(|part| !part.is_empty()).collect()
        };
        Some((0..self.decoder.config().layers).map(of_layer).collect())
    }
}
