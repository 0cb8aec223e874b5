//! Compiles the GPU kernels: with nvcc where the feature `cuda` is on, for the CPU where `cuda-emulation` is.

// Cargo reads and shows what a build script prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for source in sources(Path::new("src")) {
        println!("cargo::rerun-if-changed={}", source.display());
    }
    #[cfg(feature = "cuda-emulation")]
    emulation::build();
    #[cfg(feature = "cuda")]
    nvcc::build();
}

/// Every file that kernels are made of.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path
            .extension()
            .is_some_and(|end| ["cu", "cuh", "cpp", "h", "digits"].iter().any(|known| end == *known))
        {
            files.push(path);
        }
    }
    files
}

#[cfg(feature = "cuda-emulation")]
mod emulation {
    pub(crate) fn build() {
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .flag_if_supported("-fno-strict-aliasing")
            .flag_if_supported("-Wno-unused-function")
            // An address that a GPU would refuse is a trap.
            .flag_if_supported("-fsanitize=alignment")
            .flag_if_supported("-fsanitize-undefined-trap-on-error")
            .file("src/cuda/emulator.cpp")
            .compile("layerscope_emulator");
    }
}

#[cfg(feature = "cuda")]
mod nvcc {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Architectures with machine code of their own; the first also goes in as PTX, for the ones that are not listed.
    const ARCHITECTURES: &str = "80,86,89,90,100,120";

    pub(crate) fn build() {
        for variable in ["CUDA_HOME", "CUDA_PATH", "LAYERSCOPE_CUDA_ARCHITECTURES"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        let architectures =
            std::env::var("LAYERSCOPE_CUDA_ARCHITECTURES").unwrap_or_else(|_| ARCHITECTURES.to_owned());
        let mut command = Command::new(compiler());
        command.args(["-std=c++17", "-O3", "-fatbin", "-Xptxas", "-v", "-o"]).arg(out.join("kernels.fatbin"));
        for (index, architecture) in architectures.split(',').map(str::trim).enumerate() {
            command.arg(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}"));
            if index == 0 {
                command.arg(format!("-gencode=arch=compute_{architecture},code=compute_{architecture}"));
            }
        }
        let output = command.arg("src/cuda/kernels.cu").output();
        let output = match output {
            Ok(output) => output,
            Err(error) => refuse(&format!(
                "the feature `cuda` needs nvcc of a CUDA toolkit from 13.0 on: install one and put nvcc into PATH, \
                 or set CUDA_HOME ({error})"
            )),
        };
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            refuse(&format!("nvcc could not compile the kernels:\n{report}"));
        }
        // Registers, shared memory and spills of each kernel.
        if let Err(error) = std::fs::write(out.join("kernels.ptxas"), report) {
            refuse(&format!("cannot write the compiler's report: {error}"));
        }
    }

    fn compiler() -> PathBuf {
        let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
        let mut candidates = homes.map(|home| Path::new(&home).join("bin/nvcc"));
        candidates.find(|path| path.exists()).unwrap_or_else(|| "nvcc".into())
    }

    fn refuse(sentence: &str) -> ! {
        eprintln!("{sentence}");
        std::process::exit(1);
    }
}
