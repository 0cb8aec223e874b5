//! `layerscope record`: a model on a prompt file into a run folder.

use crate::args::RecordArguments;
use crate::commands::{recommend, show};
use crate::progress::RecordingBars;
use crate::{models, output};
use layerscope_cutoff::recording;
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Interrupt, Model, Result};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &RecordArguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let prompts = read_prompts(&arguments.prompts)?;
    let model = models::load(&arguments.model)?;
    record(&model, &prompts, arguments.max_new_tokens as usize, &arguments.out, arguments.json, interrupt)
}

/// Records, then prints the figures and the recommendation.
pub(crate) fn record(
    model: &Model,
    prompts: &PromptFile,
    max_new_tokens: usize,
    out: &Path,
    as_json: bool,
    interrupt: &Interrupt,
) -> Result<ExitCode> {
    let mut bars = RecordingBars::new(prompts.prompts.len());
    let recorded =
        recording::record(model, prompts, max_new_tokens, out, interrupt, &mut |event| bars.observe(event));
    bars.finish();
    let manifest = match recorded {
        Err(Error::Interrupted) => {
            eprintln!("layerscope: interrupted; the same command resumes {}", out.display());
            return Ok(ExitCode::from(Error::Interrupted.exit_code()));
        }
        recorded => recorded?,
    };
    let failed = bars.failures();
    let code = if failed > 0 { ExitCode::from(2) } else { ExitCode::SUCCESS };
    if manifest.prompts.done.is_empty() {
        return Ok(code);
    }
    let run = Run::open(out)?;
    if as_json {
        let recommendation = recommend::of_run(&run, recommend::Options::default())?;
        output::json(&json!({ "show": run.show()?, "recommendation": recommendation }))?;
        return Ok(code);
    }
    output::lines(&show::overall(&run)?)?;
    output::lines(&recommend::text(&recommend::of_run(&run, recommend::Options::default())?))?;
    if failed > 0 {
        eprintln!("layerscope: {failed} of {} prompts failed, see above", prompts.prompts.len());
    }
    Ok(code)
}
