//! One sequence running through a decoder: prefill, decode steps, and the KV that its policy keeps.

mod prefill;
mod rows;

use crate::decoder::{Attend, Decoder, Location, Pass};
use crate::hooks::{Hooks, Site};
use crate::kv::KvStore;
use crate::memory;
use crate::policy::{KeysValuesAbove, PolicyRules};
use crate::tensor::{self, with_f32};
use crate::{Depth, Error, Policy, Result};
use candle_core::{Device, Tensor};
use layerscope_kernels::{
    AttentionShape, Queries, Received, Statistics, attention, attention_with_statistics,
};
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
}

impl<'m> Session<'m> {
    /// Reserves KV for a prompt of `prompt_len` tokens and `decode_len` decode tokens, the last prompt token counted
    /// among the latter.
    ///
    /// # Errors
    /// [`Error::Input`] on an empty prompt, a sequence beyond the model's context, or one that needs more memory than is free.
    pub fn new(decoder: &'m Decoder, policy: Policy, prompt_len: usize, decode_len: usize) -> Result<Self> {
        let context = decoder.config().context;
        if prompt_len == 0 {
            return Err(Error::input("the prompt is empty; give at least one token"));
        }
        if prompt_len - 1 + decode_len > context {
            return Err(Error::input(format!(
                "the prompt has {prompt_len} tokens, which with {decode_len} new ones exceeds the model's context of \
                 {context}; shorten the prompt or ask for fewer new tokens"
            )));
        }
        let capacity = policy.capacity(prompt_len, decode_len);
        let need = decoder.sequence_need(&capacity);
        memory::check(&format!("a sequence of {} tokens", prompt_len - 1 + decode_len), &need)?;
        let store = KvStore::new(decoder.config(), &capacity, decoder.kv_precision());
        let sequence_len = prompt_len - 1 + decode_len;
        Ok(Self { decoder, policy, store, prompt_len, sequence_len, len: 0, queries: None })
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

    /// Forgets every token from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.store.truncate(position);
        self.len = self.len.min(position);
    }

    /// Runs one more token; logits `[V]` of the next.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub fn step(&mut self, token: u32, hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let x = self.decode_rows(&[token], hooks, None, false)?;
        let position = [self.len - 1];
        Ok(self.decoder.unembed(&x, &position, hooks, false)?.squeeze(0)?)
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
        let collected = Collected { layers: statistics, received: false };
        let x = self.decode_rows(&[token], hooks, Some(collected), false)?;
        let position = [self.len - 1];
        Ok(self.decoder.unembed(&x, &position, hooks, false)?.squeeze(0)?)
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
        Rows { mut x, positions }: Rows,
        mut depth: Range<Depth>,
        hooks: &mut Hooks<'_>,
        statistics: Option<Collected<'_>>,
        exact: bool,
    ) -> Result<Rows> {
        let (decoder, rules) = (self.decoder, self.policy.rules());
        let (prompt_len, queries) = (self.prompt_len, &mut self.queries);
        let mut attend =
            StoredAttention { decoder, rules, store: &mut self.store, prompt_len, queries, statistics };
        let sequence_len = self.sequence_len;
        let mut pass = Pass { attend: &mut attend, hooks, sequence_len, exact, keys_values_from: None };
        let mut shared = None;
        if let KeysValuesAbove::SharedNorm(layer) = rules.keys_values_above() {
            let entrance = Depth::entering(layer);
            if depth.contains(&entrance) {
                x = decoder.forward(x, &positions, depth.start..entrance, &mut pass)?;
                shared = Some(decoder.attention_norm(layer, &x)?);
                depth.start = entrance;
            }
        }
        pass.keys_values_from = shared.as_ref();
        let x = decoder.forward(x, &positions, depth, &mut pass)?;
        Ok(Rows { x, positions })
    }
}

/// Attention over the KV store: append, then see whatever is stored at or before each row's position.
struct StoredAttention<'a> {
    decoder: &'a Decoder,
    rules: &'a dyn PolicyRules,
    store: &'a mut KvStore,
    prompt_len: usize,
    queries: &'a mut Option<Tensor>,
    statistics: Option<Collected<'a>>,
}

