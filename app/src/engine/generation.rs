//! Generation under several policies, one after the other, with measurements per token.

use super::candidates::most_likely;
use super::message::{Candidate, Event, LiveAttention, LiveToken, Under};
use super::worker::Task;
use layerscope_diagnostics::probe::attention_figures;
use layerscope_engine::{
    Error, GeneratedToken, GenerationEvent, GenerationSettings, LayerStatistics, Model, Policy, Result,
    Sampling, TokenStream, check_interrupt, with_f32,
};
use ndarray::{Array3, ArrayView2, Axis};
use std::ops::ControlFlow;

/// Candidates shown per token.
const CANDIDATES: usize = 20;

/// Generates for each side in turn.
///
/// # Errors
/// [`Error::Input`] on a prompt, policy or adapter that cannot be run; [`Error::Interrupted`].
pub(super) fn generate(
    task: Task<'_, '_>,
    sides: &[Under],
    max_new_tokens: usize,
    sampling: Sampling,
) -> Result<()> {
    let model = task.model;
    // Reads all of it first, so that what is invalid fails before the first run.
    let read = |side: &Under| {
        let policy = Policy::parse_for(&side.policy, model.config())?;
        Ok((policy, model.tokenizer.encode_prompt(&side.prompt)?))
    };
    let read: Vec<(Policy, Vec<u32>)> = sides.iter().map(read).collect::<Result<_>>()?;
    for (side, ((policy, prompt), under)) in read.into_iter().zip(sides).enumerate() {
        check_interrupt(task.interrupt)?;
        let adapted = under.adapter.as_ref().map(|folder| model.with_adapter(folder)).transpose()?;
        let task = Task { model: adapted.as_ref().unwrap_or(model), ..task };
        let settings = GenerationSettings {
            max_new_tokens,
            choice: sampling.into(),
            stop_tokens: model.tokenizer.eos_ids(),
            statistics: true,
            rounded: false,
        };
        generate_side(task, &prompt, side, policy, &settings)?;
    }
    Ok(())
}

fn generate_side(
    task: Task<'_, '_>,
    prompt: &[u32],
    side: usize,
    policy: Policy,
    settings: &GenerationSettings,
) -> Result<()> {
    let max_new_tokens = settings.max_new_tokens;
    let Task { model, events, interrupt } = task;
    let decoder = &model.decoder;
    decoder.config().check_sequence(prompt.len(), max_new_tokens)?;
    let held = policy.most_held(prompt.len(), max_new_tokens, decoder.device());
    let kv_bytes = decoder.sequence_need(&held).kv;
    let (name, caveat, prompt_tokens) =
        (policy.to_string(), model.caveat(&policy).map(str::to_owned), prompt.len());
    let adapter = model.adapter.as_ref().map(|adapter| adapter.name.clone());
    let started = Event::GenerationStarted { side, policy: name, adapter, prompt_tokens, kv_bytes, caveat };
    events.send(started, interrupt)?;

    let mut view = View { model, side, prompt_tokens, stream: model.tokenizer.stream(true), step: 0 };
    let mut shown = Ok(());
    let generated =
        layerscope_engine::generate(&model.decoder, prompt, policy, settings, interrupt, &mut |event| {
            match event {
                GenerationEvent::Prefilled(done) => {
                    events.progress(Event::Prefilled { side, done, all: prompt_tokens });
                }
                GenerationEvent::Token(generated) => {
                    let token = view.token(&generated);
                    shown = token.and_then(|token| events.send(Event::Token(Box::new(token)), interrupt));
                }
            }
            if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    match shown {
        Ok(()) | Err(Error::Interrupted) => {}
        Err(error) => return Err(error),
    }
    let text_rest = view.stream.finish()?;
    let mut kv_bytes = kv_bytes;
    let (ttft_s, tpot_s, cancelled) = match generated {
        Ok(generated) => {
            // KV after prefill.
            kv_bytes = generated.kv_bytes as u64;
            let ttft_s = (max_new_tokens > 0).then_some(generated.ttft_s);
            let cut_short = generated.tokens.len() < max_new_tokens;
            (ttft_s, generated.tpot_s, cut_short && check_interrupt(interrupt).is_err())
        }
        Err(Error::Interrupted) => (None, None, true),
        Err(error) => return Err(error),
    };
    events.deliver(Event::GenerationEnded { side, ttft_s, tpot_s, kv_bytes, text_rest, cancelled });
    Ok(())
}

/// Converts tokens to events.
struct View<'m> {
    model: &'m Model,
    side: usize,
    prompt_tokens: usize,
    stream: TokenStream<'m>,
    /// The next step.
    step: usize,
}

impl View<'_> {
    fn token(&mut self, generated: &GeneratedToken<'_>) -> Result<LiveToken> {
        let tokenizer = &self.model.tokenizer;
        let top = with_f32(generated.logits, |logits| most_likely(logits, CANDIDATES))?;
        let candidate = |(id, probability)| Candidate { id, token: tokenizer.token_text(id), probability };
        let step = self.step;
        self.step += 1;
        Ok(LiveToken {
            side: self.side,
            step,
            id: generated.token,
            token: tokenizer.token_text(generated.token),
            text: self.stream.push(generated.token)?.unwrap_or_default(),
            top: top.into_iter().map(candidate).collect(),
            elapsed_s: generated.elapsed_s,
            attention: live_attention(generated.statistics, self.model.config().heads, self.prompt_tokens),
        })
    }
}

/// Means over heads of one decode step's attention; index is the layer.
fn live_attention(statistics: &[LayerStatistics], heads: usize, prompt_tokens: usize) -> Vec<LiveAttention> {
    let figures = attention_figures(statistics, heads, 1, prompt_tokens);
    let mean = |figure: &Array3<f32>, layer: usize| defined_mean(figure.index_axis(Axis(0), layer));
    (0..statistics.len())
        .map(|layer| LiveAttention {
            bos_mass: mean(&figures.bos_mass, layer),
            prompt_mass: mean(&figures.prompt_mass, layer),
            decode_mass: mean(&figures.decode_mass, layer),
            prompt_entropy: mean(&figures.prompt_entropy, layer),
        })
        .collect()
}

/// Mean of the values except NaN; NaN if there are none.
fn defined_mean(values: ArrayView2<'_, f32>) -> f32 {
    let (sum, count) = values.iter().filter(|x| !x.is_nan()).fold((0.0, 0.0), |(s, n), x| (s + x, n + 1.0));
    sum / count
}
