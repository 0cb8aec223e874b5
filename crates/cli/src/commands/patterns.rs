//! `layerscope patterns`: searches for each head the pattern that the policy `minference` reads in the prefill.

use crate::args::PatternsArguments;
use crate::interrupt::UNHEEDED;
use crate::progress::TokensBar;
use crate::{models, output, terminal};
use layerscope_diagnostics::needle::{Grid, Haystack};
use layerscope_diagnostics::prompts::read_prompts;
use layerscope_engine::{
    Error, FoundPattern, HeadPattern, HeadPatterns, OpenedModel, Policy, Result, search_head_patterns,
};
use serde_json::json;
use std::process::ExitCode;

const KINDS: [&str; 3] = ["vertical and slash lines", "A-shape", "blocks"];

pub(crate) fn run(arguments: &PatternsArguments) -> Result<ExitCode> {
    output::check_folder(&arguments.out)?;
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, &device)?;
    let prompts = prompts(arguments, &opened)?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    opened.config.check_sequence(longest, 1)?;
    let full = Policy::full(opened.config.layers).for_model(&opened.config);
    let kept = full.in_memory(longest, 1, &device);
    let need = opened.memory_need(arguments.model.weights.into(), &device, &kept);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;

    let bar = TokensBar::new("patterns", prompts.iter().map(Vec::len).sum());
    let observe = &mut |done| bar.set(done);
    let found = search_head_patterns(&model.decoder, &prompts, arguments.tokens, &UNHEEDED, observe);
    bar.finish();
    let found = found?;
    layerscope_engine::write_file(&arguments.out, found.to_json().as_bytes())?;

    let rows = rows(&found);
    if arguments.json {
        let kinds =
            rows.iter().map(|(kind, heads, kept)| json!({"kind": kind, "heads": heads, "kept": kept}));
        output::json(&json!({
            "model": model.name,
            "weights": model.precision,
            "prompts": prompts.len(),
            "tokens": arguments.tokens,
            "kinds": kinds.collect::<Vec<_>>(),
            "file": arguments.out.display().to_string(),
            "layerscope": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        let rows = rows.into_iter().map(|(kind, heads, kept)| {
            vec![kind.to_owned(), heads.to_string(), output::figure(kept * 100.0, 1)]
        });
        terminal::print(&output::table(&["pattern", "heads", "attention kept %"], rows.collect()))?;
        terminal::say(&format!(
            "patterns of {} tokens written to {}; use them with --policy minference:heads={}",
            arguments.tokens,
            arguments.out.display(),
            arguments.out.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prompts of a file that are long enough, or prompts that hide a number.
fn prompts(arguments: &PatternsArguments, opened: &OpenedModel) -> Result<Vec<Vec<u32>>> {
    let Some(path) = &arguments.prompts else {
        let grid = Grid {
            lengths: vec![arguments.length],
            depths: vec![50],
            samples: 2,
            seed: arguments.seed,
            haystack: Haystack::Sentences,
        };
        grid.check()?;
        let prompts = grid.prompts(&opened.tokenizer, &UNHEEDED)?;
        return Ok(prompts.into_iter().map(|prompt| prompt.tokens).collect());
    };
    let prompts = read_prompts(path)?.prompts;
    let tokens = prompts.iter().map(|prompt| opened.tokenizer.encode_prompt(&prompt.content));
    let mut tokens = tokens.collect::<Result<Vec<_>>>()?;
    tokens.retain(|tokens| tokens.len() >= 2 * arguments.tokens);
    if tokens.is_empty() {
        return Err(Error::input(format!(
            "{} has no prompt of {} tokens, twice the budget; give longer prompts or smaller --tokens",
            path.display(),
            2 * arguments.tokens
        )));
    }
    Ok(tokens)
}

/// Of each kind, the number of heads and the mean share of attention that they keep.
fn rows(found: &HeadPatterns) -> Vec<(&'static str, usize, f64)> {
    let kind = |found: &FoundPattern| match found.pattern {
        HeadPattern::VerticalSlash { .. } => KINDS[0],
        HeadPattern::AShape { .. } => KINDS[1],
        HeadPattern::Blocks(_) => KINDS[2],
    };
    let of_kind = |name: &'static str| {
        let heads = found.layers().iter().flat_map(|layer| layer.values());
        let kept: Vec<f64> = heads.filter(|head| kind(head) == name).map(|head| head.score).collect();
        (name, kept.len(), kept.iter().sum::<f64>() / kept.len() as f64)
    };
    KINDS.into_iter().map(of_kind).collect()
}
