//! `layerscope view` in a build without the feature `viewer`.

use crate::args::ViewArguments;
use layerscope_engine::{Error, Result};
use std::process::ExitCode;

pub(crate) fn run(arguments: &ViewArguments) -> Result<ExitCode> {
    let path = arguments.path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display()));
    Err(Error::input(format!(
        "this build leaves out the viewer; build it with `cargo run --release --features viewer -- view{path}`"
    )))
}
