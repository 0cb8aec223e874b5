//! The prefill: the prompt through the stages that its policy makes.

use super::pass::Work;
use super::{Interrupt, Session, check_interrupt};
use crate::hooks::Hooks;
use crate::kv::KeptSlots;
use crate::memory::rows_at_once;
use crate::policy::{Arrived, Eviction, StoredHead};
use crate::rows::ResidualRows;
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Result};
use std::ops::Range;

/// A prompt on its way through the layers.
pub(super) struct Prefill {
    /// The prompt; without its last token where KV is evicted before that attends.
    tokens: Vec<u32>,
    /// Where stages end, ascending; the last one ends with the last layer.
    ends: Vec<Depth>,
    /// The stage that rows are in.
    stage: usize,
    /// What enters it: tokens at first, then the rows that the stage before kept.
    entering: Option<ResidualRows>,
    /// Rows of the stage that were taken into it.
    taken: usize,
    /// Rows at its end that are not known to be kept or not.
    arrived: Vec<ResidualRows>,
    /// Rows that are kept.
    kept: Vec<ResidualRows>,
}

impl Session {
    /// Runs the prompt, in chunks, as deep as the policy says; logits `[V]` of its last token.
    /// `progress(done)` is told after each chunk how many tokens have gone in.
    ///
    /// # Errors
    /// [`Error::Failure`] where the prompt is of another length, or something went in before; [`Error::Interrupted`], or
    /// whatever fails beneath.
    pub fn prefill(
        &mut self,
        prompt: &[u32],
        hooks: &mut Hooks<'_>,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Tensor> {
        self.begin_prefill(prompt)?;
        loop {
            check_interrupt(interrupt)?;
            let logits = self.advance(None, hooks, None)?;
            progress(self.len);
            if let Some(logits) = logits {
                return Ok(logits);
            }
        }
    }

    /// Takes a prompt, of which no token runs yet: [`super::advance_together`] runs it chunk by chunk.
    ///
    /// # Errors
    /// [`Error::Failure`] where it is of another length than was said, or something went in before.
    pub fn begin_prefill(&mut self, prompt: &[u32]) -> Result<()> {
        if !self.is_empty() || self.prefill.is_some() || prompt.len() != self.prompt_len {
            return Err(Error::failure(format!(
                "a session takes one prompt, of {} tokens as it was told, before anything else",
                self.prompt_len
            )));
        }
        let end = Depth::entering(self.decoder.config().layers);
        let ends = self.policy.rules().reach().pruning_points().into_iter().chain([end]).collect();
        let last = usize::from(self.policy.rules().retention().eviction() == Eviction::BeforeDecode);
        self.last_token = prompt.last().copied().filter(|_| last == 1);
        self.prefill = Some(Prefill {
            tokens: prompt[..prompt.len() - last].to_vec(),
            ends,
            stage: 0,
            entering: None,
            taken: 0,
            arrived: vec![],
            kept: vec![],
        });
        Ok(())
    }

    /// Whether a prompt was taken and has not run to its end.
    pub fn is_prefilling(&self) -> bool {
        self.prefill.is_some()
    }

    /// The next chunk of a prompt that is on its way; `None` where only its last token is left to run, as a decode row.
    pub(super) fn next_chunk(&mut self, hooks: &mut Hooks<'_>) -> Result<Option<Work>> {
        let at_once = rows_at_once(self.decoder.device());
        let Some(prefill) = &mut self.prefill else { return Ok(None) };
        let count = prefill.entering.as_ref().map_or(prefill.tokens.len(), ResidualRows::len);
        if count == 0 {
            return Ok(None);
        }
        let (first, len) = (prefill.taken, at_once.min(count - prefill.taken));
        let start = prefill.stage.checked_sub(1).map_or(Depth::entering(0), |before| prefill.ends[before]);
        let depth = start..prefill.ends[prefill.stage];
        prefill.taken += len;
        let rows = match &prefill.entering {
            Some(rows) => rows.narrow(first, len)?,
            None => {
                let tokens = prefill.tokens[first..first + len].to_vec();
                self.embed(&tokens, hooks)?
            }
        };
        Ok(Some(Work { rows, depth }))
    }

    /// A chunk has come to the end of its stage. The last prompt token's row, once that has run through all layers.
    pub(super) fn chunk_arrived(
        &mut self,
        chunk: ResidualRows,
        hooks: &mut Hooks<'_>,
    ) -> Result<Option<ResidualRows>> {
        let Some(mut prefill) = self.prefill.take() else {
            return Err(Error::failure("no prompt is on its way; please report this"));
        };
        let (stage, end) = (prefill.stage, prefill.ends[prefill.stage]);
        let start = stage.checked_sub(1).map_or(Depth::entering(0), |before| prefill.ends[before]);
        self.evict_unseen(start.next_attention()..end.next_attention())?;
        prefill.arrived.push(chunk);
        let positions: Vec<usize> =
            prefill.arrived.iter().flat_map(|rows| &rows.positions).copied().collect();
        let is_last_stage = stage + 1 == prefill.ends.len();
        if let Some(keep) = self.keep_mask(end, is_last_stage, &positions)? {
            let rows = ResidualRows::joined(std::mem::take(&mut prefill.arrived))?;
            let drop: Vec<bool> = keep.iter().map(|keep| !keep).collect();
            prefill.kept.extend(rows.select(&keep)?);
            self.drop_rows(end, &rows, &drop, hooks)?;
            if self.policy.rules().cross_layer_kv().is_some() {
                self.evict_unseen(end.next_attention()..self.decoder.config().layers)?;
            }
        }
        let count = prefill.entering.as_ref().map_or(prefill.tokens.len(), ResidualRows::len);
        if prefill.taken < count {
            self.prefill = Some(prefill);
            return Ok(None);
        }
        if let Some(selection) = &mut self.selection {
            selection.stage_ended(end.next_attention(), &mut self.store)?;
        }
        self.evict_before_decode(start..end)?;
        let kept = std::mem::take(&mut prefill.kept);
        let kept = if kept.is_empty() { None } else { Some(ResidualRows::joined(kept)?) };
        if is_last_stage {
            return Ok(kept);
        }
        // Without rows, which is where the last prompt token runs on its own, there is nothing left of the prefill.
        if kept.is_none() {
            for stage in stage + 1..prefill.ends.len() {
                self.evict_before_decode(prefill.ends[stage - 1]..prefill.ends[stage])?;
            }
            return Ok(None);
        }
        (prefill.entering, prefill.taken, prefill.stage) = (kept, 0, stage + 1);
        self.prefill = Some(prefill);
        Ok(None)
    }

