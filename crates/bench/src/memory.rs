//! Peak memory of the GPU's allocator, or of the process if the operating system reports it.
//!
//! Linux has a high-water mark of the resident set that a process can reset. Freed large buffers return to
//! the system; small ones may stay resident, so a peak is an upper bound.

use layerscope_engine::Device;
#[cfg(target_os = "linux")]
use std::fs;

/// Resets the peak.
///
/// # Errors
/// Why peaks are unknown.
pub(crate) fn reset_peak(device: &Device) -> Result<(), &'static str> {
    match device {
        Device::Cpu => reset_resident_peak(),
        Device::Cuda(device) => {
            device.reset_peak();
            Ok(())
        }
    }
}

/// Peak bytes since the last reset.
pub(crate) fn peak_bytes(device: &Device) -> Option<u64> {
    match device {
        Device::Cpu => resident_peak_bytes(),
        Device::Cuda(device) => Some(device.peak_bytes() as u64),
    }
}

#[cfg(target_os = "linux")]
fn reset_resident_peak() -> Result<(), &'static str> {
    layerscope_engine::return_freed_memory();
    match fs::write("/proc/self/clear_refs", "5") {
        Ok(()) if resident_peak_bytes().is_some() => Ok(()),
        Ok(()) => Err("peak memory is not known: /proc/self/status does not tell VmHWM"),
        Err(_) => Err("peak memory is not known: the system refuses to reset it (/proc/self/clear_refs)"),
    }
}

#[cfg(not(target_os = "linux"))]
fn reset_resident_peak() -> Result<(), &'static str> {
    Err("peak memory is not known: it is measured on Linux alone")
}

/// Peak resident bytes since the last reset.
fn resident_peak_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return fs::read_to_string("/proc/self/status").ok().as_deref().and_then(high_water_mark);
    #[cfg(not(target_os = "linux"))]
    None
}

/// `VmHWM` in `/proc/self/status`, which is in KiB.
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
        if reset_peak(&Device::Cpu).is_err() {
            return;
        }
        let buffer = vec![1u8; 64 << 20];
        assert!(peak_bytes(&Device::Cpu).is_some_and(|peak| peak >= buffer.len() as u64));
    }
}
