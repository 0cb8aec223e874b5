//! `layerscope engine` in a build without the feature `viewer`.

use crate::args::EngineArguments;
use layerscope_engine::{Error, Result};
use std::process::ExitCode;

pub(crate) fn run(arguments: &EngineArguments) -> Result<ExitCode> {
    let stdio = if arguments.stdio { " --stdio" } else { "" };
    Err(Error::input(format!(
        "this build leaves out the viewer and its engine; build it with `cargo run --release --features viewer -- engine{stdio}`"
    )))
}

#[cfg(feature = "server")]
pub(crate) fn viewer() -> Result<layerscope_server::Viewer> {
    Err(Error::input(
        "this build leaves out the viewer and its engine; build it with `cargo run --release --features full -- serve MODEL --viewer`",
    ))
}
