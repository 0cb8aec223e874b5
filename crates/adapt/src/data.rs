//! Prompts with what the full model says of them.

use crate::settings::Continued;
use crate::spill::{Spill, Spilled};
use layerscope_diagnostics::needle::is_right;
use layerscope_diagnostics::probe::{continue_greedily, decode_rows, teacher_forced};
use layerscope_diagnostics::prompts::Prompt;
use layerscope_engine::training::{HeadKeys, KeyType, Prefix, TrainingSequence, prefix};
use layerscope_engine::{
    AdapterRows, ComputeType, Error, Hooks, Interrupt, KvPrecision, Model, Policy, Result, Session, Tensor,
    Tokenizer, Visibility,
};
use std::sync::Arc;

/// A prompt, its continuation, and the full model's last residual stream along it.
pub(crate) struct Item {
    /// The prompt's id.
    pub(crate) id: String,
    /// Tokens of the continuation, N: the prompt's answer, or the full model's greedy text.
    pub(crate) continuation: Vec<u32>,
    /// Whether the full model wrote it.
    pub(crate) is_own: bool,
    /// Of the continuation, the tokens up to the end of the prompt's answer; `None` where it does not give one.
    pub(crate) answer_len: Option<usize>,
    /// Residual stream of the N decode rows behind the last layer of the full model, `[N, d]`.
    pub(crate) teacher: Tensor,
    /// Tokens of the rows that are trained, and the position of the first.
    tokens: Vec<u32>,
    first_position: usize,
    prompt_len: usize,
    /// The full model's keys and values of the prompt, all layers; nothing where prompt rows are trained, too.
    keys: Keys,
    /// What the policy leaves, by layer and KV head, where that is not what the full model has.
    left: Vec<Vec<Option<Arc<HeadKeys>>>>,
}

enum Keys {
    InMemory(Prefix),
    InFile(Spilled),
}

/// What rows are trained or measured under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// The policy.
    Policy,
    /// Another cutoff, all keys below it there; of L it is full depth.
    Cutoff(usize),
}

impl Item {
    /// Bytes of what it keeps in memory.
    pub(crate) fn bytes(&self) -> usize {
        let keys: usize = match &self.keys {
            Keys::InMemory(layers) => layers.iter().flatten().map(|head| head.bytes()).sum(),
            Keys::InFile(_) => 0,
        };
        let left: usize = self.left.iter().flatten().flatten().map(|head| head.bytes()).sum();
        keys + left + self.teacher.elements() * size_of::<f32>()
    }

    /// Moves the prompt's keys and values into a file.
    ///
    /// # Errors
    /// [`Error::Failure`] where they cannot be written.
    pub(crate) fn spill(&mut self, spill: &Arc<Spill>) -> Result<()> {
        if let Keys::InMemory(layers) = &self.keys {
            self.keys = Keys::InFile(spill.write(layers)?);
        }
        Ok(())
    }

    /// Its rows, with what of the prompt they read.
    ///
    /// # Errors
    /// [`Error::Failure`] where keys cannot be read back.
    pub(crate) fn sequence(&self, under: Under) -> Result<TrainingSequence> {
        let first_left = match under {
            Under::Policy => 0,
            Under::Cutoff(cutoff) => cutoff,
        };
        let is_left = |layer: usize| layer >= first_left && self.left[layer].iter().all(Option::is_some);
        let wanted = (0..self.left.len()).rev().find(|&layer| !is_left(layer)).map_or(0, |layer| layer + 1);
        let mut prefix: Prefix = match &self.keys {
            Keys::InMemory(layers) => layers.iter().take(wanted).cloned().collect(),
            Keys::InFile(spilled) => spilled.read(wanted)?,
        };
        for (layer, left) in self.left.iter().enumerate().skip(first_left) {
            match prefix.get_mut(layer) {
                Some(heads) => heads.iter_mut().zip(left).for_each(|(head, left)| {
                    if let Some(left) = left {
                        *head = Arc::clone(left);
                    }
                }),
                None => prefix.push(left.iter().flatten().cloned().collect()),
            }
        }
        Ok(TrainingSequence {
            tokens: self.tokens.clone(),
            first_position: self.first_position,
            prompt_len: self.prompt_len,
            prefix,
        })
    }
}

/// How prompts become items.
pub(crate) struct Preparation<'a> {
    pub(crate) model: &'a Model,
    /// The policy that is trained for, and what it shows.
    pub(crate) policy: &'a Policy,
    pub(crate) visibility: &'a Visibility,
    pub(crate) rows: AdapterRows,
    /// The type of products.
    pub(crate) compute: ComputeType,
    pub(crate) continued: Continued,
    /// Most tokens of a continuation.
    pub(crate) max_new_tokens: usize,
    pub(crate) interrupt: &'a Interrupt,
}

