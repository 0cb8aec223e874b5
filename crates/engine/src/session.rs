//! One sequence running through a decoder: prefill, decode steps, and the KV that its policy keeps.

mod attention;
mod branches;
mod device_steps;
mod pass;
mod prefill;
mod prefix;

use crate::attention::LayerStatistics;
use crate::decoder::Decoder;
use crate::hooks::Hooks;
use crate::kv::KvStore;
use crate::memory;
use crate::pattern::Watch;
use crate::policy::{RevivalCounters, RunningSelection, SequenceSetup, TransferCounters};
use crate::rows::ResidualRows;
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Policy, Result};
use attention::Collected;
pub use branches::{BranchToken, Branches, Sees};
use device_steps::DeviceSteps;
use layerscope_kernels::ReadLimits;
use pass::Work;
pub use pass::{Turn, advance_together};
use prefill::Prefill;
use std::collections::BTreeMap;
use std::sync::Arc;
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

/// A running sequence. It owns its KV and shares the model; sequences may run on several threads, each on one at a time.
pub struct Session {
    decoder: Arc<Decoder>,
    policy: Policy,
    store: KvStore,
    prompt_len: usize,
    /// Most tokens that the sequence will have.
    sequence_len: usize,
    len: usize,
    /// While the prompt goes in.
    prefill: Option<Prefill>,
    /// The prompt's last token, where that runs as a decode row of its own.
    last_token: Option<u32>,
    /// Queries of the rows that came last, `[rows, H, head_dim]`, in the last attention that they went through.
    queries: Option<Tensor>,
    /// Of each layer, queries of the last prefill rows that the retention looks at.
    observed: BTreeMap<usize, Vec<Tensor>>,
    /// Where KV heads compete for what is kept: scores of the heads of the layers that have run, until all have.
    competing: Vec<Vec<f32>>,
    /// What chooses rows and keys from data.
    selection: Option<Box<dyn RunningSelection>>,
    /// Pairs of a prompt row and a key that were multiplied, and those that there are, under a policy with a prefill pattern.
    prefill_pairs: Option<[u64; 2]>,
    /// Whether activations may be rounded to eight bits.
    rounds: bool,
    /// On a GPU: what decode steps share.
    device_steps: Option<DeviceSteps>,
    /// What is kept of what attention reads.
    watch: Option<Watch>,
}

impl Session {
    /// Reserves KV for a prompt of `prompt_len` tokens and `decode_len` decode tokens, the last prompt token counted
    /// among the latter.
    ///
    /// # Errors
    /// [`Error::Input`] on an empty prompt, a sequence beyond the model's context, or one that needs more memory than is free.
    pub fn new(decoder: &Arc<Decoder>, policy: Policy, prompt_len: usize, decode_len: usize) -> Result<Self> {
        Self::with(decoder, policy.for_model(decoder.config()), prompt_len, decode_len)
    }

