//! Where a model runs.

use crate::memory::available_memory;
use crate::{Error, Result};
use layerscope_kernels::cuda;
use std::fmt;
use std::str::FromStr;

/// A processor that models run on.
#[derive(Debug, Clone, Default)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda(cuda::Device),
}

/// Which one is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum DeviceChoice {
    /// The first GPU where there is one that can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
}

impl DeviceChoice {
    /// The device itself.
    ///
    /// # Errors
    /// [`Error::Input`] where it is not there, with the mend; `auto` falls back on the CPU instead.
    pub fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(index) => Ok(Device::Cuda(cuda::Device::open(index)?)),
            Self::Auto => Ok(self.preferred().open().unwrap_or(Device::Cpu)),
        }
    }

    /// What `auto` tries first: the first GPU where there is one.
    pub fn preferred(self) -> Self {
        match self {
            Self::Auto if cuda::Device::count() > 0 => Self::Cuda(0),
            Self::Auto => Self::Cpu,
            named => named,
        }
    }
}

impl Device {
    /// Memory that can be taken, bytes; `None` where the system does not tell.
    ///
    /// # Errors
    /// [`Error::Failure`] where the GPU fails.
    pub fn free_memory(&self) -> Result<Option<u64>> {
        match self {
            Self::Cpu => Ok(available_memory()),
            Self::Cuda(device) => Ok(Some(device.memory()?.0 as u64)),
        }
    }

    /// Its name on the command line and in files, without a number.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda(_) => "cuda",
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let number = match name {
            "auto" => return Ok(Self::Auto),
            "cpu" => return Ok(Self::Cpu),
            "cuda" => Some(0),
            _ => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number.map(Self::Cuda).ok_or_else(|| {
            Error::input(format!("device `{name}` is none of auto, cpu, cuda, cuda:0, cuda:1 …"))
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("CPU"),
            Self::Cuda(device) => f.write_str(&device.information().name),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for name in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse::<DeviceChoice>().unwrap(), DeviceChoice::Cuda(0));
        for name in ["gpu", "cuda:", "cuda:-1", "CUDA", ""] {
            assert!(name.parse::<DeviceChoice>().is_err(), "{name}");
        }
        assert!(matches!(DeviceChoice::Cpu.open().unwrap(), Device::Cpu));
    }
}
