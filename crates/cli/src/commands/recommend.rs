//! `layerscope recommend`: a cutoff with its reasons.

use crate::args::RecommendArguments;
use crate::output;
use layerscope_cutoff::recommend::{Evidence, Recommendation, Verdict, recommend};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::run::Run;
use layerscope_engine::Result;
use std::fmt::Write;
use std::process::ExitCode;

pub(crate) use layerscope_cutoff::recommend::Options;

pub(crate) fn run(arguments: &RecommendArguments) -> Result<ExitCode> {
    let anchor = Anchor::from(arguments.anchor);
    let run = Run::open(&arguments.run)?;
    let recommendation = of_run(&run, Options { tolerance: arguments.tolerance, anchor })?;
    if arguments.json {
        output::json(&recommendation)?;
    } else {
        output::lines(&text(&recommendation))?;
    }
    Ok(ExitCode::SUCCESS)
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
