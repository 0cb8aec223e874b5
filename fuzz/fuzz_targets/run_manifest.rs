//! The target `run_manifest` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::MANIFEST);
