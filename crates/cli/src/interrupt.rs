//! Ctrl-C, SIGTERM and SIGHUP. The first ends the process at once, except within work that looks at the flag and keeps what is
//! done: that stops after the piece in hand, and a second signal ends the process.

use layerscope_engine::{Error, Interrupt, Result};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static INTERRUPT: Interrupt = Interrupt::new(false);
/// Whether work runs that looks at the flag.
static HEEDED: AtomicBool = AtomicBool::new(false);

/// For work of which nothing would be kept: a signal ends the process.
pub(crate) static UNHEEDED: Interrupt = Interrupt::new(false);

/// Listens from now on.
///
/// # Errors
/// [`Error::Failure`] where the system refuses.
pub(crate) fn install() -> Result<()> {
    let ignored = hangups_are_ignored();
    let listens = ctrlc::set_handler(|| {
        let first = !INTERRUPT.swap(true, SeqCst);
        if !(first && HEEDED.load(SeqCst)) {
            std::process::exit(Error::Interrupted.exit_code().into());
        }
    });
    if ignored {
        ignore_hangups();
    }
    listens.map_err(|error| Error::failure(format!("cannot listen for signals: {error}")))
}

/// Runs work that looks at the flag often and, once it is set, stops and keeps what is done.
pub(crate) fn heeded<T>(work: impl FnOnce(&Interrupt) -> T) -> T {
    let outer = HEEDED.swap(true, SeqCst);
    let done = work(&INTERRUPT);
    HEEDED.store(outer, SeqCst);
    done
}

/// Stops where a signal came within [`heeded`] work.
///
/// # Errors
/// [`Error::Interrupted`].
pub(crate) fn check() -> Result<()> {
    if INTERRUPT.load(SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Whether a signal came within [`heeded`] work, which then goes on as if none had come: for work that it ended a part of.
pub(crate) fn taken() -> bool {
    INTERRUPT.swap(false, SeqCst)
}

/// Whether the program was started with `nohup`.
#[cfg(unix)]
fn hangups_are_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no action is given, so the present one is only written to `action`, which zeros initialise.
    unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(unix)]
fn ignore_hangups() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

#[cfg(not(unix))]
fn hangups_are_ignored() -> bool {
    false
}

#[cfg(not(unix))]
fn ignore_hangups() {}
