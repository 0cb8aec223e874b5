//! One sequence running through a decoder: prefill, decode steps, and the KV that its policy keeps.

mod attention;
mod blocks;
mod device_attention;
mod device_steps;
mod materialised;
mod prefill;
mod rows;
mod tokens;

use crate::decoder::{Decoder, Location, Pass};
use crate::hooks::Hooks;
use crate::kv::KvStore;
use crate::memory;
use crate::policy::KeysValuesAbove;
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Policy, Result};
use attention::StoredAttention;
use blocks::Blocks;
pub use blocks::TransferCounters;
use device_steps::DeviceSteps;
use layerscope_kernels::{AttentionStatistics, Received};
use rows::Rows;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
pub use tokens::RevivalCounters;
use tokens::Tokens;

/// Set by Ctrl-C; long work looks at it and stops with [`Error::Interrupted`].
pub type Interrupt = AtomicBool;

/// Stops with [`Error::Interrupted`] where the user asked for it.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check_interrupt(interrupt: &Interrupt) -> Result<()> {
    if interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Attention statistics of one layer, over decode rows.
pub struct LayerStatistics {
    /// Mass and entropy, index `row · H + head`.
    pub rows: AttentionStatistics,
    /// Attention received by prompt positions 0 … p−1; without positions where it was not asked for.
    pub received: Received,
}

impl LayerStatistics {
    /// Those of rows that went through the layers one after the other.
    fn joined(of_rows: Vec<Vec<Self>>) -> Vec<Self> {
        let mut joined: Vec<Self> = vec![];
        for layers in of_rows {
            if joined.is_empty() {
                joined = layers;
                continue;
            }
            for (all, one) in joined.iter_mut().zip(layers) {
                all.rows.mass.extend(one.rows.mass);
                all.rows.entropy.extend(one.rows.entropy);
                all.received.sum.iter_mut().zip(one.received.sum).for_each(|(sum, more)| *sum += more);
                all.received
                    .max
                    .iter_mut()
                    .zip(one.received.max)
                    .for_each(|(max, other)| *max = max.max(other));
            }
        }
        joined
    }
}

/// Where a pass leaves its attention statistics.
struct Collected<'a> {
    layers: &'a mut Vec<LayerStatistics>,
    /// Whether attention received is summed up, which takes a second pass over the keys.
    received: bool,
}

/// A running sequence.
pub struct Session<'m> {
    decoder: &'m Decoder,
    policy: Policy,
    store: KvStore,
    prompt_len: usize,
    /// Most tokens that the sequence will have.
    sequence_len: usize,
    len: usize,
    /// Queries of the rows that came last, `[rows, H, head_dim]`, in the last attention that they went through.
    queries: Option<Tensor>,
    /// Where prompt blocks go on by their scores.
    blocks: Option<Blocks>,
    /// Where prompt tokens go on by the attention they receive.
    tokens: Option<Tokens>,
    /// On a GPU: what decode steps share.
    device_steps: Option<DeviceSteps>,
}

impl<'m> Session<'m> {
    /// Reserves KV for a prompt of `prompt_len` tokens and `decode_len` decode tokens, the last prompt token counted
    /// among the latter.
    ///
    /// # Errors
    /// [`Error::Input`] on an empty prompt, a sequence beyond the model's context, or one that needs more memory than is free.
    pub fn new(decoder: &'m Decoder, policy: Policy, prompt_len: usize, decode_len: usize) -> Result<Self> {
        decoder.config().check_sequence(prompt_len, decode_len)?;
        let (name, device) =
            (format!("a sequence of {} tokens", prompt_len - 1 + decode_len), decoder.device());
        let held = policy.most_held(prompt_len, decode_len, device);
        let need = decoder.sequence_need(&policy.in_memory(prompt_len, decode_len, device));
        memory::check(&name, &need, device)?;
        let store = KvStore::new(decoder.config(), &held, decoder.kv_precision(), device)?;
        let pruning = policy.rules().block_pruning();
        let blocks = pruning.map(|pruning| Blocks::new(pruning, decoder, prompt_len - 1, decode_len, &store));
        let blocks = blocks.transpose()?;
        let pruning = policy.rules().token_pruning();
        let tokens = pruning.map(|pruning| Tokens::new(pruning, prompt_len - 1, decode_len));
        let sequence_len = prompt_len - 1 + decode_len;
        Ok(Self {
            decoder,
            policy,
            store,
            prompt_len,
            sequence_len,
            len: 0,
            queries: None,
            blocks,
            tokens,
            device_steps: None,
        })
    }

    /// Tokens processed so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was processed yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most tokens that the sequence will have.
    pub fn sequence_len(&self) -> usize {
        self.sequence_len
    }

