//! The target `run_policies` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::POLICIES);