    /// The same for a sequence of which prompt rows will run again ([`Self::forget`], [`Self::resume`]): layers with a window keep
    /// what later rows do not see.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn resumable(
        decoder: &Arc<Decoder>,
        policy: Policy,
        prompt_len: usize,
        decode_len: usize,
    ) -> Result<Self> {
        Self::with(decoder, policy, prompt_len, decode_len)
    }

    /// Multiplies single rows, those of decode steps, in eight bits on the CPU where weights are quantised, and those of prompts where
    /// the processor does not multiply bf16: faster, and about 0.001 nats per token from what they are otherwise on a small model.
    /// For texts that are to be read, not for figures. Before the prompt runs.
    pub fn round_activations(&mut self) {
        self.rounds = true;
    }

    /// Whether activations may be rounded to eight bits.
    pub fn rounds(&self) -> bool {
        self.rounds
    }

    fn with(decoder: &Arc<Decoder>, policy: Policy, prompt_len: usize, decode_len: usize) -> Result<Self> {
        decoder.config().check_sequence(prompt_len, decode_len)?;
        let read = prompt_len - 1 + policy.read_again(prompt_len);
        if read > decoder.config().context {
            return Err(Error::input(format!(
                "policy {policy} reads the prompt twice, {read} tokens, which exceeds the model's context of {}; shorten the prompt",
                decoder.config().context
            )));
        }
        decoder.check_files()?;
        let (name, device) =
            (format!("a sequence of {} tokens", prompt_len - 1 + decode_len), decoder.device());
        let held = policy.most_held(prompt_len, decode_len, device);
        let need = decoder
            .sequence_need(&policy.in_memory(prompt_len, decode_len, device))
            .with_residuals(decoder.config(), policy.rows_waiting(prompt_len));
        memory::check(&name, &need, device)?;
        let begins_with = if policy.runs_by_layer() { vec![0; held.len()] } else { held };
        let store = KvStore::new(decoder.config(), &begins_with, decoder.kv_precision(), device)?;
        let is_dense = policy.rules().prefill_pattern().is_none();
        if !is_dense && !crate::attention::device::supports_sparse_prefill(decoder) {
            return Err(Error::input(format!(
                "policy {policy} runs on a GPU only in bf16 and for heads of 64, 80, 96, 128 or 256 elements, which this model \
                 is not; use --device cpu"
            )));
        }
        let setup = SequenceSetup { decoder, store: &store, prefill_len: prompt_len - 1, decode_len };
        let selection = policy.rules().selection().begin(&setup)?;
        Ok(Self {
            decoder: Arc::clone(decoder),
            policy,
            store,
            prompt_len,
            sequence_len: prompt_len - 1 + decode_len,
            len: 0,
            prefill: None,
            last_token: None,
            queries: None,
            observed: BTreeMap::new(),
            competing: vec![],
            rounds: false,
            selection,
            prefill_pairs: None,
            device_steps: None,
            watch: None,
        })
    }

    /// Keeps what attention reads from now on.
    pub(crate) fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// What was kept of what attention read.
    pub(crate) fn watched(&mut self) -> Option<Watch> {
        self.watch.take()
    }

    /// The same sequence, cut back to its prompt without the last token, for a model with an adapter of decode rows: the prompt's keys
    /// and values are those of the model that this session is of.
    ///
    /// # Errors
    /// [`Error::Misuse`] where the other model would have run the prompt otherwise, or where the prompt has not run.
    pub fn with_adapted(mut self, adapted: &Arc<Decoder>) -> Result<Self> {
        if !adapted.shares_prompts_with(&self.decoder) {
            return Err(Error::misuse("the adapter acts on the prompt, too: run it again"));
        }
        self.truncate(self.prompt_len - 1)?;
        self.decoder = Arc::clone(adapted);
        self.queries = None;
        self.device_steps = None;
        Ok(self)
    }

    /// The model.
    pub fn decoder(&self) -> &Arc<Decoder> {
        &self.decoder
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
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

    /// Share of the pairs of a prompt row and a key at or before it that attention multiplied in the prefill, of layers without a
    /// window; `None` under a policy that leaves none out.
    pub fn prefill_density(&self) -> Option<f64> {
        self.prefill_pairs.map(|[read, all]| read as f64 / all as f64)
    }

    /// What was moved of prompt blocks' KV; `None` under a policy that moves nothing.
    pub fn transfers(&self) -> Option<&TransferCounters> {
        self.selection.as_ref().and_then(|selection| selection.transfers())
    }

    /// What came back of the prompt tokens that were dropped; `None` under a policy from which none comes back.
    pub fn revivals(&self) -> Option<&RevivalCounters> {
        self.selection.as_ref().and_then(|selection| selection.revivals())
    }

    /// Forgets every token from `position` on, a decode token's or that of the last prompt token.
    ///
    /// # Errors
    /// [`Error::Misuse`] on a position before these under a policy that refers to stored prompt tokens. Where a GPU fails.
    pub fn truncate(&mut self, position: usize) -> Result<()> {
        if self.selection.is_some() && position + 1 < self.prompt_len {
            return Err(Error::misuse(format!("{} forgets no prompt token", self.policy)));
        }
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
        if let Some(watch) = &mut self.watch {
            watch.forget(layer, position);
        }
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
        self.resume_rows(layer, x, first_position, compute, None)
    }

    /// The same in f32, which also leaves the masses and entropies of the layers from `layer` on in `statistics` (attention received
    /// is not among them).
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn resume_with_statistics(
        &mut self,
        layer: usize,
        x: &Tensor,
        first_position: usize,
        statistics: &mut Vec<LayerStatistics>,
    ) -> Result<Tensor> {
        let collected = Collected { layers: statistics, received: false, reads: None };
        self.resume_rows(layer, x, first_position, ComputeType::F32, Some(collected))
    }

    fn resume_rows(
        &mut self,
        layer: usize,
        x: &Tensor,
        first_position: usize,
        compute: ComputeType,
        collected: Option<Collected<'_>>,
    ) -> Result<Tensor> {
        self.device_steps = None;
        let positions = (first_position..first_position + x.rows()).collect();
        let depth = Depth::of_layers(layer..self.decoder.config().layers);
        let rows = ResidualRows { x: x.clone(), positions };
        Ok(self.forward(rows, depth, &mut Hooks::none(), collected, compute)?.x)
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
        let collected = statistics.map(|layers| Collected { layers, received: false, reads: None });
        let logits = self.advance(Some(token), hooks, collected)?;
        logits.ok_or_else(|| Error::failure("a step has no logits; please report this"))
    }

    /// Runs several decode tokens at once (teacher forcing), in f32 whatever the weights, and keeps the attention
    /// statistics of each layer; the final residual stream `[tokens, d]`.
    ///
    /// # Errors
    /// [`Error::Misuse`] with hooks under a policy that brings prompt rows back. Whatever fails beneath.
    pub fn teacher_forced(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        statistics: &mut Vec<LayerStatistics>,
    ) -> Result<Tensor> {
        self.forced(tokens, hooks, statistics, None)
    }

    /// [`Self::teacher_forced`], which also lists the prompt positions that each row reads most. On a GPU, the host lists them from a
    /// copy of each layer's keys in f32.
    ///
    /// # Errors
    /// As [`Self::teacher_forced`].
    pub fn teacher_forced_with_reads(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        statistics: &mut Vec<LayerStatistics>,
        limits: ReadLimits,
    ) -> Result<Tensor> {
        self.forced(tokens, hooks, statistics, Some(limits))
    }

    fn forced(
        &mut self,
        tokens: &[u32],
        hooks: &mut Hooks<'_>,
        statistics: &mut Vec<LayerStatistics>,
        reads: Option<ReadLimits>,
    ) -> Result<Tensor> {
        // Where each row chooses what the layers above read, rows go one by one, and prompt rows may go on beside them.
        let together = self.selection.as_ref().is_none_or(|selection| selection.choice_points().is_empty());
        if !together && !hooks.is_empty() {
            return Err(Error::misuse(format!(
                "under {} hooks would see prompt rows that came back as decode rows",
                self.policy
            )));
        }
        if together {
            let Work { rows, depth, .. } = self.begin_step(tokens, hooks)?;
            let collected = Collected { layers: statistics, received: true, reads };
            return Ok(self.forward(rows, depth, hooks, Some(collected), ComputeType::F32)?.x);
        }
        let mut x = vec![];
        let mut of_rows = vec![];
        for &token in tokens {
            let mut layers = vec![];
            let collected = Collected { layers: &mut layers, received: true, reads: reads.clone() };
            x.push(self.advance_in_f32(token, hooks, Some(collected))?);
            of_rows.push(layers);
        }
        statistics.extend(LayerStatistics::joined(of_rows));
        Tensor::cat(&x.iter().collect::<Vec<_>>())
    }

    /// That the prompt has run, but for its last token perhaps.
    fn check_has_prompt(&self) -> Result<()> {
        match self.len + 1 < self.prompt_len || self.prefill.is_some() {
            true => Err(Error::failure("decode tokens come after the prompt")),
            false => Ok(()),
        }
    }

    /// Decode tokens at the entrance of layer 0, and how far they go before anything is chosen.
    fn begin_step(&mut self, tokens: &[u32], hooks: &mut Hooks<'_>) -> Result<Work> {
        self.check_has_prompt()?;
        self.device_steps = None;
        let rows = self.embed(tokens, hooks)?;
        let end = Depth::entering(self.decoder.config().layers);
        let mut first_choice = end;
        if let Some(selection) = &mut self.selection {
            selection.begin_step();
            first_choice = selection.choice_points().first().copied().unwrap_or(end);
        }
        Ok(Work::new(rows, Depth::entering(0)..first_choice))
    }

    /// The prompt's last token, the first decode row, where all others have run before.
    fn last_prompt_token(&mut self, hooks: &mut Hooks<'_>) -> Result<Work> {
        self.prefill = None;
        let last = self.last_token.take();
        let last = last.ok_or_else(|| Error::failure("prefill left no row; please report this"))?;
        self.begin_step(&[last], hooks)
    }

    /// The rows that go on from a choice point, beside a decode row that has come to it.
    fn choose(&mut self, rows: ResidualRows, point: Depth) -> Result<Work> {
        let received = self.received_from_last(point.layer())?;
        let end = Depth::entering(self.decoder.config().layers);
        let Some(selection) = &mut self.selection else { return Ok(Work::new(rows, point..end)) };
        let rows = selection.choose(point, rows, &received, &self.decoder, &mut self.store)?;
        let next = selection.choice_points().into_iter().find(|&next| next > point);
        Ok(Work::new(rows, point..next.unwrap_or(end)))
    }

    /// The next tokens as rows at the entrance of layer 0.
    fn embed(&mut self, tokens: &[u32], hooks: &mut Hooks<'_>) -> Result<ResidualRows> {
        let positions: Vec<usize> = (self.len..self.len + tokens.len()).collect();
        let x = self.decoder.embed(tokens, &positions, hooks)?;
        self.len += tokens.len();
        Ok(ResidualRows { x, positions })
    }
}

/// A single row without its first dimension.
fn flattened(x: &Tensor) -> Result<Tensor> {
    x.reshape(&[x.elements()])
}