impl Attend for StoredAttention<'_> {
    fn attend(&mut self, at: Location<'_>, [q, k, v]: [&Tensor; 3], hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let Location { layer, positions } = at;
        *self.queries = Some(q.clone());
        with_f32(k, |k| with_f32(v, |v| self.store.append(layer, positions, k, v)))???;
        if hooks.wants(layer, Site::AttentionScores) || hooks.wants(layer, Site::Pattern) {
            return self.materialised(at, q, hooks);
        }
        let shape = self.decoder.attention_shape(layer);
        let row_len = shape.query_heads * shape.head_dim;
        let mut output = vec![0.0; positions.len() * row_len];
        let mut found = self.statistics.as_ref().map(|collected| LayerStatistics {
            rows: Statistics::default(),
            received: Received::new(if collected.received { self.prompt_len } else { 0 }),
        });
        let received = self.statistics.as_ref().is_some_and(|collected| collected.received);
        with_f32(q, |q| {
            for (first_row, rows) in runs(positions, |position| self.is_alone(layer, position)) {
                let range = first_row * row_len..(first_row + rows) * row_len;
                let queries = Queries { data: &q[range.clone()], rows, first_position: positions[first_row] };
                let output = &mut output[range];
                let spans = if self.is_alone(layer, positions[first_row]) {
                    self.store.spans_without_other_decode_rows(layer, self.prompt_len, positions[first_row])
                } else {
                    self.store.spans(layer, found.as_ref().map(|_| self.prompt_len))
                };
                match &mut found {
                    None => attention(&shape, &queries, &spans, output),
                    Some(found) => {
                        let wanted = received.then_some(&mut found.received);
                        let rows = attention_with_statistics(&shape, &queries, &spans, output, wanted);
                        found.rows.mass.extend(rows.mass);
                        found.rows.entropy.extend(rows.entropy);
                    }
                }
            }
        })?;
        if let (Some(collected), Some(found)) = (&mut self.statistics, found) {
            collected.layers.push(found);
        }
        Ok(Tensor::from_vec(output, (positions.len(), shape.query_heads, shape.head_dim), &Device::Cpu)?)
    }
}

impl StoredAttention<'_> {
    /// Whether the row at a position is a decode row that sees no other one.
    fn is_alone(&self, layer: usize, position: usize) -> bool {
        position + 1 >= self.prompt_len && !self.rules.decode_rows_see_each_other(layer)
    }

    /// The same with scores and pattern as tensors `[H, rows, keys]`, for the hooks that ask for them.
    fn materialised(&self, at: Location<'_>, q: &Tensor, hooks: &mut Hooks<'_>) -> Result<Tensor> {
        let Location { layer, positions } = at;
        let shape = self.decoder.attention_shape(layer);
        let (keys, values, key_positions) = self.gathered(layer, &shape)?;
        let q = q.transpose(0, 1)?.contiguous()?;
        let scores = (q.matmul(&keys.t()?)? * f64::from(shape.scale))?;
        let scores = tensor::soft_cap(scores, shape.soft_cap.map(f64::from))?;
        let mask: Vec<f32> = positions
            .iter()
            .flat_map(|&query| {
                let hidden = if self.is_alone(layer, query) { self.prompt_len - 1..query } else { 0..0 };
                key_positions.iter().map(move |&key| {
                    let within = key <= query && shape.window.is_none_or(|w| query - key < w);
                    let visible = within && !hidden.contains(&key);
                    if visible { 0.0 } else { f32::NEG_INFINITY }
                })
            })
            .collect();
        let mask = Tensor::from_vec(mask, (1, positions.len(), key_positions.len()), &Device::Cpu)?;
        let scores = hooks.visit(layer, Site::AttentionScores, positions, scores.broadcast_add(&mask)?)?;
        let pattern = candle_nn::ops::softmax_last_dim(&scores)?;
        let pattern = hooks.visit(layer, Site::Pattern, positions, pattern)?;
        Ok(pattern.matmul(&values)?.transpose(0, 1)?.contiguous()?)
    }

    /// Keys and values of every query head, `[H, keys, head_dim]`, and the keys' positions.
    fn gathered(&self, layer: usize, shape: &AttentionShape) -> Result<(Tensor, Tensor, Vec<usize>)> {
        let spans = self.store.spans(layer, None);
        let group = shape.query_heads / shape.kv_heads;
        let key_positions: Vec<usize> =
            spans.iter().flat_map(|span| span.first_position..span.first_position + span.len).collect();
        let (mut keys, mut values) = (vec![], vec![]);
        for head in 0..shape.query_heads {
            for span in &spans {
                let start = head / group * span.head_stride;
                keys.extend(span.keys.to_f32(start..start + span.len * shape.head_dim));
                values.extend(span.values.to_f32(start..start + span.len * shape.head_dim));
            }
        }
        let dims = (shape.query_heads, key_positions.len(), shape.head_dim);
        Ok((
            Tensor::from_vec(keys, dims, &Device::Cpu)?,
            Tensor::from_vec(values, dims, &Device::Cpu)?,
            key_positions,
        ))
    }
}

/// (first row, rows) of each run of consecutive positions; a position that is to be alone is a run of its own.
fn runs(positions: &[usize], alone: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = vec![];
    for (row, &position) in positions.iter().enumerate() {
        match runs.last_mut() {
            Some((first, rows)) if positions[*first] + *rows == position && !alone(position) => *rows += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_split_where_positions_jump() {
        assert_eq!(runs(&[0, 7, 8, 9, 12], |_| false), [(0, 1), (1, 3), (4, 1)]);
        assert_eq!(runs(&[0, 7, 8, 9, 10], |position| position > 8), [(0, 1), (1, 2), (3, 1), (4, 1)]);
        assert_eq!(runs(&[], |_| false), []);
    }
}
