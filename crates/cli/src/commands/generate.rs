//! `layerscope generate`: streams text generated under a policy.

use crate::args::{GenerateArguments, SamplingArguments};
use crate::interrupt::{self, heeded};
use crate::terminal::{self, Reader};
use crate::{models, output, progress};
use layerscope_engine::{
    Choice, Generation, GenerationEvent, GenerationSettings, KvPrecision, Model, Policy, Repetition, Result,
    RevivalCounters, Sampling, StopTexts, TransferCounters, generate,
};
use layerscope_eval::TokenLikelihood;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::process::ExitCode;

pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode> {
    let choice = choice(&arguments.sampling)?;
    let device = models::device(arguments.model.device)?;
    let opened = models::open_to_generate(&arguments.model, &device, arguments.exact)?;
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let prompt = models::prompt_tokens(&arguments.prompt, &opened.tokenizer)?;
    opened.config.check_sequence(prompt.len(), arguments.max_new_tokens)?;
    let held = policy.in_memory(prompt.len(), arguments.max_new_tokens, &device);
    let need = models::memory_need(&opened, arguments.model.weights, &device, &arguments.kv, &held)?;
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_kv(model, &arguments.kv)?;
    let model = models::with_adapter(model, &arguments.adapter, std::slice::from_ref(&policy))?;
    let settings = GenerationSettings {
        max_new_tokens: arguments.max_new_tokens,
        choice,
        stop_tokens: if arguments.ignore_eos { &[] } else { model.tokenizer.eos_ids() },
        statistics: false,
        rounded: !arguments.exact,
    };
    if !arguments.json {
        let token_bytes = need.kv_token_layer as f64;
        let plan = policy.plan(prompt.len(), &|tokens| output::bytes(tokens as f64 * token_bytes));
        plan.into_iter().for_each(|plan| terminal::say(&format!("[{policy}] {plan}")));
        if let Some(position) = policy.visibility().and_then(|seen| seen.anchors.first_beyond(prompt.len())) {
            let tokens = prompt.len();
            terminal::say(&format!(
                "[{policy}] the prompt has {tokens} tokens, so that there is no anchor at {position}"
            ));
        }
    }
    let mut stream = model.tokenizer.stream(true);
    let mut stops = StopTexts::new(arguments.stops.clone());
    let (mut text, mut stopped, mut failed) = (String::new(), false, None);
    let mut likelihoods = vec![];
    let mut bar = progress::PrefillBar::new(prompt.len());
    let generation = heeded(|interrupt| {
        generate(&model.decoder, &prompt, policy.clone(), &settings, interrupt, &mut |event| {
            let generated = match event {
                GenerationEvent::Token(generated) => generated,
                GenerationEvent::Prefilled(done) => {
                    bar.prefilled(done);
                    return ControlFlow::Continue(());
                }
            };
            bar.finish();
            let mut take = || -> Result<Reader> {
                if arguments.json {
                    let logits = generated.logits.to_vec()?;
                    let top = arguments.top_logprobs.unwrap_or(0);
                    likelihoods.push(TokenLikelihood::of(&logits, generated.token, top));
                }
                let piece;
                (piece, stopped) = stops.push(&stream.push(generated.token)?.unwrap_or_default());
                text.push_str(&piece);
                if arguments.json { Ok(Reader::Reads) } else { terminal::write(&piece) }
            };
            match take() {
                Ok(Reader::Reads) if !stopped => return ControlFlow::Continue(()),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
            ControlFlow::Break(())
        })
    });
    bar.finish();
    let generation = generation?;
    if let Some(error) = failed {
        return Err(error);
    }
    let mut rest = String::new();
    if !stopped {
        (rest, stopped) = stops.push(&stream.finish()?);
        if !stopped {
            rest += &stops.finish();
        }
    }
    text.push_str(&rest);
    if arguments.json {
        // As a policy reserves it: p − 1 prefill tokens; the last prompt token is a decode token.
        let config = model.config();
        let token_bytes = 2 * model.decoder.kv_precision().bytes(config.kv_heads * config.head_dim);
        let tokens: usize = policy.capacity(prompt.len(), arguments.max_new_tokens).iter().sum();
        let texts = |tokens: &[u32]| -> Vec<String> {
            tokens.iter().map(|&token| model.tokenizer.token_text(token)).collect()
        };
        output::json(&json!({
            "model": model.name,
            "weights": model.precision,
            "kv": model.decoder.kv_precision().name(),
            "policy": policy,
            "caveat": model.caveat(&policy),
            "prompt_tokens": prompt,
            "tokens": generation.tokens,
            "token_texts": texts(&generation.tokens),
            "logprobs": likelihoods.iter().map(|likelihood| likelihood.log_probability).collect::<Vec<_>>(),
            "top_logprobs": arguments.top_logprobs.map(|_| likelihoods.iter().map(|likelihood| top(&model, likelihood)).collect::<Vec<_>>()),
            "text": text,
            "ended_by": ended_by(&generation, arguments.max_new_tokens, stopped),
            "repetition": Repetition::at_end_of(&generation.tokens),
            "ttft_s": generation.ttft_s,
            "tpot_s": generation.tpot_s,
            "kv_bytes": generation.kv_bytes,
            "kv_bytes_model": tokens * token_bytes,
            "transfers": generation.transfers,
            "prefill_density": generation.prefill_density,
            "revivals": generation.revivals,
        }))?;
    } else {
        terminal::print(&rest)?;
        terminal::say(&summary(&model, &policy, prompt.len(), &generation));
    }
    interrupt::check()?;
    Ok(ExitCode::SUCCESS)
}

/// How tokens are chosen.
///
/// # Errors
/// [`layerscope_engine::Error::Input`] on a number out of range.
pub(super) fn choice(arguments: &SamplingArguments) -> Result<Choice> {
    let SamplingArguments { temperature, top_p, top_k, min_p, repetition_penalty, seed } = *arguments;
    let is_greedy = temperature.is_none() && top_p.is_none() && top_k.is_none() && min_p.is_none();
    let sampling = match is_greedy {
        true => Sampling::Greedy,
        false => Sampling::Random { temperature: temperature.unwrap_or(1.0), top_p, top_k, min_p, seed }
            .checked()?,
    };
    Ok(Choice { repetition_penalty, ..sampling.into() })
}

/// The most likely tokens of a step.
fn top(model: &Model, likelihood: &TokenLikelihood) -> Value {
    let token = |&(token, logprob): &(u32, f64)| json!({"token": token, "text": model.tokenizer.token_text(token), "logprob": logprob});
    likelihood.top.iter().map(token).collect()
}

/// Why a text ended.
fn ended_by(generation: &Generation, max_new_tokens: usize, stopped: bool) -> &'static str {
    if stopped {
        "stop_text"
    } else if interrupt::check().is_err() {
        "interrupt"
    } else if generation.tokens.len() == max_new_tokens {
        "length"
    } else {
        "end_token"
    }
}

