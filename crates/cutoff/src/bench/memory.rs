//! The process's peak memory, where the operating system counts it.
//!
//! Linux keeps the resident set's high-water mark and lets a process reset it. What an earlier generation freed is given
//! back for the large buffers that count, but small ones may linger, so a peak is an upper bound.

#[cfg(target_os = "linux")]
use std::fs;

/// Forgets the peak so far.
///
/// # Errors
/// Why peaks are not known.
#[cfg(target_os = "linux")]
pub(super) fn reset_peak() -> Result<(), &'static str> {
    layerscope_engine::return_freed_memory();
    match fs::write("/proc/self/clear_refs", "5") {
        Ok(()) if peak_bytes().is_some() => Ok(()),
        Ok(()) => Err("peak memory is not known: /proc/self/status does not tell VmHWM"),
        Err(_) => Err("peak memory is not known: the system refuses to reset it (/proc/self/clear_refs)"),
    }
}

/// Forgets the peak so far.
///
/// # Errors
/// Why peaks are not known.
#[cfg(not(target_os = "linux"))]
pub(super) fn reset_peak() -> Result<(), &'static str> {
    Err("peak memory is not known: it is measured on Linux alone")
}

/// Most bytes resident since the last reset.
pub(super) fn peak_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return fs::read_to_string("/proc/self/status").ok().as_deref().and_then(high_water_mark);
    #[cfg(not(target_os = "linux"))]
    None
}

/// `VmHWM` of the text of `/proc/self/status`, which is in KiB.
#[cfg(any(target_os = "linux", test))]
fn high_water_mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read() {
        let status = "Name:\tlayerscope\nVmPeak:\t  900 kB\nVmHWM:\t     512 kB\nThreads:\t2\n";
        assert_eq!(high_water_mark(status), Some(512 << 10));
        assert_eq!(high_water_mark("VmHWM: much\n"), None);
        assert_eq!(high_water_mark(""), None);
    }

    #[test]
    fn a_large_buffer_is_seen() {
        if reset_peak().is_err() {
            return;
        }
        let buffer = vec![1u8; 64 << 20];
        assert!(peak_bytes().is_some_and(|peak| peak >= buffer.len() as u64));
    }
}
