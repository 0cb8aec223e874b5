//! `layerscope search`: which layers or KV heads may forget the prompt.

use crate::args::{SearchArguments, UnitsArgument};
use crate::interrupt::heeded;
use crate::output::{self, figure};
use crate::progress::SearchBar;
use crate::{models, terminal};
use layerscope_cutoff::search::SearchOptions;
use layerscope_diagnostics::run::{JudgedSet, Run, SETS, SearchUnits, SetSearch};
use layerscope_engine::{Ends, Error, Result};
use layerscope_recording::sets::search_sets;
use serde_json::json;
use std::process::ExitCode;

pub(crate) fn run(arguments: &SearchArguments) -> Result<ExitCode> {
    let run = Run::open(&arguments.run)?;
    let layers = run.manifest().model.layers;
    let options = options(arguments, layers)?;
    let model = models::of_run(&run, arguments.model.as_deref(), arguments.device)?;
    let model = match &arguments.adapter {
        Some(folder) => model.with_adapter(folder)?,
        None => model,
    };
    let bar = SearchBar::new();
    let found = heeded(|interrupt| {
        search_sets(
            &run,
            &model,
            &options,
            arguments.search_prompts.map(|count| count as usize),
            interrupt,
            &mut |event| {
                bar.observe(event);
            },
        )
    });
    bar.finish();
    let found = match found {
        Err(Error::Interrupted) => {
            terminal::say("layerscope: interrupted; nothing is kept of an unfinished search");
            return Ok(ExitCode::from(Error::Interrupted.exit_code()));
        }
        found => found?,
    };
    if arguments.json {
        output::json(&json!({ "model": run.manifest().model.name, "layers": layers, "search": found }))?;
    } else {
        terminal::print(&text(&found, arguments.tolerance))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn options(arguments: &SearchArguments, layers: usize) -> Result<SearchOptions> {
    let SearchArguments { cutoff, worst_kl, tolerance, .. } = arguments;
    if cutoff.is_some_and(|cutoff| cutoff == 0 || cutoff > layers) {
        return Err(Error::input(format!(
            "--cutoff must be between 1 and {layers}, the model's number of layers"
        )));
    }
    for (name, nats) in [("--worst-kl", worst_kl), ("--tolerance", tolerance)] {
        if !nats.is_finite() || *nats < 0.0 {
            return Err(Error::input(format!("{name} must be a number of nats, 0 or more")));
        }
    }
    Ok(SearchOptions {
        heads: arguments.units == UnitsArgument::Heads,
        order: arguments.order.into(),
        ends: Ends { first: arguments.first, last: arguments.last },
        cutoff: *cutoff,
        worst_kl: *worst_kl,
        at_once: arguments.at_once as usize,
    })
}

/// Rows of the table: about so many over the whole range.
const ROWS: usize = 20;

fn text(found: &SetSearch, tolerance: f64) -> String {
    let every = found.sets.len().div_ceil(ROWS).max(1);
    let last = found.sets.len().saturating_sub(1);
    let shown = found.sets.iter().enumerate().filter(|(index, _)| index % every == 0 || *index == last);
    let rows = shown.map(|(index, set)| {
        vec![
            index.to_string(),
            figure(set.kv_kept * 100.0, 1),
            figure(set.kl_searched, 4),
            figure(set.judged.kl, 4),
            figure(set.kl_upper95, 4),
            figure(set.judged.top1 * 100.0, 1),
            counted(set.texts_unchanged, set.texts),
            counted(set.answers_kept, set.answers),
        ]
    });
    let units = match found.units {
        SearchUnits::Heads => "KV heads",
        SearchUnits::Layers => "layers",
    };
    let header =
        ["dropped", "KV kept %", "KL searched", "KL judged", "≤ 95 %", "same top %", "texts", "answers"];
    let table = output::table(&header, rows.collect());
    let on = match found.judged == found.searched {
        true => "judged on the prompts that were searched on: record more to judge on others".to_owned(),
        false => format!("judged on {} other prompts", found.judged.len()),
    };
    let mut text = format!(
        "{table}\n\n\
         dropped: {units} that no longer see the prompt but for its first {} and last {} tokens; KL in nats per token\n\
         searched on {} prompts ({} sets tried), {on}; texts and answers: how many stay, of those that are known\n",
        found.first,
        found.last,
        found.searched.len(),
        found.tried
    );
    text.push_str(&match best(found, tolerance) {
        Some(set) => format!(
            "\nWithin {tolerance} nats and 95 % of the answers, {:.1} % of the KV bytes stay:\n\n  {}\n",
            set.kv_kept * 100.0,
            set.policy
        ),
        None => format!("\nNo set stays within {tolerance} nats and keeps 95 % of the answers.\n"),
    });
    text.push_str(&format!("\nAll sets are in the run's {SETS}.\n"));
    text
}

fn counted(kept: usize, of: usize) -> String {
    if of == 0 { "–".to_owned() } else { format!("{kept}/{of}") }
}

/// The set that keeps least, of those that with all larger ones stay within the tolerance and keep the answers.
fn best(found: &SetSearch, tolerance: f64) -> Option<&JudgedSet> {
    let holds = |set: &&JudgedSet| {
        set.kl_upper95 <= tolerance
            && set.answers_kept as f64 >= layerscope_cutoff::DEFAULT_KEPT * set.answers as f64
    };
    found.sets.iter().take_while(holds).last()
}
