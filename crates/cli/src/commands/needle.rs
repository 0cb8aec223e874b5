//! `layerscope needle`: which policies still retrieve a number hidden in a long prompt.

use crate::args::{HaystackName, NeedleArguments};
use crate::interrupt::{UNHEEDED, heeded};
use crate::progress::NeedleBar;
use crate::{models, output, terminal};
use layerscope_bench::{parse_lengths, split_policies};
use layerscope_diagnostics::needle::{self, Grid, Haystack, NeedleScore};
use layerscope_engine::{Error, Policy, Result};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &NeedleArguments) -> Result<ExitCode> {
    let grid = grid(arguments)?;
    if let Some(path) = &arguments.write_prompts {
        return write_prompts(arguments, &grid, path);
    }
    if let Some(path) = &arguments.out {
        output::check_folder(path)?;
    }
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, &device)?;
    let names = split_policies(&arguments.policies);
    let policies =
        names.iter().map(|name| Policy::parse_for(name, &opened.config)).collect::<Result<Vec<_>>>()?;
    grid.check_context(&opened.config, arguments.max_new_tokens)?;
    let prompts = grid.prompts(&opened.tokenizer, &UNHEEDED)?;
    let longest = grid.lengths.iter().copied().max().unwrap_or(0);
    let kept = policies.iter().map(|policy| policy.in_memory(longest, arguments.max_new_tokens, &device));
    let kept = kept.max_by_key(|kept| kept.iter().sum::<usize>()).unwrap_or_default();
    let need = opened.memory_need(arguments.model.weights.into(), &device, &kept);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_adapter(model, &arguments.adapter, &policies)?;

    let bar = NeedleBar::new(prompts.len() * policies.len());
    let results = heeded(|interrupt| {
        let tokens = arguments.max_new_tokens;
        needle::run(&model, &prompts, &policies, tokens, interrupt, &mut |event| bar.observe(event))
    });
    bar.finish();
    let results = results?;

    let (all, by_depth) =
        (needle::summarise(&results.outcomes, false), needle::summarise(&results.outcomes, true));
    if let Some(path) = &arguments.out {
        layerscope_engine::write_file(path, &output::json_lines(&results.outcomes)?)?;
    }
    if arguments.json {
        output::json(&json!({
            "results": all,
            "by_depth": by_depth,
            "model": model.name,
            "weights": model.precision,
            "haystack": grid.haystack,
            "seed": grid.seed,
            "max_new_tokens": arguments.max_new_tokens,
            "layerscope": env!("CARGO_PKG_VERSION"),
            "interrupted": results.interrupted,
            "notes": model.caveats(&policies),
        }))?;
    } else {
        terminal::print(&text(&grid, &all, &by_depth))?;
        for note in model.caveats(&policies) {
            terminal::print(&note)?;
        }
    }
    if results.interrupted {
        terminal::say("layerscope: interrupted; printing the results so far");
        return Ok(ExitCode::from(Error::Interrupted.exit_code()));
    }
    Ok(ExitCode::SUCCESS)
}

fn grid(arguments: &NeedleArguments) -> Result<Grid> {
    let depths = arguments.depths.split(',').map(|depth| {
        let percent = depth.trim().parse();
        percent.map_err(|_| {
            Error::input(format!("`{depth}` is not a depth; give percentages from 0 to 100, e.g. 0,50"))
        })
    });
    let grid = Grid {
        lengths: parse_lengths(&arguments.lengths)?,
        depths: depths.collect::<Result<_>>()?,
        samples: arguments.samples,
        seed: arguments.seed,
        haystack: match arguments.haystack {
            HaystackName::Sentences => Haystack::Sentences,
            HaystackName::Noise => Haystack::Noise,
        },
    };
    grid.check()?;
    if arguments.max_new_tokens == 0 {
        return Err(Error::input("--max-new-tokens must be at least 1"));
    }
    Ok(grid)
}

fn write_prompts(arguments: &NeedleArguments, grid: &Grid, path: &Path) -> Result<ExitCode> {
    output::check_folder(path)?;
    let opened = models::open_named(&arguments.model.model, arguments.model.architecture.as_deref())?;
    let prompts = grid.prompts(&opened.tokenizer, &UNHEEDED)?;
    let lines: Vec<_> = prompts.iter().map(needle::NeedlePrompt::line).collect();
    layerscope_engine::write_file(path, &output::json_lines(&lines)?)?;
    terminal::say(&format!("{} prompts written to {}", prompts.len(), path.display()));
    Ok(ExitCode::SUCCESS)
}

/// A table of policies by length, then one with a column per depth.
fn text(grid: &Grid, all: &[NeedleScore], by_depth: &[NeedleScore]) -> String {
    let interval = |cell: &NeedleScore| {
        let [lower, upper] = [cell.accuracy_ci95_lower, cell.accuracy_ci95_upper];
        format!("{:.2} [{lower:.2}, {upper:.2}]", cell.accuracy)
    };
    let rows = all.iter().map(|cell| {
        vec![
            cell.policy.clone(),
            cell.length.to_string(),
            cell.prompts.to_string(),
            interval(cell),
            format!("{:.0}", cell.loops * 100.0),
            output::figure(cell.ttft_s, 3),
        ]
    });
    let overall =
        output::table(&["policy", "length", "prompts", "found", "loops %", "TTFT s"], rows.collect());
    let depths: Vec<String> = grid.depths.iter().map(|depth| format!("depth {depth} %")).collect();
    let header: Vec<&str> =
        ["policy", "length"].into_iter().chain(depths.iter().map(String::as_str)).collect();
    let rows = all.iter().map(|cell| {
        let at = |depth: &u32| {
            let same = |other: &&NeedleScore| {
                (&other.policy, other.length, other.depth) == (&cell.policy, cell.length, Some(*depth))
            };
            by_depth.iter().find(same).map_or_else(|| "–".to_owned(), interval)
        };
        let names = [cell.policy.clone(), cell.length.to_string()];
        names.into_iter().chain(grid.depths.iter().map(at)).collect()
    });
    let by_depth = output::table(&header, rows.collect());
    format!(
        "{overall}\n\n{by_depth}\n\nfound: share of prompts whose number is in the generated text, with its 95 % interval \
         (Wilson). loops: share of\noutputs that end in the same tokens over and over."
    )
}
