//! The target `run_table` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::TABLE);
