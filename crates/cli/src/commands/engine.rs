//! `layerscope engine --stdio`: the engine behind a window on another machine.

use crate::args::EngineArguments;
use crate::interrupt::heeded;
use crate::models;
use layerscope_app::SeenModels;
use layerscope_app::engine::remote::{Machine, serve};
use layerscope_engine::{Error, Result};
use std::process::ExitCode;

/// What this program knows of its machine.
const MACHINE: Machine = Machine {
    resolve: models::resolve,
    models: models::named,
    seen: SeenModels { remember: models::remember, remembered: models::remembered },
};

// Frames are no text for a terminal, which may hold no control characters.
#[allow(clippy::disallowed_methods)]
pub(crate) fn run(arguments: &EngineArguments) -> Result<ExitCode> {
    if !arguments.stdio {
        return Err(Error::input(
            "the engine takes messages on standard input and gives them on standard output; say so with --stdio",
        ));
    }
    // A signal stops it as the end of the input does: recorded prompts are kept.
    heeded(|interrupt| serve(std::io::stdin(), std::io::stdout(), MACHINE, interrupt))?;
    Ok(ExitCode::SUCCESS)
}

/// What serves a viewer that `layerscope serve` lets in.
#[cfg(feature = "server")]
pub(crate) fn viewer() -> Result<layerscope_server::Viewer> {
    Ok(|input, output, interrupt| serve(input, output, MACHINE, interrupt))
}
