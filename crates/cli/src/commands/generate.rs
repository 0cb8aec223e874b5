//! `layerscope generate`: streams text generated under a policy.

use crate::args::GenerateArguments;
use crate::interrupt::{self, heeded};
use crate::terminal::{self, Reader};
use crate::{models, output};
use layerscope_engine::{
    Generation, GenerationEvent, GenerationSettings, Model, Policy, Repetition, Result, RevivalCounters,
    Sampling, TransferCounters, generate,
};
use serde_json::json;
use std::ops::ControlFlow;
use std::process::ExitCode;

pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode> {
    let sampling = sampling(arguments)?;
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model)?;
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let prompt = models::prompt_tokens(&arguments.prompt, &opened.tokenizer)?;
    opened.config.check_sequence(prompt.len(), arguments.max_new_tokens)?;
    let held = policy.in_memory(prompt.len(), arguments.max_new_tokens, &device);
    let need = opened.memory_need(arguments.model.weights.into(), &device, &held);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_adapter(model, &arguments.adapter, std::slice::from_ref(&policy))?;
    let settings = GenerationSettings {
        max_new_tokens: arguments.max_new_tokens,
        sampling,
        stop_tokens: if arguments.ignore_eos { &[] } else { model.tokenizer.eos_ids() },
        statistics: false,
        rounded: !arguments.exact,
    };
    if !arguments.json {
        let token_bytes = need.kv_token_layer as f64;
        let plan = policy.plan(prompt.len(), &|tokens| output::bytes(tokens as f64 * token_bytes));
        plan.into_iter().for_each(|plan| terminal::say(&format!("[{policy}] {plan}")));
    }
    let mut stream = model.tokenizer.stream(true);
    let mut failed = None;
    let generation = heeded(|interrupt| {
        generate(&model.decoder, &prompt, policy.clone(), &settings, interrupt, &mut |event| {
            let GenerationEvent::Token(generated) = event else { return ControlFlow::Continue(()) };
            let written = stream.push(generated.token).and_then(|text| match text {
                Some(text) if !arguments.json => terminal::write(&text),
                _ => Ok(Reader::Reads),
            });
            match written {
                Ok(Reader::Reads) => return ControlFlow::Continue(()),
                Ok(Reader::Left) => {}
                Err(error) => failed = Some(error),
            }
            ControlFlow::Break(())
        })
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    if arguments.json {
        // As a policy reserves it: p − 1 prefill tokens; the last prompt token is a decode token.
        let config = model.config();
        let token_bytes =
            2 * config.kv_heads * config.head_dim * model.decoder.kv_precision().element_bytes();
        let tokens: usize = policy.capacity(prompt.len(), arguments.max_new_tokens).iter().sum();
        output::json(&json!({
            "model": model.name,
            "weights": model.precision,
            "policy": policy,
            "caveat": model.caveat(&policy),
            "prompt_tokens": prompt,
            "tokens": generation.tokens,
            "text": model.tokenizer.decode_skipping_special(&generation.tokens)?,
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
        terminal::print(&stream.finish()?)?;
        terminal::say(&summary(&model, &policy, prompt.len(), &generation));
    }
    interrupt::check()?;
    Ok(ExitCode::SUCCESS)
}

fn sampling(arguments: &GenerateArguments) -> Result<Sampling> {
    let GenerateArguments { temperature, top_p, top_k, seed, .. } = *arguments;
    if temperature.is_none() && top_p.is_none() && top_k.is_none() {
        return Ok(Sampling::Greedy);
    }
    Sampling::Random { temperature: temperature.unwrap_or(1.0), top_p, top_k, seed }.checked()
}

fn summary(model: &Model, policy: &Policy, prompt_len: usize, generation: &Generation) -> String {
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
    let transfers =
        generation.transfers.as_ref().map_or(String::new(), |moved| format!("; {}", transfers(moved)));
    let revivals =
        generation.revivals.as_ref().map_or(String::new(), |revived| format!("; {}", revivals(revived)));
    let density = generation.prefill_density.map_or(String::new(), |share| {
        format!("; {:.1} % of the prompt's attention computed", 100.0 * share)
    });
    let caveat = model.caveat(policy).map_or(String::new(), |caveat| format!("; {caveat}"));
    format!(
        "[{policy}] {prompt_len} prompt tokens, {} generated; TTFT {:.2} s, {per_token}KV {}{transfers}{revivals}{density}{repetition}{caveat}",
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
