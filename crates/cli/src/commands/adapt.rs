//! `layerscope adapt`: trains an adapter for a cutoff.

use crate::args::AdaptArguments;
use crate::interrupt::heeded;
use crate::progress::AdaptBar;
use crate::{models, output, terminal};
use layerscope_adapt::{Figures, Outcome, Settings};
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_engine::{Error, Model, Policy, Result, Target};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &AdaptArguments) -> Result<ExitCode> {
    let device = models::device(arguments.model.device)?;
    let prompts = read_prompts(&arguments.prompts)?;
    let opened = models::open(&arguments.model)?;
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let settings = settings(arguments, policy)?;
    let full = Policy::full(opened.config.layers);
    let longest = opened.config.context.min(1_024);
    let need =
        opened.memory_need(arguments.model.weights.into(), &device, &full.in_memory(longest, 1, &device));
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let outcome = train(&model, &prompts, &settings, &arguments.out, arguments.json)?;
    let adapter = arguments.out.display().to_string();
    if arguments.json {
        output::json(&json!({
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "rows_trained": outcome.rows,
            "seconds": outcome.seconds,
            "before": outcome.before,
            "after": outcome.after,
            "full_depth": outcome.full_depth,
            "held_out": outcome.held_out,
            "adapter": adapter,
            "model": model.name,
            "policy": settings.policy,
            "rows": settings.rows,
            "interrupted": outcome.interrupted,
            "layerscope": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        terminal::print(&text(&outcome, &settings))?;
        terminal::say(&format!(
            "adapter written to {adapter}; use it with --policy {} --adapter {adapter}",
            settings.policy
        ));
    }
    Ok(if outcome.interrupted { interrupted() } else { ExitCode::SUCCESS })
}

/// Trains, and shows how far it is.
pub(crate) fn train(
    model: &Model,
    prompts: &PromptFile,
    settings: &Settings,
    out: &Path,
    quiet: bool,
) -> Result<Outcome> {
    let mut bar = AdaptBar::new(quiet);
    let outcome = heeded(|interrupt| {
        let observe = &mut |event: layerscope_adapt::Event<'_>| bar.observe(&event);
        layerscope_adapt::adapt(model, prompts, settings, out, interrupt, observe)
    });
    bar.finish();
    outcome
}

/// Says how a training that was interrupted goes on.
pub(crate) fn interrupted() -> ExitCode {
    terminal::say("layerscope: interrupted; the same command goes on from here");
    ExitCode::from(Error::Interrupted.exit_code())
}

fn settings(arguments: &AdaptArguments, policy: Policy) -> Result<Settings> {
    let targets = arguments.targets.split(',').map(|name| {
        let target = Target::ALL.into_iter().find(|target| target.name() == name.trim());
        target.ok_or_else(|| {
            let known: Vec<&str> = Target::ALL.map(Target::name).to_vec();
            Error::input(format!("--targets: `{name}` is unknown (known: {})", known.join(", ")))
        })
    });
    let positive = |value: f64, name: &str| match value > 0.0 && value.is_finite() {
        true => Ok(value),
        false => Err(Error::input(format!("{name} must be above 0"))),
    };
    let share = |value: f64, name: &str| match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => Err(Error::input(format!("{name} must be between 0 and 1"))),
    };
    Ok(Settings {
        policy,
        rows: arguments.rows.into(),
        rank: arguments.rank as usize,
        alpha: positive(arguments.alpha.unwrap_or(2.0 * f64::from(arguments.rank)), "--alpha")?,
        rank_stabilised: arguments.rank_stabilised,
        targets: targets.collect::<Result<_>>()?,
        learning_rate: positive(arguments.learning_rate, "--learning-rate")?,
        steps: match (arguments.steps, arguments.minutes) {
            (Some(steps), _) => steps as usize,
            (None, None) => 400,
            (None, Some(_)) => usize::MAX,
        },
        minutes: arguments.minutes.map(|minutes| positive(minutes, "--minutes")).transpose()?,
        other_cutoffs: share(arguments.other_cutoffs, "--other-cutoffs")?,
        dropout: match share(arguments.dropout, "--dropout")? {
            1.0 => return Err(Error::input("--dropout must be below 1")),
            rate => rate as f32,
        },
        continued: arguments.continued.into(),
        prompt_memory: arguments.prompt_memory.map(|mib| mib.saturating_mul(1 << 20)),
        batch: arguments.batch as usize,
        max_new_tokens: arguments.max_new_tokens as usize,
        held_out: share(arguments.held_out, "--held-out")?,
        evaluate_every: arguments.evaluate_every as usize,
        target_kl: arguments.target_kl.map(|kl| positive(kl, "--target-kl")).transpose()?,
        sft: share(arguments.sft, "--sft")?,
        seed: arguments.seed,
    })
}

pub(crate) fn text(outcome: &Outcome, settings: &Settings) -> String {
    let row = |name: String, figures: &Figures| {
        let answers = figures.answers.map_or(f64::NAN, |share| share * 100.0);
        vec![
            name,
            output::figure(figures.kl, 4),
            output::figure(figures.top1 * 100.0, 1),
            output::figure(answers, 0),
        ]
    };
    let mut rows = vec![
        row(format!("{}, before", settings.policy), &outcome.before),
        row(format!("{}, after", settings.policy), &outcome.after),
    ];
    rows.extend(outcome.full_depth.iter().map(|figures| row("full depth, after".to_owned(), figures)));
    format!(
        "{}\n\nOn held-out prompts, against the model without the adapter at full depth: KL divergence of next-token distributions,\n\
         nats per token; steps with the same top token; answers of which every token is the top token.\n\
         {} steps, {} tokens, {:.0} s; {:.0} rows a second.",
        output::table(&["", "KL nats", "same top %", "answers %"], rows),
        outcome.steps,
        outcome.tokens,
        outcome.seconds,
        outcome.rows as f64 / outcome.seconds
    )
}
