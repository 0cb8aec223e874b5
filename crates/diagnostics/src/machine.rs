//! The machine of a measurement.

use layerscope_engine::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A machine, as far as times depend on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// The processor's name, where the system tells it.
    pub cpu: Option<String>,
    /// Threads that compute.
    pub threads: usize,
    /// Operating system, e.g. `linux`.
    pub os: String,
    /// Instruction set, e.g. `x86_64`.
    pub architecture: String,
    /// The GPU that the model ran on and the CUDA version of its driver, e.g. `NVIDIA H200, CUDA 13.0`; absent on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

impl Machine {
    /// The current machine. Call it after the thread pool is created: it queries the pool and would create
    /// one.
    pub fn this() -> Self {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok();
        Self {
            cpu: cpu.as_deref().and_then(model_name),
            threads: rayon::current_num_threads(),
            os: std::env::consts::OS.to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            gpu: None,
        }
    }

    /// The current machine, with the device that a model runs on.
    pub fn with(device: &Device) -> Self {
        let gpu = match device {
            Device::Cpu => None,
            Device::Cuda(device) => {
                let information = device.information();
                Some(format!("{}, CUDA {}", information.name, information.driver))
            }
        };
        Self { gpu, ..Self::this() }
    }
}

/// `model name` in `/proc/cpuinfo`.
fn model_name(cpuinfo: &str) -> Option<String> {
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"))?;
    let name = name.trim_start().strip_prefix(':')?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_name_is_read() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 9454\nflags\t: fpu\n";
        assert_eq!(model_name(text).as_deref(), Some("AMD EPYC 9454"));
        assert_eq!(model_name("CPU part\t: 0xd0c\n"), None);
        assert!(Machine::this().threads > 0);
    }
}
