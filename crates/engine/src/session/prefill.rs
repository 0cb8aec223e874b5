//! The prefill: the prompt through the stages that its policy makes.

use super::rows::Rows;
use super::{Interrupt, Session, check_interrupt, flattened};
use crate::decoder::KeysValuesOf;
use crate::hooks::Hooks;
use crate::memory::rows_at_once;
use crate::policy::{Arrived, KeysValuesAbove};
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Result};
use std::ops::Range;

impl Session<'_> {
    /// Runs the prompt, in chunks, as deep as the policy says; logits `[V]` of its last token.
    /// `progress(done)` is told after each chunk how many tokens have gone in.
    ///
    /// # Errors
    /// [`Error::Interrupted`], or whatever fails beneath.
    pub fn prefill(
        &mut self,
        prompt: &[u32],
        hooks: &mut Hooks<'_>,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Tensor> {
        assert!(self.is_empty() && prompt.len() == self.prompt_len, "prefill runs once, on the prompt");
        let at_once = rows_at_once(self.decoder.device());
        let end = Depth::entering(self.decoder.config().layers);
        let mut start = Depth::entering(0);
        // What enters a stage: tokens at first, then the rows that the stage before let go on.
        let mut entering: Option<Rows> = None;
        for exit in self.policy.rules().exits().into_iter().chain([end]) {
            let count = entering.as_ref().map_or(prompt.len(), Rows::len);
            let (mut arrived, mut positions, mut onward) = (vec![], vec![], vec![]);
            for first in (0..count).step_by(at_once) {
                check_interrupt(interrupt)?;
                let len = at_once.min(count - first);
                let chunk = match &entering {
                    None => self.embed(&prompt[first..first + len], hooks)?,
                    Some(rows) => rows.narrow(first, len)?,
                };
                let chunk = self.forward(chunk, start..exit, hooks, None, ComputeType::Bf16)?;
                self.give_up_unseen(start..exit)?;
                positions.extend_from_slice(&chunk.positions);
                arrived.push(chunk);
                if let Some(goes_on) = self.goes_on(exit, end, &positions)? {
                    let rows = Rows::joined(std::mem::take(&mut arrived))?;
                    let leaves: Vec<bool> = goes_on.iter().map(|goes_on| !goes_on).collect();
                    onward.extend(rows.select(&goes_on)?);
                    self.leave_behind(exit, &rows, &leaves, hooks)?;
                    positions.clear();
                }
                progress(self.len);
            }
            entering = Some(Rows::joined(onward)?);
            if let Some(blocks) = &mut self.blocks {
                blocks.stage_ended(exit.next_attention(), &mut self.store)?;
            }
            start = exit;
        }
        let Some(last) = entering else {
            return Err(Error::failure("prefill left no row; please report this"));
        };
        flattened(&self.decoder.unembed(&last.x, &last.positions, hooks, ComputeType::Bf16)?)
    }

    /// Which of the rows at `positions` go on from an exit, if that can be told; from the end it is the last prompt token
    /// alone.
    fn goes_on(&mut self, exit: Depth, end: Depth, positions: &[usize]) -> Result<Option<Vec<bool>>> {
        let prompt_len = self.prompt_len;
        let goes_on = match exit == end {
            true => Some(vec![false; positions.len()]),
            false => self.goes_on_by_policy(exit, positions)?,
        };
        let is_last = |position: &usize| position + 1 == prompt_len;
        Ok(goes_on.map(|goes_on| goes_on.iter().zip(positions).map(|(on, at)| *on || is_last(at)).collect()))
    }

    fn goes_on_by_policy(&mut self, exit: Depth, positions: &[usize]) -> Result<Option<Vec<bool>>> {
        if self.tokens.is_some() {
            if positions.last() != Some(&(self.prompt_len - 1)) {
                return Ok(None);
            }
            let received = self.received_from_last(exit)?;
            return Ok(self.tokens.as_ref().map(|tokens| tokens.go_on(exit, positions, &received)));
        }
        let (decoder, prompt_len, store) = (self.decoder, self.prompt_len, &self.store);
        match (self.queries.as_ref(), &mut self.blocks) {
            (Some(queries), Some(blocks)) => blocks.go_on(exit, positions, queries, decoder, store),
            (queries, _) => {
                Ok(self.policy.rules().goes_on(&Arrived { exit, positions, prompt_len, queries, store }))
            }
        }
    }

    /// Gives up the keys of the layers of a stage that no row sees from the first decode token on, or from the next one if
    /// that is before it.
    fn give_up_unseen(&mut self, stage: Range<Depth>) -> Result<()> {
        let Some(window) = self.policy.rules().window() else { return Ok(()) };
        let unseen = window.unseen(self.len.min(self.prompt_len - 1));
        // With the prompt's last token, what is left is all that a layer needs room for.
        let capacity = (self.len == self.prompt_len)
            .then(|| self.policy.capacity(self.prompt_len, self.sequence_len + 1 - self.prompt_len));
        for layer in stage.start.next_attention()..stage.end.next_attention() {
            let capacity = capacity.as_ref().map_or(self.store.capacity(layer), |capacity| capacity[layer]);
            self.store.give_up(layer, unseen.clone(), capacity)?;
        }
        Ok(())
    }

    /// Keeps what rows leaving at an exit leave: their residual streams where they may come back, and the KV that they have at
    /// the layers above it, if they have any.
    fn leave_behind(
        &mut self,
        exit: Depth,
        rows: &Rows,
        leaves: &[bool],
        hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        if let Some(tokens) = self.tokens.as_mut().filter(|tokens| tokens.exits().contains(&exit)) {
            rows.select(leaves)?.into_iter().for_each(|leaving| tokens.leave(exit, leaving));
        }
        let shared_norm = match self.policy.rules().keys_values_above() {
            KeysValuesAbove::Nothing => return Ok(()),
            KeysValuesAbove::OwnNorms => None,
            KeysValuesAbove::SharedNorm(layer) => Some(layer),
        };
        let above = exit.next_attention()..self.decoder.config().layers;
        let Some(Rows { x, positions }) = rows.select(leaves)? else { return Ok(()) };
        let store = &mut self.store;
        let of = KeysValuesOf { layers: above, shared_norm, sequence_len: self.sequence_len };
        self.decoder.project_keys_values(&x, &positions, of, hooks, &mut |layer, [k, v]| {
            store.append(layer, &positions, k, v)
        })
    }
}
