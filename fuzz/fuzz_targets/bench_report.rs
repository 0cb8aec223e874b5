//! Measurements in a run folder.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join(layerscope_bench::FILE_NAME), data).expect("room for a small file");
    let _ = layerscope_bench::read_of_run(folder.path());
});
