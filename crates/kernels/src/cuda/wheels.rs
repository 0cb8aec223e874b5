//! cuBLAS of NVIDIA's own wheels, which pip installs into the environment that the program is in.

use cudarc::cublas::sys;
use std::path::{Path, PathBuf};

/// Folders of wheels for CUDA 13 and for CUDA 12, and the libraries in them, each behind the one that it needs.
const WHEELS: [(&str, [&str; 2]); 2] = [
    ("cu13/lib", ["libcublasLt.so.13", "libcublas.so.13"]),
    ("cublas/lib", ["libcublasLt.so.12", "libcublas.so.12"]),
];

/// Whether cuBLAS can be loaded: from where the system's loader finds libraries, else from a wheel.
pub(super) fn cublas_is_present() -> bool {
    // SAFETY: only looks whether the library can be loaded.
    let is_present = || unsafe { sys::is_culib_present() };
    is_present()
        || std::env::current_exe().is_ok_and(|program| {
            program.parent().is_some_and(|scripts| packages(scripts).iter().any(|folder| load(folder)))
        }) && is_present()
}

/// Loads cuBLAS of a folder of packages for good: the loader then finds it by its name, wherever it is.
fn load(packages: &Path) -> bool {
    WHEELS.iter().any(|(folder, libraries)| {
        libraries.iter().all(|library| {
            let path = packages.join("nvidia").join(folder).join(library);
            // SAFETY: what the library runs as it is loaded is NVIDIA's, as when the system's loader finds it.
            path.is_file() && unsafe { libloading::Library::new(path) }.map(std::mem::forget).is_ok()
        })
    })
}

/// Where the packages of an environment are whose programs are in `scripts`.
fn packages(scripts: &Path) -> Vec<PathBuf> {
    let Some(prefix) = scripts.parent() else { return vec![] };
    let mut found = vec![];
    for library in ["lib", "lib64", "local/lib"] {
        let versions = std::fs::read_dir(prefix.join(library)).into_iter().flatten().flatten();
        let versions = versions.filter(|entry| entry.file_name().to_string_lossy().starts_with("python"));
        for version in versions {
            found.extend(["site-packages", "dist-packages"].map(|name| version.path().join(name)));
        }
    }
    // `pip install --target`.
    found.push(prefix.to_owned());
    found.retain(|folder| folder.join("nvidia").is_dir());
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::packages;

    #[test]
    fn packages_are_found_from_the_program() {
        let home = std::env::temp_dir().join(format!("layerscope-wheels-{}", std::process::id()));
        let make = |path: &str| std::fs::create_dir_all(home.join(path)).unwrap();
        make("venv/bin");
        make("venv/lib/python3.11/site-packages/nvidia");
        make("venv/lib/python3.12/site-packages/numpy");
        make("venv/lib/other/site-packages/nvidia");
        make("target/bin");
        make("target/nvidia");
        make("none/bin");
        let found = |environment: &str| packages(&home.join(environment).join("bin"));
        assert_eq!(found("venv"), [home.join("venv/lib/python3.11/site-packages")]);
        assert_eq!(found("target"), [home.join("target")]);
        assert!(found("none").is_empty());
        std::fs::remove_dir_all(home).unwrap();
    }
}
