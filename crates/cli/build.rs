//! Builds the viewer for browsers in, where LAYERSCOPE_WEB names the folder that app/web/build.sh has made, from the root of the sources
//! on.

// Cargo reads what is printed.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed=LAYERSCOPE_WEB");
    let mut page = String::from("&[\n");
    if let Some(folder) = env::var_os("LAYERSCOPE_WEB").filter(|folder| !folder.is_empty()) {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let Ok(folder) = fs::canonicalize(sources.join(&folder)) else {
            println!("cargo::error=LAYERSCOPE_WEB names {folder:?}, and the sources have no such folder");
            return Ok(());
        };
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files: Vec<PathBuf> = vec![];
        for entry in fs::read_dir(folder)? {
            files.push(entry?.path());
        }
        files.retain(|path| path.extension().is_some_and(|extension| extension == "gz"));
        files.sort();
        if files.is_empty() {
            println!(
                "cargo::error=the folder that LAYERSCOPE_WEB names holds no page; make it with app/web/build.sh"
            );
        }
        for path in &files {
            let name = path.file_stem().unwrap_or_default();
            page += &format!("    PageFile {{ name: {name:?}, gzip: include_bytes!({path:?}) }},\n");
        }
    }
    page += "]\n";
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("page.rs"), page)
}
