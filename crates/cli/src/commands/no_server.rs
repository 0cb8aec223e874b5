//! `layerscope serve` in a build without the feature `server`.

use crate::args::ServeArguments;
use layerscope_engine::{Error, Result};
use std::process::ExitCode;

pub(crate) fn run(arguments: ServeArguments) -> Result<ExitCode> {
    Err(Error::input(format!(
        "this build leaves out the server; build it with `cargo run --release --features server -- serve {}`",
        arguments.model.model
    )))
}
