//! Generation: prefill under a policy, then one token after another.

use crate::attention::LayerStatistics;
use crate::hooks::Hooks;
use crate::policy::{RevivalCounters, TransferCounters};
use crate::session::{Interrupt, Session, check_interrupt};
use crate::tensor::Tensor;
use crate::{Choice, Chooser, Decoder, Error, Policy, Result};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a generation did.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The generated tokens; an end-of-sequence token is not among them.
    pub tokens: Vec<u32>,
    /// How many prompt tokens' keys and values were taken over from an earlier generation.
    pub taken_over: usize,
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
    pub choice: Choice,
    /// Tokens that end the text.
    pub stop_tokens: &'a [u32],
    /// Whether decode steps keep their attention statistics.
    pub statistics: bool,
    /// Whether activations may be rounded to eight bits ([`Session::round_activations`]).
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

/// A generation's prompt with its keys and values, which a later one that begins alike takes over.
pub struct Previous {
    prompt: Vec<u32>,
    session: Session,
}

impl Previous {
    /// How many of a prompt's first tokens `session` can take over.
    fn shared_with(&self, session: &Session, prompt: &[u32]) -> usize {
        let alike = prompt.iter().zip(&self.prompt).take_while(|(a, b)| a == b).count();
        if alike == 0 { 0 } else { session.can_take_over(&self.session, alike) }
    }
}

/// Generates from a prompt of token ids under a policy; `observe` sees each chunk of the prefill and each token, and may
/// break off at a token.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::ContextExceeded`]; [`Error::Interrupted`] during prefill (during
/// decoding an interrupt ends the text early instead, so that nothing is lost);
/// [`Error::UndefinedLogits`], with the layer where they begin.
pub fn generate(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    generate_after(&mut None, decoder, prompt, policy, settings, interrupt, observe)
}

/// [`generate`], which takes over what it can of an earlier generation's prompt, as the turns of a conversation begin alike, and
/// leaves its own behind. The text is the same as without.
///
/// # Errors
/// As [`generate`]; the earlier generation then stays, unless there was no memory for both.
pub fn generate_after(
    previous: &mut Option<Previous>,
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    generate_defined(previous, decoder, prompt, policy, settings, interrupt, observe)
        .map_err(|error| error.located(decoder, prompt, interrupt))
}

/// [`generate_after`]; undefined logits are not yet traced to the layer where they begin.
fn generate_defined(
    previous: &mut Option<Previous>,
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    policy: Policy,
    settings: &GenerationSettings<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>,
) -> Result<Generation> {
    let new = || Session::new(decoder, policy.clone(), prompt.len(), settings.max_new_tokens);
    let mut session = match new() {
        // There is no room for both.
        Err(Error::OutOfMemory { .. }) if previous.take().is_some() => new()?,
        session => session?,
    };
    if settings.rounded {
        session.round_activations();
    }
    let mut chooser = Chooser::new(settings.choice.clone(), prompt)?;
    let earlier = previous.as_ref().map(|previous| (previous, previous.shared_with(&session, prompt)));
    let earlier = earlier.filter(|&(_, len)| len > 0);
    let mut generation = Generation {
        tokens: vec![],
        taken_over: earlier.map_or(0, |(_, len)| len),
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
    match earlier {
        Some((previous, len)) => session.begin_prefill_after(prompt, &previous.session, len)?,
        None => session.begin_prefill(prompt)?,
    }
    let mut logits = session.finish_prefill(&mut Hooks::none(), interrupt, &mut |done| {
        let _ = observe(GenerationEvent::Prefilled(done));
    })?;
    let mut statistics = vec![];
    let mut token = chooser.choose(&logits)?;
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
        token = chooser.choose(&logits)?;
        decoding += step.elapsed();
        generation.tpot_s = Some(decoding.as_secs_f64() / generation.tokens.len() as f64);
    }
    generation.kv_bytes = session.store().allocated_bytes();
    generation.transfers = session.transfers().cloned();
    generation.prefill_density = session.prefill_density();
    generation.revivals = session.revivals().cloned();
    *previous = Some(Previous { prompt: prompt.to_vec(), session });
    Ok(generation)
}
