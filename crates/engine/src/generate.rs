//! Generation: prefill under a policy, then one token after another.

use crate::attention::LayerStatistics;
use crate::hooks::Hooks;
use crate::policy::{RevivalCounters, TransferCounters};
use crate::session::{Interrupt, Session, check_interrupt};
use crate::tensor::Tensor;
use crate::{Decoder, Policy, Result, Sampler, Sampling};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a generation did.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The generated tokens; an end-of-sequence token is not among them.
    pub tokens: Vec<u32>,
    /// Time to first token, seconds.
    pub ttft_s: f64,
    /// Mean time per output token after the first, seconds, without the observer's; `None` for fewer than two tokens.
    pub tpot_s: Option<f64>,
    /// Bytes of KV allocated where the model runs, at the end: after the prefill nothing is given back.
    pub kv_bytes: usize,
    /// What was moved of prompt blocks' KV; `None` under a policy that moves nothing.
    pub transfers: Option<TransferCounters>,
    /// What came back of prompt tokens that were dropped; `None` under a policy from which none comes back.
    pub revivals: Option<RevivalCounters>,
    /// Share of the pairs of a prompt row and a key at or before it that attention multiplied in the prefill; `None` under a
    /// policy that leaves none out.
    pub prefill_density: Option<f64>,
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct GenerationSettings<'a> {
    /// At most this many tokens.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the text.
    pub stop_tokens: &'a [u32],
    /// Whether decode steps keep their attention statistics.
    pub statistics: bool,
    /// Whether single rows may be multiplied in eight bits ([`Session::round_single_rows`]).
    pub rounded: bool,
}

/// What happens while generating.
pub enum GenerationEvent<'a> {
    /// So many prompt tokens went through the model.
    Prefilled(usize),
    /// A token was chosen.
    Token(GeneratedToken<'a>),
}

/// A token and what it was chosen from.
pub struct GeneratedToken<'a> {
    /// The token.
    pub token: u32,
    /// Logits `[V]` that it was chosen from.
    pub logits: &'a Tensor,
    /// Attention statistics of the query that yielded it, one for each layer, of one row each; empty for the first
    /// token, whose query is part of the prefill, and where the settings do not ask for them.
    pub statistics: &'a [LayerStatistics],
    /// Seconds since the generation began.
    pub elapsed_s: f64,
}

/// Generates from a prompt of token ids under a policy; `observe` sees each chunk of the prefill and each token, and may
/// break off at a token.
///
/// # Errors
/// [`Error::EmptyPrompt`](crate::Error::EmptyPrompt), [`Error::ContextExceeded`](crate::Error::ContextExceeded);
/// [`Error::Interrupted`](crate::Error::Interrupted) during prefill (during
/// decoding an interrupt ends the text early instead, so that nothing is lost);
/// [`Error::UndefinedLogits`](crate::Error::UndefinedLogits), with the layer where they begin.
pub fn generate(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    generate_defined(decoder, prompt, policy, settings, interrupt, observe)
        .map_err(|error| error.located(decoder, prompt, interrupt))
}

/// [`generate`]; undefined logits are not yet traced to the layer where they begin.
fn generate_defined(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    let mut session = Session::new(decoder, policy, prompt.len(), settings.max_new_tokens)?;
    if settings.rounded {
        session.round_single_rows();
    }
    let mut sampler = Sampler::new(settings.sampling)?;
    let mut generation = Generation {
        tokens: vec![],
        ttft_s: 0.0,
        tpot_s: None,
        kv_bytes: session.store().allocated_bytes(),
        transfers: None,
        prefill_density: None,
        revivals: None,
    };
    if settings.max_new_tokens == 0 {
        return Ok(generation);
    }
    let start = Instant::now();
    let mut logits = session.prefill(prompt, &mut Hooks::none(), interrupt, &mut |done| {
        let _ = observe(GenerationEvent::Prefilled(done));
    })?;
    let mut statistics = vec![];
    let mut token = sampler.sample(&logits)?;
    generation.ttft_s = start.elapsed().as_secs_f64();
    let mut decoding = Duration::ZERO;
    while !settings.stop_tokens.contains(&token) {
        generation.tokens.push(token);
        let seen = GeneratedToken {
            token,
            logits: &logits,
            statistics: &statistics,
            elapsed_s: start.elapsed().as_secs_f64(),
        };
        let stopped = observe(GenerationEvent::Token(seen)).is_break() || check_interrupt(interrupt).is_err();
        if stopped || generation.tokens.len() == settings.max_new_tokens {
            break;
        }
        let step = Instant::now();
        logits = if settings.statistics {
            statistics.clear();
            session.step_with_statistics(token, &mut Hooks::none(), &mut statistics)?
        } else {
            session.step(token, &mut Hooks::none())?
        };
        token = sampler.sample(&logits)?;
        decoding += step.elapsed();
        generation.tpot_s = Some(decoding.as_secs_f64() / generation.tokens.len() as f64);
    }
    generation.kv_bytes = session.store().allocated_bytes();
    generation.transfers = session.transfers().cloned();
    generation.prefill_density = session.prefill_density();
    generation.revivals = session.revivals().cloned();
    Ok(generation)
}
