//! The manifest of a run folder.
#![no_main]

use layerscope_diagnostics::run::{MANIFEST, Run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    std::fs::write(folder.path().join(MANIFEST), data).expect("room for a small file");
    if let Ok(run) = Run::open(folder.path()) {
        let _ = run.show();
    }
});
