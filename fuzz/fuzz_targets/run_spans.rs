//! The target `run_spans` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::SPANS);
