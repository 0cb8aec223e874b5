//! A prompt file.
#![no_main]

use layerscope_diagnostics::prompts::parse_prompts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = parse_prompts("fuzzed.jsonl", data);
});
