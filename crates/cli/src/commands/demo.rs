//! `layerscope demo`: the embedded model on bundled prompts.

use crate::args::DemoArguments;
use crate::commands::record::{self, Recording};
use crate::{models, terminal};
use layerscope_cutoff::DEFAULT_FAILURE_CASES;
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_engine::{Result, WeightsPrecision};
use std::process::ExitCode;

const PROMPTS_NAME: &str = "demo.jsonl";
const PROMPTS: &[u8] = include_bytes!("../../../../fixtures/tiny/demo.jsonl");
/// Decode steps of each bundled prompt.
pub(crate) const NEW_TOKENS: usize = 32;

/// The bundled prompts.
pub(crate) fn prompts() -> Result<PromptFile> {
    Ok(PromptFile {
        name: PROMPTS_NAME.to_owned(),
        sha256: prompts_sha256(PROMPTS),
        prompts: parse_prompts(PROMPTS_NAME, PROMPTS)?,
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
        max_new_tokens: NEW_TOKENS,
        failure_cases: DEFAULT_FAILURE_CASES,
        out: &arguments.out,
        command: vec!["demo".to_owned(), "--out".to_owned(), record::last_part(&arguments.out)],
        json: arguments.json,
    };
    let code = record::record(&model, &recording)?;
    if !arguments.json && code == ExitCode::SUCCESS {
        terminal::print(&format!(
            "\nNext:\n  layerscope show {out} --by-category        the same by kind of prompt\n  \
             layerscope recommend {out} --tolerance 0.02    a stricter cutoff\n  \
             layerscope record MODEL.gguf --prompts PROMPTS.jsonl --out RUN    your own model and prompts",
            out = arguments.out.display()
        ))?;
    }
    Ok(code)
}
