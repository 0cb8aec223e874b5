//! Writes each target's seeds into a folder of its name: `seeds CORPUS`.

use layerscope_fuzz::TARGETS;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).expect("seeds CORPUS"));
    for target in TARGETS {
        let folder = corpus.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
