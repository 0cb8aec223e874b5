//! The prefill: the prompt through the stages that its policy makes.

use super::attention::last_rows;
use super::pass::Work;
use super::{Interrupt, Session, check_interrupt};
use crate::hooks::Hooks;
use crate::kv::KeptSlots;
use crate::memory::rows_at_once;
use crate::policy::top::largest;
use crate::policy::{Arrived, Eviction, StoredHead};
use crate::rows::ResidualRows;
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Result};
use std::collections::VecDeque;
use std::ops::Range;

/// A prompt on its way through the layers.
pub(super) struct Prefill {
    /// The prompt; without its last token where KV is evicted before that attends, and twice where it is read twice.
    tokens: Vec<u32>,
    /// Of them, those of the first reading.
    first_reading: usize,
    /// Where stages end, ascending; the last one ends with the last layer.
    ends: Vec<Depth>,
    /// The stage that rows are in.
    stage: usize,
    /// Rows that have yet to enter it. Tokens enter the first one.
    waiting: VecDeque<ResidualRows>,
    /// Rows at its end that are not known to be kept or not.
    arrived: Vec<ResidualRows>,
    /// Rows that are kept.
    kept: VecDeque<ResidualRows>,
    /// Whether the last of the waiting rows runs alone.
    last_apart: bool,
    /// Rows times half-layers that have run, and that there are.
    work: [usize; 2],
}

impl Prefill {
    /// The depth of the stage that rows are in.
    fn depth(&self) -> Range<Depth> {
        let start = self.stage.checked_sub(1).map_or(Depth::entering(0), |before| self.ends[before]);
        start..self.ends[self.stage]
    }

    /// Whether rows at these positions are those of a second reading.
    pub(super) fn is_again(&self, positions: &[usize]) -> bool {
        positions.first().is_some_and(|&first| first >= self.first_reading)
    }

    /// All but so much of its work is done already.
    pub(super) fn skip(&mut self, left: usize) {
        self.work[0] = self.work[1].saturating_sub(left);
    }

    /// Has the last of the waiting rows run in a chunk of its own.
    fn set_last_row_apart(&mut self) -> Result<()> {
        let Some(rows) = self.waiting.pop_back() else { return Ok(()) };
        let before = rows.len() - 1;
        if before > 0 {
            self.waiting.push_back(rows.narrow(0, before)?);
        }
        self.last_apart = true;
        self.waiting.push_back(rows.narrow(before, 1)?);
        Ok(())
    }

    /// The next rows that enter a stage behind the first, at most so many.
    fn next_rows(&mut self, at_once: usize) -> Result<ResidualRows> {
        let (mut pieces, mut room) = (vec![], at_once);
        let is_again = |rows: &ResidualRows| rows.positions[0] >= self.first_reading;
        let again = self.waiting.front().map(is_again);
        while room > 0 && (pieces.is_empty() || !self.last_apart || self.waiting.len() > 1) {
            let Some(rows) = self.waiting.pop_front_if(|rows| Some(is_again(rows)) == again) else { break };
            let len = rows.len().min(room);
            if len < rows.len() {
                self.waiting.push_front(rows.narrow(len, rows.len() - len)?);
            }
            room -= len;
            pieces.push(if len < rows.len() { rows.narrow(0, len)? } else { rows });
        }
        ResidualRows::joined(pieces)
    }
}

