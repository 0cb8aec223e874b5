//! Generation: prefill under a policy, then one token after another.

use crate::hooks::Hooks;
use crate::session::{Interrupt, Session, check_interrupt};
use crate::tensor::with_f32;
use crate::{Decoder, Error, Policy, Result};
use candle_core::Tensor;
use candle_transformers::generation::{LogitsProcessor, Sampling};
use std::ops::ControlFlow;
use std::time::Instant;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// The most likely one; the first of equals.
    Greedy,
    /// Drawn at random from the distribution.
    Sampled {
        /// Logits are divided by this; above 0.
        temperature: f64,
        /// Only the most likely tokens that together have this probability, if given.
        top_p: Option<f64>,
        /// Only this many of the most likely tokens, if given.
        top_k: Option<usize>,
        /// Seed of the draw: the same seed gives the same text.
        seed: u64,
    },
}

impl Choice {
    /// # Errors
    /// [`Error::Input`] on a temperature or top-p out of range.
    pub fn checked(self) -> Result<Self> {
        if let Self::Sampled { temperature, top_p, top_k, .. } = self {
            if !(temperature > 0.0 && temperature.is_finite()) {
                return Err(Error::input(format!("temperature {temperature} must be above 0")));
            }
            if top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
                return Err(Error::input("top-p must be above 0 and at most 1"));
            }
            if top_k == Some(0) {
                return Err(Error::input("top-k must be at least 1"));
            }
        }
        Ok(self)
    }

    fn sampler(self) -> Option<LogitsProcessor> {
        let Self::Sampled { temperature, top_p, top_k, seed } = self else { return None };
        let sampling = match (top_k, top_p) {
            (None, None) => Sampling::All { temperature },
            (Some(k), None) => Sampling::TopK { k, temperature },
            (None, Some(p)) => Sampling::TopP { p, temperature },
            (Some(k), Some(p)) => Sampling::TopKThenTopP { k, p, temperature },
        };
        Some(LogitsProcessor::from_sampling(seed, sampling))
    }
}

/// What a generation did.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The generated tokens; an end-of-sequence token is not among them.
    pub tokens: Vec<u32>,
    /// Time to first token, seconds.
    pub ttft_s: f64,
    /// Mean time per output token after the first, seconds; `None` for fewer than two tokens.
    pub tpot_s: Option<f64>,
    /// Bytes of KV allocated.
    pub kv_bytes: usize,
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct GenerationSettings<'a> {
    /// At most this many tokens.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub choice: Choice,
    /// Tokens that end the text.
    pub stop_tokens: &'a [u32],
}

/// Generates from a prompt of token ids under a policy; `on_token` sees each token and may break off.
///
/// # Errors
/// [`Error::Input`] on a prompt that is empty or beyond the context; [`Error::Interrupted`] during prefill (during
/// decoding an interrupt ends the text early instead, so that nothing is lost).
pub fn generate(
    decoder: &Decoder,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut session = Session::new(decoder, policy, prompt.len(), settings.max_new_tokens)?;
    let mut sampler = settings.choice.sampler();
    let mut generation =
        Generation { tokens: vec![], ttft_s: 0.0, tpot_s: None, kv_bytes: session.store().allocated_bytes() };
    let mut choose = |logits: &Tensor| match &mut sampler {
        None => argmax(logits, &[]),
        // An argmax first, since it refuses the NaN that a sampler would stumble over.
        Some(sampler) => argmax(logits, &[]).and_then(|_| Ok(sampler.sample(logits)?)),
    };
    if settings.max_new_tokens == 0 {
        return Ok(generation);
    }
    let start = Instant::now();
    let logits = session.prefill(prompt, &mut Hooks::none(), interrupt, &mut |_| {})?;
    let mut token = choose(&logits)?;
    generation.ttft_s = start.elapsed().as_secs_f64();
    let first = Instant::now();
    while !settings.stop_tokens.contains(&token) {
        generation.tokens.push(token);
        let stopped = on_token(token).is_break() || check_interrupt(interrupt).is_err();
        if stopped || generation.tokens.len() == settings.max_new_tokens {
            break;
        }
        token = choose(&session.step(token, &mut Hooks::none())?)?;
        generation.tpot_s = Some(first.elapsed().as_secs_f64() / generation.tokens.len() as f64);
    }
    Ok(generation)
}

/// The most likely token, the first of equals; `excluded` tokens are passed over.
///
/// # Errors
/// [`Error::Input`] where logits are NaN, which only damaged weights yield.
pub fn argmax(logits: &Tensor, excluded: &[u32]) -> Result<u32> {
    let best = with_f32(logits, |logits| {
        let mut best: Option<(u32, f32)> = None;
        for (id, &logit) in (0u32..).zip(logits) {
            if logit.is_nan() {
                return None;
            }
            if best.is_none_or(|(_, top)| logit > top) && !excluded.contains(&id) {
                best = Some((id, logit));
            }
        }
        best
    })?;
    match best {
        Some((id, _)) => Ok(id),
        None => Err(Error::no_numbers()),
    }
}