    /// The KV store.
    pub fn store(&self) -> &KvStore {
        &self.store
    }

    /// What was moved of prompt blocks' KV; `None` under a policy that moves nothing.
    pub fn transfers(&self) -> Option<&TransferCounters> {
        self.blocks.as_ref().and_then(Blocks::counters)
    }

    /// What came back of the prompt tokens that were dropped; `None` under a policy from which none comes back.
    pub fn revivals(&self) -> Option<&RevivalCounters> {
        self.tokens.as_ref().map(Tokens::counters)
    }

    /// Forgets every token from `position` on, a decode token's or that of the last prompt token.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn truncate(&mut self, position: usize) -> Result<()> {
        self.forget(0, position)?;
        self.len = self.len.min(position);
        Ok(())
    }

    /// Forgets what the layers from `layer` on hold of positions from `position` on. The sequence is as long as before:
    /// rows come back by [`Self::resume`], or not at all.
    ///
    /// # Errors
    /// Where a GPU fails.
    pub fn forget(&mut self, layer: usize, position: usize) -> Result<()> {
        self.store.truncate(layer, position)?;
        self.device_steps = None;
        Ok(())
    }

    /// Runs rows at consecutive positions from `first_position` on, whose residual stream `x [rows, d]` enters `layer`, through
    /// that layer and all above it, which must hold nothing yet from there on; multiplied in `compute`. Their final residual stream
    /// `[rows, d]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn resume(
        &mut self,
        layer: usize,
        x: &Tensor,
        first_position: usize,
        compute: ComputeType,
    ) -> Result<Tensor> {
        self.device_steps = None;
        let positions = (first_position..first_position + x.rows()).collect();
        let depth = Depth::of_layers(layer..self.decoder.config().layers);
        Ok(self.forward(Rows { x: x.clone(), positions }, depth, &mut Hooks::none(), None, compute)?.x)
    }

    /// Runs one more token; logits `[V]` of the next.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn step(&mut self, token: u32, hooks: &mut Hooks<'_>) -> Result<Tensor> {
        self.one_step(token, hooks, None)
    }

    /// [`Self::step`], which also leaves the masses and entropies of each layer in `statistics` (attention received is
    /// not among them).
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn step_with_statistics(
        &mut self,
        token: u32,
        hooks: &mut Hooks<'_>,
        statistics: &mut Vec<LayerStatistics>,
    ) -> Result<Tensor> {
        self.one_step(token, hooks, Some(statistics))
    }

    fn one_step(
        &mut self,
        token: u32,
        hooks: &mut Hooks<'_>,
        statistics: Option<&mut Vec<LayerStatistics>>,
    ) -> Result<Tensor> {
        if hooks.is_empty() && self.can_step_on_device() {
            return self.step_on_device(token, statistics);
        }
        let collected = statistics.map(|layers| Collected { layers, received: false });
        let x = self.decode_rows(&[token], hooks, collected, ComputeType::Bf16)?;
        flattened(&self.decoder.unembed(&x, &[self.len - 1], hooks, ComputeType::Bf16)?)
    }

    /// Runs several decode tokens at once (teacher forcing), in f32 whatever the weights, and keeps the attention
    /// statistics of each layer; the final residual stream `[tokens, d]`.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn teacher_forced(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        statistics: &mut Vec<LayerStatistics>,
    ) -> Result<Tensor> {
        if self.tokens.is_none() {
            let collected = Collected { layers: statistics, received: true };
            return self.decode_rows(tokens, hooks, Some(collected), ComputeType::F32);
        }
        // Each chooses what the next layers read.
        let mut x = vec![];
        let mut of_rows = vec![];
        for &token in tokens {
            let mut layers = vec![];
            let collected = Collected { layers: &mut layers, received: true };
            x.push(self.decode_rows(&[token], hooks, Some(collected), ComputeType::F32)?);
            of_rows.push(layers);
        }
        statistics.extend(LayerStatistics::joined(of_rows));
        Tensor::cat(&x.iter().collect::<Vec<_>>())
    }

    fn decode_rows(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        mut statistics: Option<Collected<'_>>,
        compute: ComputeType,
    ) -> Result<Tensor> {
        assert!(self.len + 1 >= self.prompt_len, "decode comes after prefill");
        self.device_steps = None;
        let mut rows = self.embed(tokens, hooks)?;
        let Range { mut start, end } = Depth::of_layers(0..self.decoder.config().layers);
        if let Some(tokens) = &mut self.tokens {
            tokens.begin_step();
            for exit in tokens.exits() {
                rows = self.forward(rows, start..exit, hooks, again(&mut statistics), compute)?;
                rows = self.choose_tokens(exit, rows)?;
                start = exit;
            }
        }
        let rows = self.forward(rows, start..end, hooks, statistics, compute)?;
        // Prompt rows that came back are before the others.
        rows.x.narrow(rows.len() - tokens.len(), tokens.len())
    }

    /// The rows that enter the stage after an exit, beside a decode row that has come to it.
    fn choose_tokens(&mut self, exit: Depth, rows: Rows) -> Result<Rows> {
        let received = self.received_from_last(exit)?;
        match &mut self.tokens {
            Some(tokens) => tokens.choose(exit, rows, &received, self.decoder, &mut self.store),
            None => Ok(rows),
        }
    }

    /// Attention that each prompt position received from the last row in the attention before an exit, summed over heads.
    fn received_from_last(&mut self, exit: Depth) -> Result<Vec<f32>> {
        let queries = self.queries.clone();
        let queries = queries.ok_or_else(|| Error::failure("no row has attended yet; please report this"))?;
        let (last, positions) = (queries.narrow(queries.rows() - 1, 1)?, [self.len - 1]);
        let on_device = self.decoder.positions_on_device(&positions, None)?;
        let at = Location {
            layer: exit.layer(),
            positions: &positions,
            positions_on_device: on_device.as_deref(),
        };
        let mut layers = vec![];
        let collected = Collected { layers: &mut layers, received: true };
        self.attention(Some(collected)).attend_to_stored(at, &last, &mut Hooks::none())?;
        Ok(layers.pop().map_or(vec![], |layer| layer.received.sum))
    }

    fn attention<'a>(&'a mut self, statistics: Option<Collected<'a>>) -> StoredAttention<'a> {
        StoredAttention {
            decoder: self.decoder,
            rules: self.policy.rules(),
            store: &mut self.store,
            prompt_len: self.prompt_len,
            queries: &mut self.queries,
            blocks: self.blocks.as_mut(),
            seen: self.tokens.as_ref().and_then(Tokens::seen),
            statistics,
        }
    }

    /// The next tokens as rows at the entrance of layer 0.
    fn embed(&mut self, tokens: &[u32], hooks: &mut Hooks<'_>) -> Result<Rows> {
        let positions: Vec<usize> = (self.len..self.len + tokens.len()).collect();
        let x = self.decoder.embed(tokens, &positions, hooks)?;
        self.len += tokens.len();
        Ok(Rows { x, positions })
    }

    /// Rows through the half-layers of `depth`.
    fn forward(
        &mut self,
        Rows { x, positions }: Rows,
        depth: Range<Depth>,
        hooks: &mut Hooks<'_>,
        statistics: Option<Collected<'_>>,
        compute: ComputeType,
    ) -> Result<Rows> {
        let (decoder, above, sequence_len) =
            (self.decoder, self.policy.rules().keys_values_above(), self.sequence_len);
        let mut attend = self.attention(statistics);
        let mut pass = Pass {
            attend: &mut attend,
            hooks,
            sequence_len,
            compute,
            rows_on_device: None,
            keys_values_from: None,
        };
        let x = through_layers(decoder, above, x, &positions, depth, &mut pass)?;
        Ok(Rows { x, positions })
    }
}

