//! Replaces `pdf` in a build without that feature.

use crate::document::Document;
use layerscope_engine::{Error, Result};

pub(crate) fn check_compiled_in() -> Result<()> {
    Err(Error::input(
        "this build leaves out PDF; build it with `cargo run --release --features pdf -- report RUN -o report.pdf`, or \
         write .html, which browsers print to PDF",
    ))
}

pub(crate) fn pdf(_: &Document) -> Result<Vec<u8>> {
    check_compiled_in().map(|()| vec![])
}
