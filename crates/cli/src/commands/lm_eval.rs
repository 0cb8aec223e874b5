//! `layerscope lm-eval`: policies compared by result files of lm-evaluation-harness.

use crate::args::LmEvalArguments;
use crate::{output, scores, terminal};
use layerscope_engine::Result;
use layerscope_eval::read_harness;
use serde_json::json;
use std::process::ExitCode;

pub(crate) fn run(arguments: &LmEvalArguments) -> Result<ExitCode> {
    let found = read_harness(&arguments.results)?;
    if let Some(folder) = &arguments.out {
        found.write(folder)?;
    }
    if !found.left_out.is_empty() {
        terminal::say(&format!("layerscope: no scores of 0 to 1, left out: {}", found.left_out.join(", ")));
    }
    if arguments.json {
        output::json(&json!(found))?;
    } else {
        terminal::print(&scores::text(&found.rows, &found.policies))?;
    }
    Ok(ExitCode::SUCCESS)
}
