//! The target `run_sets` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::SETS);
