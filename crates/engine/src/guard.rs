//! Libraries that panic on hostile bytes: for us these are bad input like any other.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` of a library that may panic on the bytes of a file.
///
/// # Errors
/// The library's error or panic message.
pub fn guarded<T, E: Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("it cannot be decoded")
            .to_owned()),
    }
}

/// Whether this thread is within [`guarded`] work, whose panics a program's panic hook may leave unsaid.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_messages() {
        assert_eq!(guarded(|| Ok::<_, String>(3)), Ok(3));
        assert_eq!(guarded(|| Err::<(), _>("wrong")), Err("wrong".to_owned()));
        assert_eq!(guarded::<(), String>(|| panic!("at byte {}", 7)), Err("at byte 7".to_owned()));
        assert!(!is_guarded());
    }
}