/// Rows through the half-layers of `depth`, with K and V from where the policy says.
fn through_layers(
    decoder: &Decoder,
    above: KeysValuesAbove,
    mut x: Tensor,
    positions: &[usize],
    mut depth: Range<Depth>,
    pass: &mut Pass<'_, '_>,
) -> Result<Tensor> {
    let KeysValuesAbove::SharedNorm(layer) = above else { return decoder.forward(x, positions, depth, pass) };
    let entrance = Depth::entering(layer);
    if !depth.contains(&entrance) {
        return decoder.forward(x, positions, depth, pass);
    }
    x = decoder.forward(x, positions, depth.start..entrance, pass)?;
    let shared = decoder.attention_norm(layer, &x, pass.compute)?;
    depth.start = entrance;
    let mut above =
        Pass { attend: &mut *pass.attend, hooks: &mut *pass.hooks, keys_values_from: Some(&shared), ..*pass };
    decoder.forward(x, positions, depth, &mut above)
}

/// The same place for statistics, for one pass of several.
fn again<'a>(statistics: &'a mut Option<Collected<'_>>) -> Option<Collected<'a>> {
    statistics.as_mut().map(|Collected { layers, received }| Collected { layers, received: *received })
}

/// A single row without its first dimension.
fn flattened(x: &Tensor) -> Result<Tensor> {
    x.reshape(&[x.elements()])
}
