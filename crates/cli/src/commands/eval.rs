//! `layerscope eval`: policies judged by tasks.

use crate::args::EvalArguments;
use crate::interrupt::heeded;
use crate::progress::EvalBar;
use crate::{models, output, scores, terminal};
use layerscope_bench::split_policies;
use layerscope_engine::{Error, Policy, Result};
use layerscope_eval::{Evaluation, Event, Settings, evaluate, read_tasks, summarise};
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between writes of what is done, at most.
const BETWEEN_WRITES: Duration = Duration::from_secs(20);

pub(crate) fn run(arguments: &EvalArguments) -> Result<ExitCode> {
    let mut tasks = read_tasks(&arguments.tasks)?;
    tasks.items.truncate(arguments.limit.map_or(usize::MAX, |limit| limit as usize));
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, &device)?;
    let mut policies: Vec<Policy> = vec![];
    for name in split_policies(&arguments.policies) {
        let policy = Policy::parse_for(&name, &opened.config)?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let need = opened.memory_need(arguments.model.weights.into(), &device, &vec![0; opened.config.layers]);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_adapter(model, &arguments.adapter, &policies)?;
    let settings = Settings::new(&model, &tasks, arguments.raw, arguments.max_new_tokens as usize);
    let mut evaluation = match &arguments.out {
        Some(folder) => Evaluation::resume(folder, settings)?,
        None => Evaluation::new(settings),
    };
    // A folder that cannot be written is said before anything runs.
    if let Some(folder) = &arguments.out {
        evaluation.write(folder)?;
    }
    let bar = EvalBar::new(tasks.items.len() * policies.len());
    let mut written = Instant::now();
    let ended = heeded(|interrupt| {
        let observe = &mut |event: Event<'_>| {
            if let Event::LeftOut { id, reason } = &event {
                bar.suspend(|| terminal::say(&format!("layerscope: item {id}: {reason}; it is left out")));
            }
            bar.observe(event);
        };
        let save = &mut |evaluation: &Evaluation| match &arguments.out {
            Some(folder) if written.elapsed() > BETWEEN_WRITES => {
                written = Instant::now();
                evaluation.write(folder)
            }
            _ => Ok(()),
        };
        evaluate(&model, &tasks.items, &policies, &mut evaluation, interrupt, observe, save)
    });
    bar.finish();
    if let Some(folder) = &arguments.out {
        evaluation.write(folder)?;
    }
    let interrupted = matches!(ended, Err(Error::Interrupted));
    if !interrupted {
        ended?;
    }
    let names: Vec<String> = policies.iter().map(Policy::to_string).collect();
    let rows = summarise(evaluation.scored(), &names);
    if arguments.json {
        output::json(&json!({
            "rows": rows,
            "settings": evaluation.settings,
            "policies": names,
            "interrupted": interrupted,
            "notes": model.caveats(&policies),
            "layerscope": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        terminal::print(&scores::text(&rows, &names))?;
        for note in model.caveats(&policies) {
            terminal::print(&note)?;
        }
    }
    if interrupted {
        let kept = if arguments.out.is_some() { "; the same command goes on" } else { "" };
        terminal::say(&format!("layerscope: interrupted; printing the results so far{kept}"));
        return Ok(ExitCode::from(Error::Interrupted.exit_code()));
    }
    if rows.is_empty() {
        return Err(Error::input(format!("no item of {} could be run", arguments.tasks.display())));
    }
    Ok(ExitCode::SUCCESS)
}
