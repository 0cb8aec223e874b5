//! Ctrl-C: the first stops after the current unit of work and keeps what is done; the second stops at once.

use layerscope_engine::{Error, Interrupt, Result};
use std::sync::atomic::Ordering;

static INTERRUPT: Interrupt = Interrupt::new(false);

pub(crate) fn install() -> Result<&'static Interrupt> {
    ctrlc::set_handler(|| {
        if INTERRUPT.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|e| Error::failure(format!("cannot listen for Ctrl-C: {e}")))?;
    Ok(&INTERRUPT)
}
