//! `layerscope demo`: the embedded model on bundled prompts.

use crate::args::DemoArguments;
use crate::commands::record::{self, Recording};
use crate::commands::{adapt, recommend};
use crate::{models, terminal};
use layerscope_adapt::{Continued, Settings};
use layerscope_cutoff::DEFAULT_FAILURE_CASES;
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Model, Policy, Result, WeightsPrecision};
use layerscope_recording::Recorded;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const PROMPTS_NAME: &str = "demo.jsonl";
const PROMPTS: &[u8] = include_bytes!("../../../../fixtures/tiny/demo.jsonl");
const LESSONS_NAME: &str = "adapt.jsonl";
/// Prompts to learn from: names and places that the others do not have.
const LESSONS: &[u8] = include_bytes!("../../../../fixtures/tiny/adapt.jsonl");
/// The policy that the model is taught.
const TAUGHT: &str = "speed:5+bos";
/// Decode steps of each bundled prompt.
pub(crate) const NEW_TOKENS: usize = 32;

/// The bundled prompts.
pub(crate) fn prompts() -> Result<PromptFile> {
    bundled(PROMPTS_NAME, PROMPTS)
}

/// The bundled prompts to learn from.
pub(crate) fn lessons() -> Result<PromptFile> {
    bundled(LESSONS_NAME, LESSONS)
}

fn bundled(name: &str, lines: &[u8]) -> Result<PromptFile> {
    Ok(PromptFile {
        name: name.to_owned(),
        sha256: prompts_sha256(lines),
        prompts: parse_prompts(name, lines)?,
    })
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<ExitCode> {
    let prompts = prompts()?;
    let model = models::load_source(&models::embedded(), WeightsPrecision::Native, arguments.device)?;
    let config = model.config();
    if !arguments.json {
        terminal::print(&format!(
            "Recording {} ({} layers, {} heads, hidden size {}) on {} bundled prompts into {}\n",
            model.name,
            config.layers,
            config.heads,
            config.hidden,
            prompts.prompts.len(),
            arguments.out.display()
        ))?;
    }
    let recording = Recording {
        policies: vec![],
        prompts: &prompts,
        recorded: Recorded::steps(NEW_TOKENS),
        failure_cases: DEFAULT_FAILURE_CASES,
        out: &arguments.out,
        command: vec!["demo".to_owned(), "--out".to_owned(), record::last_part(&arguments.out)],
        json: arguments.json,
    };
    let code = record::record(&model, &recording)?;
    if arguments.adapt && code == ExitCode::SUCCESS {
        return adapted(model, arguments);
    }
    if !arguments.json && code == ExitCode::SUCCESS {
        terminal::print(&format!(
            "\nNext:\n  layerscope show {out} --by-category        the same by kind of prompt\n  \
             layerscope recommend {out} --tolerance 0.02    a stricter cutoff\n  \
             layerscope demo --adapt    teaches the model a lower cutoff\n  \
             layerscope record MODEL.gguf --prompts PROMPTS.jsonl --out RUN    your own model and prompts",
            out = arguments.out.display()
        ))?;
    }
    Ok(code)
}

/// Trains an adapter, records the same prompts with it, and shows both frontiers.
fn adapted(model: Model, arguments: &DemoArguments) -> Result<ExitCode> {
    let lessons = lessons()?;
    let settings = Settings {
        steps: 600,
        batch: 8,
        max_new_tokens: NEW_TOKENS,
        other_cutoffs: 0.5,
        evaluate_every: 100,
        continued: Continued::Own,
        ..Settings::new(Policy::parse_for(TAUGHT, model.config())?)
    };
    let (adapter, out) = (beside(&arguments.out, "adapter"), beside(&arguments.out, "adapted"));
    terminal::print(&format!(
        "\nTeaching {} to answer under {TAUGHT}, on {} other prompts; the adapter goes to {}\n",
        model.name,
        lessons.prompts.len(),
        adapter.display()
    ))?;
    let outcome = adapt::train(&model, &lessons, &settings, &adapter, false)?;
    terminal::print(&adapt::text(&outcome.training, &settings))?;
    if outcome.interrupted {
        return Ok(adapt::interrupted());
    }
    let model = model.with_adapter(&adapter)?;
    let recording = Recording {
        policies: vec![],
        prompts: &prompts()?,
        recorded: Recorded::steps(NEW_TOKENS),
        failure_cases: DEFAULT_FAILURE_CASES,
        out: &out,
        command: vec![],
        json: false,
    };
    terminal::print(&format!("\nRecording the same prompts with the adapter into {}\n", out.display()))?;
    let code = record::record(&model, &recording)?;
    if code == ExitCode::SUCCESS {
        let of = |folder: &Path| recommend::of_run(&Run::open(folder)?, recommend::Options::default());
        terminal::print(&recommend::before_and_after(&of(&arguments.out)?, &of(&out)?))?;
    }
    Ok(code)
}

/// A folder beside another, with a longer name.
fn beside(folder: &Path, what: &str) -> PathBuf {
    let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    folder.with_file_name(format!("{name}-{what}"))
}
