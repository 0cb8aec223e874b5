//! The target `run_continuations` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::CONTINUATIONS);
