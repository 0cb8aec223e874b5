//! One sequence running through a decoder: prefill, decode steps, and the KV that its policy keeps.

mod attention;
mod blocks;
mod device_attention;
mod device_steps;
mod materialised;
mod prefill;
mod rows;

use crate::decoder::{Decoder, Pass};
use crate::hooks::Hooks;
use crate::kv::KvStore;
use crate::memory;
use crate::policy::KeysValuesAbove;
use crate::tensor::Tensor;
use crate::{Depth, Error, Policy, Result};
use attention::StoredAttention;
use blocks::Blocks;
pub use blocks::TransferCounters;
use device_steps::DeviceSteps;
use layerscope_kernels::{Received, Statistics};
use rows::Rows;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

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
    pub rows: Statistics,
    /// Attention received by prompt positions 0 … p−1; without positions where it was not asked for.
    pub received: Received,
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

    /// Forgets every token from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.store.truncate(position);
        self.len = self.len.min(position);
        self.device_steps = None;
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
        let x = self.decode_rows(&[token], hooks, collected, false)?;
        flattened(&self.decoder.unembed(&x, &[self.len - 1], hooks, false)?)
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
        let collected = Collected { layers: statistics, received: true };
        self.decode_rows(tokens, hooks, Some(collected), true)
    }

    fn decode_rows(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        statistics: Option<Collected<'_>>,
        exact: bool,
    ) -> Result<Tensor> {
        assert!(self.len + 1 >= self.prompt_len, "decode comes after prefill");
        self.device_steps = None;
        let rows = self.embed(tokens, hooks)?;
        let depth = Depth::of_layers(0..self.decoder.config().layers);
        Ok(self.forward(rows, depth, hooks, statistics, exact)?.x)
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
        exact: bool,
    ) -> Result<Rows> {
        let (decoder, rules) = (self.decoder, self.policy.rules());
        let Self { prompt_len, queries, store, blocks, .. } = self;
        let (prompt_len, blocks) = (*prompt_len, blocks.as_mut());
        let mut attend = StoredAttention { decoder, rules, store, prompt_len, queries, blocks, statistics };
        let mut pass = Pass {
            attend: &mut attend,
            hooks,
            sequence_len: self.sequence_len,
            exact,
            rows_on_device: None,
            keys_values_from: None,
        };
        let x = through_layers(decoder, rules.keys_values_above(), x, &positions, depth, &mut pass)?;
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
    let shared = decoder.attention_norm(layer, &x, pass.exact)?;
    depth.start = entrance;
    let mut above =
        Pass { attend: &mut *pass.attend, hooks: &mut *pass.hooks, keys_values_from: Some(&shared), ..*pass };
    decoder.forward(x, positions, depth, &mut above)
}

/// A single row without its first dimension.
fn flattened(x: &Tensor) -> Result<Tensor> {
    x.reshape(&[x.elements()])
}