impl Session {
    /// Runs the prompt, in chunks, as deep as the policy says; logits `[V]` of its last token.
    /// `progress(done)` is told again and again how much of it has run, in tokens.
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
        self.finish_prefill(hooks, interrupt, progress)
    }

    /// Runs what is left of a prompt that [`Self::begin_prefill`] or [`Self::begin_prefill_after`] took, as [`Self::prefill`] does.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub fn finish_prefill(
        &mut self,
        hooks: &mut Hooks<'_>,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Tensor> {
        loop {
            check_interrupt(interrupt)?;
            let logits = self.advance(None, hooks, None)?;
            progress(self.prefilled());
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
        let layers = self.decoder.config().layers;
        let last = usize::from(self.policy.evicts_before_decode());
        self.last_token = prompt.last().copied().filter(|_| last == 1);
        let first_reading = prompt.len() - last;
        let again = &prompt[..self.policy.read_again(prompt.len())];
        let prefill = Prefill {
            tokens: [&prompt[..first_reading], again].concat(),
            first_reading,
            ends: self.policy.stage_ends(),
            stage: 0,
            waiting: VecDeque::new(),
            arrived: vec![],
            kept: VecDeque::new(),
            last_apart: false,
            work: [0, self.policy.prefill_rows(prompt.len()).iter().flatten().sum()],
        };
        let first = if prefill.tokens.is_empty() { 0..layers } else { layers_of(&prefill.depth()) };
        self.reserve(first)?;
        self.prefill = Some(prefill);
        Ok(())
    }

    /// Whether rows on their way are those of a prompt's second reading.
    pub(super) fn reads_again(&self, rows: &ResidualRows) -> bool {
        self.prefill.as_ref().is_some_and(|prefill| prefill.is_again(&rows.positions))
    }

    /// Whether a prompt was taken and has not run to its end.
    pub fn is_prefilling(&self) -> bool {
        self.prefill.is_some()
    }

    /// How much of a prompt has run, in tokens: those that have gone in, less what layers above have yet to run.
    fn prefilled(&self) -> usize {
        match &self.prefill {
            Some(Prefill { first_reading, work: [done, all], .. }) => {
                let share = *done as f64 / (*all).max(1) as f64;
                ((*first_reading as f64 * share) as usize).min(self.len)
            }
            None => self.len,
        }
    }

    /// The next chunk of a prompt that is on its way; `None` where only its last token is left to run, as a decode row.
    pub(super) fn next_chunk(&mut self, hooks: &mut Hooks<'_>) -> Result<Option<Work>> {
        let at_once = rows_at_once(self.decoder.device());
        let Some(prefill) = &mut self.prefill else { return Ok(None) };
        if prefill.tokens.is_empty() {
            return Ok(None);
        }
        let depth = prefill.depth();
        let rows = match prefill.stage {
            0 => {
                let is_first = self.len < prefill.first_reading;
                let end = if is_first { prefill.first_reading } else { prefill.tokens.len() };
                let tokens = &prefill.tokens[self.len..end];
                // A prompt that goes on from another's has its chunks where it would have them alone.
                let room = at_once - self.len % at_once;
                let tokens = tokens[..room.min(tokens.len())].to_vec();
                self.embed(&tokens, hooks)?
            }
            _ => prefill.next_rows(at_once)?,
        };
        Ok(Some(Work::new(rows, depth)))
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
        let Range { start, end } = prefill.depth();
        let next = match prefill.stage {
            0 => Some(self.len).filter(|&len| len < prefill.tokens.len()),
            _ => prefill.waiting.front().map(|rows| rows.positions[0]),
        };
        if next.is_none() {
            // A second reading leaves nothing.
            self.len = self.len.min(prefill.first_reading);
        }
        self.evict_unseen(layers_of(&(start..end)), next)?;
        prefill.work[0] += chunk.len() * Depth::halves(start..end).count();
        prefill.arrived.push(chunk);
        let positions: Vec<usize> =
            prefill.arrived.iter().flat_map(|rows| &rows.positions).copied().collect();
        let is_last_stage = prefill.stage + 1 == prefill.ends.len();
        if let Some(keep) = self.keep_mask(end, is_last_stage, &positions)? {
            let rows = ResidualRows::joined(std::mem::take(&mut prefill.arrived))?;
            let drop: Vec<bool> = keep.iter().map(|keep| !keep).collect();
            prefill.kept.extend(rows.select(&keep)?);
            self.drop_rows(end, &rows, &drop, hooks)?;
            if self.policy.rules().cross_layer_kv().is_some() {
                self.evict_unseen(end.next_attention()..self.decoder.config().layers, next)?;
            }
        }
        if next.is_some() {
            self.prefill = Some(prefill);
            return Ok(None);
        }
        if let Some(selection) = &mut self.selection {
            selection.stage_ended(end.next_attention(), &mut self.store)?;
        }
        self.evict_before_decode(layers_of(&(start..end)))?;
        if is_last_stage {
            let kept = Vec::from(prefill.kept);
            return if kept.is_empty() { Ok(None) } else { ResidualRows::joined(kept).map(Some) };
        }
        // Without rows, which is where the last prompt token runs on its own, there is nothing left of the prefill.
        if prefill.kept.is_empty() {
            for layer in end.next_attention()..self.decoder.config().layers {
                self.reserve(layer..layer + 1)?;
                self.evict_before_decode(layer..layer + 1)?;
            }
            return Ok(None);
        }
        prefill.waiting = std::mem::take(&mut prefill.kept);
        // Whether anchors run or were taken over makes no difference to the first decode row then.
        if self.policy.full_prompt_rows().is_some() {
            prefill.set_last_row_apart()?;
        }
        prefill.stage += 1;
        self.reserve(layers_of(&prefill.depth()))?;
        self.prefill = Some(prefill);
        Ok(None)
    }

    /// Reserves what the prefill stores at some layers, where it was not reserved as the sequence began.
    fn reserve(&mut self, layers: Range<usize>) -> Result<()> {
        if !self.policy.runs_by_layer() {
            return Ok(());
        }
        let held = self.policy.most_held(self.prompt_len, self.decode_len(), self.decoder.device());
        layers.into_iter().try_for_each(|layer| self.store.grow(layer, held[layer]))
    }

    /// Which of the rows at `positions` are kept at the end of a stage, if that can be told: all where it is no pruning point, and
    /// at the last one the last prompt token alone.
    fn keep_mask(&mut self, point: Depth, is_end: bool, positions: &[usize]) -> Result<Option<Vec<bool>>> {
        let prompt_len = self.prompt_len;
        let has_last = !self.policy.evicts_before_decode();
        let is_last = |position: &usize| has_last && position + 1 == prompt_len;
        let keep = match is_end {
            true => Some(vec![false; positions.len()]),
            false if !self.policy.rules().reach().pruning_points().contains(&point) => {
                Some(vec![true; positions.len()])
            }
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

    /// Evicts the keys of some layers that no row sees from the first decode token on, or from the prompt row on that comes to
    /// these layers next.
    fn evict_unseen(&mut self, layers: Range<usize>, next: Option<usize>) -> Result<()> {
        let is_complete = next.is_none() && self.len == self.prompt_len;
        let next = next.unwrap_or(self.len).min(self.prompt_len - 1);
        let mut capacity = vec![];
        for layer in layers {
            let Some(window) = self.policy.sliding(layer) else { continue };
            // With the prompt's last token, what is left is all that a layer needs room for.
            if is_complete && capacity.is_empty() {
                capacity = self.policy.capacity(self.prompt_len, self.decode_len());
            }
            let capacity = capacity.get(layer).copied().unwrap_or(self.store.capacity(layer));
            self.store.evict(layer, window.unseen(next), capacity)?;
        }
        Ok(())
    }

    /// Evicts what the retention does not keep in some layers, which hold the prompt but its last token.
    fn evict_before_decode(&mut self, layers: Range<usize>) -> Result<()> {
        let policy = self.policy.clone();
        let retention = policy.rules().retention();
        if retention.eviction() != Eviction::BeforeDecode {
            return Ok(());
        }
        let end = layers.end;
        for layer in layers {
            if retention.shares_out() {
                let scores = self.of_heads(layer, &|stored| retention.scores(stored))?;
                // What is read a second time leaves at once.
                let first = scores.iter().map(|scores| vec![true; scores.len()]).collect();
                self.competing.extend(scores);
                self.keep(layer, first, 0)?;
            } else {
                let kept = self.of_heads(layer, &|stored| retention.keep_mask(stored))?;
                self.keep_as_said(layer, kept)?;
            }
        }
        if retention.shares_out() && end == self.decoder.config().layers { self.share_out() } else { Ok(()) }
    }

    /// Evicts from all layers but the largest of the scores of all their KV heads.
    fn share_out(&mut self) -> Result<()> {
        let kv_heads = self.decoder.config().kv_heads;
        let kept: usize = (self.policy.capacity_by_head(self.prompt_len, 0, kv_heads).iter().flatten()).sum();
        let scores = std::mem::take(&mut self.competing);
        let mut is_kept = vec![false; scores.iter().map(Vec::len).sum()];
        for index in largest(&scores.concat(), kept) {
            is_kept[index] = true;
        }
        let mut rest = &is_kept[..];
        let decode_len = self.decode_len();
        for (layer, heads) in scores.chunks(kv_heads).enumerate() {
            let mut of_head = |scores: &Vec<f32>| {
                let (of_head, others) = rest.split_at(scores.len());
                rest = others;
                of_head.to_vec()
            };
            let kept = heads.iter().map(&mut of_head).collect();
            self.keep(layer, kept, decode_len)?;
        }
        Ok(())
    }

    /// What is found out about each KV head of a layer that holds the prompt but its last token.
    fn of_heads<T>(
        &mut self,
        layer: usize,
        find: &dyn Fn(&StoredHead<'_>) -> Result<Vec<T>>,
    ) -> Result<Vec<Vec<T>>> {
        let observed_rows = self.policy.rules().retention().observed_rows();
        let queries = self.observed.remove(&layer);
        let queries = queries.map(|pieces| last_rows(&pieces, observed_rows)).transpose()?;
        let keys = self.store.keys(layer)?;
        let of_head = |kv_head| {
            let stored = self.store.positions(layer, kv_head);
            let of_prompt = stored.partition_point(|&position| position + 1 < self.prompt_len);
            let (positions, read_again) = stored.split_at(of_prompt);
            let found = find(&StoredHead {
                layer,
                kv_head,
                prefill_len: self.prompt_len - 1,
                positions,
                read_again,
                keys: &keys,
                queries: queries.as_ref(),
                shape: self.decoder.attention_shape(layer),
                store: &self.store,
                decoder: &self.decoder,
                sequence_len: self.sequence_len,
            })?;
            match found.len() == positions.len() {
                true => Ok(found),
                false => Err(Error::failure(format!(
                    "policy {} says nothing of some tokens at layer {layer}, KV head {kv_head}; please report this",
                    self.policy
                ))),
            }
        };
        (0..self.decoder.config().kv_heads).map(of_head).collect()
    }

    /// [`Self::keep`], where the policy said how many.
    fn keep_as_said(&mut self, layer: usize, kept: Vec<Vec<bool>>) -> Result<()> {
        let stored = self.policy.stored(self.prompt_len).nth(layer);
        for (kv_head, kept) in kept.iter().enumerate() {
            let expected = stored.map_or(0, |stored| {
                self.policy.rules().retention().kept_by_head(self.policy.unevicted(stored), kv_head)
            });
            if kept.iter().filter(|kept| **kept).count() != expected {
                return Err(Error::failure(format!(
                    "policy {} keeps another number of tokens at layer {layer}, KV head {kv_head} than the {expected} that it said",
                    self.policy
                )));
            }
        }
        self.keep(layer, kept, self.decode_len())
    }

    /// Evicts the prompt's tokens that KV heads of a layer do not keep, `[kv_heads][stored]`, and all behind them; each head has room
    /// for `more` tokens then.
    fn keep(&mut self, layer: usize, kept: Vec<Vec<bool>>, more: usize) -> Result<()> {
        let slots = |kept: Vec<bool>| {
            let slots = ranges(&kept);
            let count: usize = slots.iter().map(ExactSizeIterator::len).sum();
            KeptSlots { slots, capacity: count + more }
        };
        let kept: Vec<KeptSlots> = kept.into_iter().map(slots).collect();
        self.store.keep_by_head(layer, &kept)
    }

    /// Decode tokens, the prompt's last one among them.
    fn decode_len(&self) -> usize {
        self.sequence_len + 1 - self.prompt_len
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

/// The layers whose attention is within a range of depth.
fn layers_of(depth: &Range<Depth>) -> Range<usize> {
    depth.start.next_attention()..depth.end.next_attention()
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