impl Preparation<'_> {
    /// Bytes that prompts take in memory at most, known from their lengths.
    pub(crate) fn expected_bytes(&self, prompts: &[Prompt]) -> u64 {
        let config = self.model.config();
        let in_two_bytes = self.model.decoder.kv_precision() == KvPrecision::F16;
        let number = KeyType::for_products(self.compute, in_two_bytes).bytes();
        let keys = match self.rows {
            AdapterRows::Decode => 2 * config.layers * config.kv_width() * number,
            AdapterRows::All => 0,
        };
        let teacher = self.max_new_tokens * config.hidden * size_of::<f32>();
        let of_prompt = |prompt: &Prompt| {
            let p = self.model.tokenizer.encode_prompt(&prompt.content).ok()?.len();
            let left = 2 * self.tokens_left(p) * config.head_dim * number;
            Some((p * keys + left + teacher) as u64)
        };
        prompts.iter().filter_map(of_prompt).sum()
    }

    /// Prompt tokens that the policy leaves, summed over the KV heads that keep a part of them.
    fn tokens_left(&self, prompt_len: usize) -> usize {
        if self.rows == AdapterRows::All {
            return 0;
        }
        let kept = self.policy.capacity_by_head(prompt_len, 0, self.model.config().kv_heads);
        kept.into_iter().flatten().filter(|&tokens| tokens + 1 < prompt_len).sum()
    }

    /// Runs a prompt through the full model, once. `known` is the full model's text, where an earlier run has generated it.
    ///
    /// # Errors
    /// [`Error::Input`] on a prompt that cannot be run, or whose answer has fewer than two tokens; [`Error::Interrupted`].
    pub(crate) fn item(&self, prompt: &Prompt, known: Option<&[u32]>) -> Result<Item> {
        let (model, tokenizer) = (self.model, &self.model.tokenizer);
        let prompt_tokens = tokenizer.encode_prompt(&prompt.content)?;
        let p = prompt_tokens.len();
        let answer = prompt.answer.as_ref().filter(|_| self.continued == Continued::Answers);
        let answer = answer.map(|answer| tokenizer.encode_fitting(answer)).transpose()?;
        let answer = answer.map(|answer| answer.into_iter().take(self.max_new_tokens).collect::<Vec<u32>>());
        let steps = answer.as_ref().map_or(self.max_new_tokens, Vec::len);
        if p < 2 || steps < 2 {
            let reason = "has fewer than two tokens, or an answer of fewer than two";
            return Err(Error::input(format!("prompt {:?} {reason}; leave it out", prompt.id)));
        }
        let full = Policy::full(model.config().layers);
        let mut session = Session::resumable(&model.decoder, full, p, steps)?;
        let first = session.prefill(&prompt_tokens, &mut Hooks::none(), self.interrupt, &mut |_| {})?;
        let is_own = answer.is_none();
        let continuation = match (answer, known) {
            (Some(answer), _) => answer,
            (None, Some(known)) if known.len() == steps => known.to_vec(),
            (None, _) => {
                let no_end = tokenizer.eos_ids();
                continue_greedily(&mut session, first, steps, no_end, self.interrupt, &mut |_, _| {})?
            }
        };
        let mut forced = teacher_forced(&model.decoder, &mut session, &prompt_tokens, &continuation)?;
        let teacher = forced.residuals.pop().ok_or_else(|| Error::failure("the model has no layers"))?;
        session.truncate(p - 1)?;
        let decoded = decode_rows(&prompt_tokens, &continuation);
        let (tokens, first_position, keys) = match self.rows {
            AdapterRows::Decode => (decoded, p - 1, prefix(&session, self.compute)?),
            AdapterRows::All => ([&prompt_tokens[..p - 1], &decoded].concat(), 0, vec![]),
        };
        let left = self.left(&keys, &prompt_tokens, steps)?;
        Ok(Item {
            id: prompt.id.clone(),
            answer_len: answer_len(tokenizer, prompt, &continuation, is_own)?,
            continuation,
            is_own,
            teacher,
            tokens,
            first_position,
            prompt_len: p,
            keys: Keys::InMemory(keys),
            left,
        })
    }

    /// What the policy leaves of the full model's keys of a prompt.
    fn left(
        &self,
        keys: &Prefix,
        prompt_tokens: &[u32],
        steps: usize,
    ) -> Result<Vec<Vec<Option<Arc<HeadKeys>>>>> {
        let Visibility { cutoff, anchors, .. } = self.visibility;
        if !self.policy.evicts_before_decode() && anchors.are_bos_alone() {
            let of_head = |layer: usize, head: &HeadKeys| {
                (layer >= *cutoff).then(|| Arc::new(head.select(|position| anchors.contains(position))))
            };
            let of_layer = |(layer, heads): (usize, &Vec<Arc<HeadKeys>>)| {
                heads.iter().map(|head| of_head(layer, head)).collect()
            };
            return Ok(keys.iter().enumerate().map(of_layer).collect());
        }
        if keys.is_empty() {
            return Ok(vec![]);
        }
        let decoder = &self.model.decoder;
        let p = prompt_tokens.len();
        let mut session = Session::resumable(decoder, self.policy.clone(), p, steps)?;
        session.prefill(prompt_tokens, &mut Hooks::none(), self.interrupt, &mut |_| {})?;
        session.truncate(p - 1)?;
        // From the cutoff on, anchors' keys are of a shorter sequence than the full model's.
        let own = prefix(&session, self.compute)?;
        let of_head = |layer: usize, (full, own): (&Arc<HeadKeys>, Arc<HeadKeys>)| {
            if layer >= *cutoff {
                return Some(own);
            }
            let is_whole = full.positions == own.positions;
            (!is_whole)
                .then(|| Arc::new(full.select(|position| own.positions.binary_search(&position).is_ok())))
        };
        let of_layer = |(layer, (full, own)): (usize, (&Vec<_>, Vec<_>))| {
            full.iter().zip(own).map(|heads| of_head(layer, heads)).collect()
        };
        Ok(keys.iter().zip(own).enumerate().map(of_layer).collect())
    }
}

/// The tokens of a continuation up to the end of the prompt's answer.
fn answer_len(
    tokenizer: &Tokenizer,
    prompt: &Prompt,
    continuation: &[u32],
    is_own: bool,
) -> Result<Option<usize>> {
    if !is_own {
        return Ok(Some(continuation.len()));
    }
    let Some(expected) = prompt.expected() else { return Ok(None) };
    for len in 1..=continuation.len() {
        if is_right(expected, &tokenizer.decode_skipping_special(&continuation[..len])?) {
            return Ok(Some(len));
        }
    }
    Ok(None)
}