    /// Which of the rows at `positions` are kept at a pruning point, if that can be told; at the end it is the last prompt token
    /// alone.
    fn keep_mask(&mut self, point: Depth, is_end: bool, positions: &[usize]) -> Result<Option<Vec<bool>>> {
        let prompt_len = self.prompt_len;
        let is_last = |position: &usize| position + 1 == prompt_len;
        let keep = match is_end {
            true => Some(vec![false; positions.len()]),
            false => {
                let scores = self.selection.as_ref().is_some_and(|selection| selection.scores_by_attention());
                let received = match scores && positions.last().is_some_and(is_last) {
                    true => Some(self.received_from_last(point.layer())?),
                    false => None,
                };
                let (queries, received, store) = (self.queries.as_ref(), received.as_deref(), &self.store);
                let arrived = Arrived { point, positions, prompt_len, queries, received, store };
                match &mut self.selection {
                    Some(selection) => selection.keep_mask(&arrived, &self.decoder)?,
                    None => self.policy.rules().reach().keep_mask(&arrived),
                }
            }
        };
        Ok(keep.map(|keep| keep.iter().zip(positions).map(|(keep, at)| *keep || is_last(at)).collect()))
    }

    /// Evicts the keys of some layers that no row sees from the first decode token on, or from the next one if
    /// that is before it.
    fn evict_unseen(&mut self, layers: Range<usize>) -> Result<()> {
        let next = self.len.min(self.prompt_len - 1);
        let mut capacity = vec![];
        for layer in layers {
            let Some(window) = self.policy.sliding(layer) else { continue };
            // With the prompt's last token, what is left is all that a layer needs room for.
            if self.len == self.prompt_len && capacity.is_empty() {
                capacity = self.policy.capacity(self.prompt_len, self.sequence_len + 1 - self.prompt_len);
            }
            let capacity = capacity.get(layer).copied().unwrap_or(self.store.capacity(layer));
            self.store.evict(layer, window.unseen(next), capacity)?;
        }
        Ok(())
    }

    /// Evicts what the retention does not keep in the layers of a stage, which hold the prompt but its last token.
    fn evict_before_decode(&mut self, stage: Range<Depth>) -> Result<()> {
        let retention = self.policy.rules().retention();
        if retention.eviction() != Eviction::BeforeDecode {
            return Ok(());
        }
        let (kv_heads, decode_len) =
            (self.decoder.config().kv_heads, self.sequence_len + 1 - self.prompt_len);
        let layers = stage.start.next_attention()..stage.end.next_attention();
        let as_stored: Vec<_> = self.policy.stored(self.prompt_len).collect();
        for layer in layers {
            let queries = self.observed.remove(&layer);
            let mut kept = vec![];
            let keys = self.store.keys(layer)?;
            for kv_head in 0..kv_heads {
                let positions = self.store.positions(layer, kv_head);
                let stored = StoredHead {
                    layer,
                    kv_head,
                    prefill_len: self.prompt_len - 1,
                    positions: &positions,
                    keys: &keys,
                    queries: queries.as_ref(),
                    shape: self.decoder.attention_shape(layer),
                };
                let keep = retention.keep_mask(&stored)?;
                let expected = retention.kept_by_head(self.policy.unevicted(as_stored[layer]), kv_head);
                if keep.len() != positions.len() || keep.iter().filter(|keep| **keep).count() != expected {
                    return Err(Error::failure(format!(
                        "policy {} keeps another number of tokens at layer {layer}, KV head {kv_head} than the {expected} \
                         that it said",
                        self.policy
                    )));
                }
                kept.push(KeptSlots { slots: ranges(&keep), capacity: expected + decode_len });
            }
            drop(keys);
            self.store.keep_by_head(layer, &kept)?;
        }
        Ok(())
    }

    /// Rows are dropped at a pruning point: a selection may keep their residual streams, and they leave the KV that they have at
    /// the layers above, if they have any.
    fn drop_rows(
        &mut self,
        point: Depth,
        rows: &ResidualRows,
        drop: &[bool],
        hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        let layers = self.decoder.config().layers;
        if let Some(selection) = self.selection.as_mut().filter(|_| point < Depth::entering(layers)) {
            rows.select(drop)?.into_iter().for_each(|dropped| selection.dropped(point, dropped));
        }
        match rows.select(drop)? {
            Some(dropped) => {
                self.project_keys_values(&dropped, point.next_attention(), hooks, ComputeType::Bf16)
            }
            None => Ok(()),
        }
    }
}

/// The indices that are true, as ranges.
fn ranges(mask: &[bool]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = vec![];
    for (index, _) in mask.iter().enumerate().filter(|(_, is_true)| **is_true) {
        match ranges.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => ranges.push(index..index + 1),
        }
    }
    ranges
}
