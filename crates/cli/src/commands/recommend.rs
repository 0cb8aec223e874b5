//! `layerscope recommend`: the recommended cutoff and the reasons for it.

use crate::args::RecommendArguments;
use crate::{output, terminal};
use layerscope_cutoff::block_schedule::{self, BlockSchedule};
use layerscope_cutoff::budget::{Budget, Fitting, Kind, fitting};
use layerscope_cutoff::recommend::{CategoryOutcome, Evidence, Recommendation, Verdict, recommend};
use layerscope_diagnostics::record::PromptSummary;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, HeadSetFile, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) use layerscope_cutoff::recommend::Options;

pub(crate) fn run(arguments: &RecommendArguments) -> Result<ExitCode> {
    let run = Run::open(&arguments.run)?;
    let options = arguments.judged.options();
    if let Some(kv) = arguments.kv_budget {
        let budget = Budget { kv, context: arguments.context, anchor: options.anchor };
        return within_budget(&run, budget, arguments);
    }
    let recommendation = of_run(&run, options)?;
    let before = arguments.before.as_ref().map(|folder| of_run(&Run::open(folder)?, options)).transpose()?;
    if let Some(before) = before.as_ref().filter(|before| before.layers != recommendation.layers) {
        return Err(Error::input(format!(
            "--before: a run of a model with {} layers, and this one's has {}; give a run of the same model",
            before.layers, recommendation.layers
        )));
    }
    let sliminfer = block_schedule::from_recommendation(&recommendation);
    if arguments.json {
        output::json(&RecommendJson {
            recommendation: &recommendation,
            sliminfer: &sliminfer,
            before: &before,
        })?;
    } else {
        terminal::print(&text(&recommendation))?;
        if let Some(before) = &before {
            terminal::print(&before_and_after(before, &recommendation))?;
        }
        if arguments.why {
            terminal::print(&why(&recommendation))?;
            terminal::print(&pruning(sliminfer.as_ref()))?;
        } else {
            terminal::say("--why says why, and which blocks of the prompt could be pruned instead");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The best policies that fit into a budget of KV.
fn within_budget(run: &Run, budget: Budget, arguments: &RecommendArguments) -> Result<ExitCode> {
    let prompts = run.prompts().map(|prompt| prompt.map(PromptSummary::without_prompt_tokens));
    let prompts: Vec<PromptSummary> = prompts.collect::<Result<_>>()?;
    let sets = run.sets()?;
    let fitting = fitting(Evidence { manifest: run.manifest(), prompts: &prompts }, sets.as_ref(), budget)?;
    if let Some(path) = &arguments.write_heads {
        write_heads(run, &fitting, path)?;
    }
    match arguments.json {
        true => output::json(&fitting)?,
        false => terminal::print(&budget_text(&fitting, sets.is_some()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the set of the best policy, for the run's model.
fn write_heads(run: &Run, fitting: &Fitting, path: &Path) -> Result<()> {
    let best = &fitting.choices[0].policy;
    let heads = HeadSetFile::heads_of(best).ok_or_else(|| {
        Error::input(format!(
            "--write-heads: the best policy for this budget is {best}, which is no set of KV heads"
        ))
    })?;
    let model = run.manifest().model.clone();
    HeadSetFile {
        heads,
        layers: model.layers,
        kv_heads: model.kv_heads,
        model: model.name,
        sha256: model.sha256,
        policy: best.clone(),
    }
    .write(path)
}

fn budget_text(fitting: &Fitting, searched: bool) -> String {
    let Fitting { bytes, prompt_tokens, steps, prompts, choices } = fitting;
    let percent = |share: f64| output::figure(share * 100.0, 1);
    let rows = choices.iter().map(|choice| {
        vec![
            kind(choice.kind).to_owned(),
            percent(choice.kv_kept),
            output::figure(choice.kl, 4),
            output::figure(choice.kl_upper95, 4),
            percent(choice.top1),
            if choice.answers == 0 {
                "–".into()
            } else {
                format!("{}/{}", choice.answers_kept, choice.answers)
            },
            percent(choice.predicted_ttft_saved),
            percent(choice.predicted_tpot_saved),
            choice.longest_prompt.to_string(),
        ]
    });
    let header = [
        "best",
        "KV kept %",
        "KL nats",
        "≤ 95 %",
        "same top %",
        "answers",
        "TTFT −%",
        "TPOT −%",
        "longest prompt",
    ];
    let mut text = format!(
        "\nFor {} of KV, {prompt_tokens} prompt tokens and {steps} steps, judged on {prompts} prompts:\n\n{}\n\n\
         TTFT and TPOT: predicted savings; longest prompt: tokens whose KV fits, at most the model's context\n",
        output::bytes(*bytes),
        output::table(&header, rows.collect())
    );
    for choice in choices {
        let _ = write!(text, "\n{}: policy {}", kind(choice.kind), terminal::line(&choice.policy));
    }
    if !searched {
        text.push_str("\n\nNo sets of KV heads are searched yet: layerscope search RUN finds better policies for most budgets.");
    }
    text
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Full => "full",
        Kind::Cutoff => "cutoff",
        Kind::Set => "set",
        Kind::CutoffAndSet => "cutoff and set",
    }
}

#[derive(Serialize)]
struct RecommendJson<'a> {
    #[serde(flatten)]
    recommendation: &'a Recommendation,
    sliminfer: &'a Option<BlockSchedule>,
    /// That of the run to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: &'a Option<Recommendation>,
}

/// Two frontiers side by side, such as of a model without and with an adapter, and what is recommended for each.
pub(crate) fn before_and_after(before: &Recommendation, after: &Recommendation) -> String {
    let rows = before.frontier.iter().zip(&after.frontier).map(|(before, after)| {
        let percent = |share: f64| output::figure(share * 100.0, 1);
        vec![
            after.cutoff.to_string(),
            output::figure(before.kl, 4),
            output::figure(after.kl, 4),
            percent(before.top1),
            percent(after.top1),
            percent(before.answers_kept),
            percent(after.answers_kept),
        ]
    });
    let header =
        ["cutoff", "KL nats", "KL after", "same top %", "top after", "answers kept %", "answers after"];
    let cut = |of: &Recommendation| match of.verdict {
        Verdict::Cut => {
            format!("{} of {} ({:.1}% of the KV saved)", of.l_cut, of.layers, of.kv_saved * 100.0)
        }
        _ => "full depth".to_owned(),
    };
    format!(
        "\nBefore and after\n\n{}\n\nRecommended L_cut before: {}\nRecommended L_cut after:  {}",
        output::table(&header, rows.collect()),
        cut(before),
        cut(after)
    )
}

/// The recommended block pruning policy, as an alternative to a cutoff.
fn pruning(schedule: Option<&BlockSchedule>) -> String {
    let Some(BlockSchedule { policy, reading_layer, last_layer_needed }) = schedule else {
        return "\nPruning blocks of the prompt instead: no single layer reads the prompt most, so the run gives no \
                schedule; policy\nsliminfer scales the schedule of its paper"
            .to_owned();
    };
    let cutoff = last_layer_needed.map_or(String::new(), |layer| {
        format!("\n  - From layer {} up, the prompt is not needed.", layer + 1)
    });
    format!(
        "\nPruning blocks of the prompt instead: policy {policy}\n\n  - Layer {} reads it: hiding the prompt from that layer \
         alone costs {:.2} nats, more than from any other. Blocks are\n    scored there.{cutoff}\n  - `layerscope bench --quality` \
         measures what it costs in quality.",
        reading_layer.layer, reading_layer.value
    )
}

pub(crate) fn of_run(run: &Run, options: Options) -> Result<Recommendation> {
    let prompts = run.prompts().map(|prompt| prompt.map(PromptSummary::without_prompt_tokens));
    let prompts: Vec<PromptSummary> = prompts.collect::<Result<_>>()?;
    recommend(Evidence { manifest: run.manifest(), prompts: &prompts }, options)
}

/// The answer at a glance: what is recommended, what it costs each category, and what to beware of.
pub(crate) fn text(recommendation: &Recommendation) -> String {
    let headline = recommendation.headline();
    format!("\n{headline}\n\n{}\n\n{}", by_category(recommendation), terminal::line(&recommendation.caveat()))
}

/// What the cutoff costs all prompts and each category. Where full depth is recommended, it is the cutoff below that would.
fn by_category(recommendation: &Recommendation) -> String {
    let l_cut = recommendation.l_cut;
    let cuts = recommendation.verdict == Verdict::Cut;
    let all = CategoryOutcome {
        category: "all".to_owned(),
        prompts: recommendation.prompts,
        kl: recommendation.kl,
        kl_upper95: recommendation.kl_upper95,
        kl_below: recommendation.kl_below,
        top1: recommendation.top1,
        answers: recommendation.answers,
        answers_kept: recommendation.answers_kept,
        text_unchanged: recommendation.text_unchanged,
        exact_l_cut: recommendation.exact_l_cut,
    };
    let categories = match &recommendation.categories[..] {
        [_] => &[],
        several => several,
    };
    let row = |of: &CategoryOutcome| {
        let mut row = vec![of.category.clone(), of.prompts.to_string(), of.exact_l_cut.to_string()];
        if cuts {
            row.push(output::figure(of.kl, 4));
        }
        row.push(output::figure(of.kl_below, 4));
        if cuts {
            let kept = (of.answers_kept * of.answers as f64).round();
            row.push(output::figure(of.text_unchanged * 100.0, 0));
            row.push(if of.answers == 0 { "–".to_owned() } else { format!("{kept} of {}", of.answers) });
        }
        row
    };
    let [at, below] = [l_cut, l_cut - 1].map(|cutoff| format!("KL at {cutoff}, nats"));
    let header: &[&str] = match cuts {
        true => &["", "prompts", "passes from", &at, &below, "texts unchanged %", "answers kept"],
        false => &["", "prompts", "passes from", &below],
    };
    output::table(header, std::iter::once(&all).chain(categories).map(row).collect())
}

/// Why, a sentence each.
pub(crate) fn why(recommendation: &Recommendation) -> String {
    let reasons = recommendation.reasons.iter();
    let reasons: String = reasons.map(|reason| format!("\n  - {}", terminal::line(reason))).collect();
    format!("\nWhy\n{reasons}")
}
