//! A table of a run folder: the run at `LAYERSCOPE_FUZZ_RUN` (record one with `layerscope demo`), one table replaced.
#![no_main]

use layerscope_diagnostics::run::Run;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;

fuzz_target!(|data: &[u8]| {
    let run = PathBuf::from(std::env::var_os("LAYERSCOPE_FUZZ_RUN").expect("LAYERSCOPE_FUZZ_RUN names a run folder"));
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let tables = ["prompts", "layers", "heads", "steps", "tokens", "frontier", "knockout", "spans"];
    let Some((chosen, table)) = data.split_first() else { return };
    for file in std::fs::read_dir(&run).expect("the run folder").flatten() {
        let _ = std::fs::copy(file.path(), folder.path().join(file.file_name()));
    }
    let name = format!("{}.parquet", tables[*chosen as usize % tables.len()]);
    std::fs::write(folder.path().join(name), table).expect("room for a small file");
    if let Ok(run) = Run::open(folder.path()) {
        let _ = run.show();
    }
});
