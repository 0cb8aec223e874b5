//! `layerscope adapt`: trains an adapter for a cutoff.

use crate::args::AdaptArguments;
use crate::interrupt::heeded;
use crate::progress::AdaptBar;
use crate::{models, output, terminal};
use layerscope_adapt::{Outcome, Settings};
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_engine::{AdapterTraining, Error, HeldOutFigures, Model, Policy, Result, Target};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &AdaptArguments) -> Result<ExitCode> {
    let device = models::device(arguments.model.device)?;
    let prompts = read_prompts(&arguments.prompts)?;
    let opened = models::open(&arguments.model, &device)?;
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let settings = settings(arguments, policy)?;
    let full = Policy::full(opened.config.layers);
    let longest = opened.config.context.min(1_024);
    let need =
        opened.memory_need(arguments.model.weights.into(), &device, &full.in_memory(longest, 1, &device));
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let outcome = train(&model, &prompts, &settings, &arguments.out, arguments.json)?;
    let adapter = arguments.out.display().to_string();
    let training = &outcome.training;
    if arguments.json {
        output::json(&json!({
            "steps": training.steps,
            "tokens": training.tokens,
            "rows_trained": training.rows,
            "seconds": training.seconds,
            "before": training.before,
            "after": training.after,
            "full_depth": training.full_depth,
            "measured": outcome.measured,
            "held_out": outcome.held_out,
            "adapter": adapter,
            "model": model.name,
            "policy": settings.policy,
            "rows": settings.rows,
            "interrupted": outcome.interrupted,
            "layerscope": env!("CARGO_PKG_VERSION"),
        }))?;
    } else {
        terminal::print(&text(training, &settings))?;
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
        rank: arguments.rank.0.map(|rank| rank as usize),
        alpha: positive(
            arguments.alpha.unwrap_or(2.0 * f64::from(arguments.rank.0.unwrap_or(1))),
            "--alpha",
        )?,
        rank_stabilised: arguments.rank_stabilised,
        targets: targets.collect::<Result<_>>()?,
        learning_rate: match (arguments.learning_rate, arguments.rank.0) {
            (Some(rate), _) => positive(rate, "--learning-rate")?,
            (None, Some(_)) => 1e-3,
            (None, None) => 2e-5,
        },
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
        with_frontier: false,
        seed: arguments.seed,
    })
}

pub(crate) fn text(training: &AdapterTraining, settings: &Settings) -> String {
    let row = |name: String, figures: &HeldOutFigures| {
        let answers = figures.answers.map_or(f64::NAN, |share| share * 100.0);
        vec![
            name,
            output::figure(figures.kl, 4),
            output::figure(figures.top1 * 100.0, 1),
            output::figure(answers, 0),
        ]
    };
    let mut rows = vec![
        row(format!("{}, before", settings.policy), &training.before),
        row(format!("{}, after", settings.policy), &training.after),
    ];
    rows.extend(training.full_depth.iter().map(|figures| row("full depth, after".to_owned(), figures)));
    format!(
        "{}\n\nOn held-out prompts, against the model without the adapter at full depth: KL divergence of next-token distributions,\n\
         nats per token; steps with the same top token; answers of which every token is the top token.\n\
         {} steps, {} tokens, {:.0} s; {:.0} rows a second.",
        output::table(&["", "KL nats", "same top %", "answers %"], rows),
        training.steps,
        training.tokens,
        training.seconds,
        training.rows as f64 / training.seconds
    )
}
