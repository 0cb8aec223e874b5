//! `layerscope report`: writes runs as HTML, PDF, Markdown or JSON.

use crate::args::ReportArguments;
use crate::commands::{recommend, record};
use crate::{models, output, progress, terminal};
use layerscope_cutoff::DEFAULT_FAILURE_CASES;
use layerscope_cutoff::recommend::Options;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Error, Result};
use layerscope_report::{Report, ReportFormat, render, write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &ReportArguments) -> Result<ExitCode> {
    // Checks all arguments before the work begins.
    for out in &arguments.out {
        ReportFormat::of(out)?;
        output::check_folder(out)?;
    }
    let options = arguments.judged.options();
    if !arguments.model.is_empty() {
        for folder in &arguments.runs {
            generate_failure_cases(folder, arguments, options)?;
        }
    }
    let report = progress::waiting("reading the runs", || Report::read(&arguments.runs, options))?;
    for out in &arguments.out {
        let files = progress::waiting(&format!("writing {}", out.display()), || render(&report, out))?;
        write(&files)?;
        terminal::print(&format!("wrote {}", out.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Generates the failure cases that a run lacks, with the given model that it was recorded with.
fn generate_failure_cases(folder: &Path, arguments: &ReportArguments, options: Options) -> Result<()> {
    let run = Run::open(folder)?;
    let manifest = run.manifest();
    let recommendation = recommend::of_run(&run, options)?;
    let precision = models::precision_of(&run)?;
    for name in &arguments.model {
        let model = models::load_source(&models::resolve(name)?, precision, arguments.device)?;
        if model.sha256() == manifest.model.sha256 {
            record::failure_cases(&run, &model, &recommendation, DEFAULT_FAILURE_CASES)?;
            return Ok(());
        }
    }
    Err(Error::input(format!(
        "{} was recorded with {} (SHA-256 {}), but no --model is this file; give that model",
        folder.display(),
        manifest.model.name,
        manifest.model.sha256
    )))
}