/// One line on what a generation took.
pub(super) fn summary(model: &Model, policy: &Policy, prompt_len: usize, generation: &Generation) -> String {
    let per_token = match generation.tpot_s {
        Some(seconds) => format!("TPOT {:.1} ms ({:.1} tokens/s), ", seconds * 1e3, 1.0 / seconds),
        None => String::new(),
    };
    let repetition = match Repetition::at_end_of(&generation.tokens) {
        Some(Repetition { period: 1, rounds }) => format!("; it ends in the same token {rounds} times"),
        Some(Repetition { period, rounds }) => {
            format!("; it ends in a loop, {rounds} times the same {period} tokens")
        }
        None => String::new(),
    };
    let taken_over = match generation.taken_over {
        0 => String::new(),
        tokens => format!(" ({tokens} taken over from the turns before)"),
    };
    let transfers =
        generation.transfers.as_ref().map_or(String::new(), |moved| format!("; {}", transfers(moved)));
    let revivals =
        generation.revivals.as_ref().map_or(String::new(), |revived| format!("; {}", revivals(revived)));
    let density = generation.prefill_density.map_or(String::new(), |share| {
        format!("; {:.1} % of the prompt's attention computed", 100.0 * share)
    });
    let kv = model.decoder.kv_precision();
    let kv = if kv == KvPrecision::Q8 { format!(" in {}", kv.name()) } else { String::new() };
    let caveat = model.caveat(policy).map_or(String::new(), |caveat| format!("; {caveat}"));
    format!(
        "[{policy}] {prompt_len} prompt tokens{taken_over}, {} generated; TTFT {:.2} s, {per_token}KV {}{kv}{transfers}{revivals}{density}{repetition}{caveat}",
        generation.tokens.len(),
        generation.ttft_s,
        output::bytes(generation.kv_bytes as f64)
    )
}

/// One sentence on tokens that were dropped and revived.
fn revivals(revived: &RevivalCounters) -> String {
    format!(
        "{} kept for dropped tokens; of {} tokens selected while decoding, {} were revived",
        output::bytes(revived.auxiliary_bytes as f64),
        revived.tokens_chosen,
        revived.tokens_revived
    )
}

/// One sentence on KV transfers from and to the device.
fn transfers(moved: &TransferCounters) -> String {
    let bytes = |bytes: u64| output::bytes(bytes as f64);
    let hits =
        moved.hit_rate().map_or(String::new(), |rate| format!(" ({:.0} % active already)", rate * 100.0));
    format!(
        "{} of KV taken away, {} brought back in {} swaps{hits}, waited {:.1} ms for {:.1} ms of transfers",
        bytes(moved.bytes_out),
        bytes(moved.bytes_in),
        moved.swaps,
        moved.wait_s * 1e3,
        moved.transfer_s * 1e3
    )
}
