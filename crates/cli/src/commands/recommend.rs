//! `layerscope recommend`: a cutoff with its reasons.

use crate::args::RecommendArguments;
use crate::output;
use layerscope_cutoff::block_schedule::{self, BlockSchedule};
use layerscope_cutoff::recommend::{Evidence, Recommendation, Verdict, recommend};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;

pub(crate) use layerscope_cutoff::recommend::Options;

pub(crate) fn run(arguments: &RecommendArguments) -> Result<ExitCode> {
    let anchor = Anchor::from(arguments.anchor);
    let run = Run::open(&arguments.run)?;
    let recommendation = of_run(&run, Options { tolerance: arguments.tolerance, anchor })?;
    let sliminfer = block_schedule::from_run(&run)?;
    if arguments.json {
        output::json(&Found { recommendation: &recommendation, sliminfer: &sliminfer })?;
    } else {
        output::lines(&text(&recommendation))?;
        output::lines(&pruning(sliminfer.as_ref()))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Found<'a> {
    #[serde(flatten)]
    recommendation: &'a Recommendation,
    sliminfer: &'a Option<BlockSchedule>,
}

/// What the run says of pruning blocks of the prompt instead.
fn pruning(schedule: Option<&BlockSchedule>) -> String {
    let Some(schedule) = schedule else {
        return "\nPruning blocks of the prompt instead: no prompt has 512 tokens, so nothing is known of it here; \
                policy sliminfer scales the schedule of its paper"
            .to_owned();
    };
    let needed = schedule.prunings.iter().map(|needed| {
        format!(
            "{:.0} % above layer {} (at most {:.0} %)",
            needed.share * 100.0,
            needed.layer,
            needed.largest_share * 100.0
        )
    });
    format!(
        "\nPruning blocks of the prompt instead: policy {}\n\n  - the blocks that hold {:.0} % of the attention paid to the \
         prompt are {} of it, over {} prompts of 512 tokens and more\n  - what it costs in quality is measured by \
         layerscope bench --quality",
        schedule.policy,
        schedule.coverage * 100.0,
        needed.collect::<Vec<_>>().join(", "),
        schedule.prompts
    )
}

pub(crate) fn of_run(run: &Run, wish: Options) -> Result<Recommendation> {
    recommend(&Evidence::from_run(run)?, wish)
}

pub(crate) fn text(found: &Recommendation) -> String {
    let mut text = match found.verdict {
        Verdict::Cut => format!(
            "\nRecommended L_cut: {} of {} layers (policy speed:{}{}), {:.1} % less KV\n",
            found.l_cut,
            found.layers,
            found.l_cut,
            if found.anchor == Anchor::Bos { "+bos" } else { "" },
            found.kv_saved * 100.0
        ),
        Verdict::KeepFullDepth => format!("\nRecommended: keep full depth, all {} layers\n", found.layers),
    };
    for reason in &found.reasons {
        let _ = write!(text, "\n  - {reason}");
    }
    text
}
