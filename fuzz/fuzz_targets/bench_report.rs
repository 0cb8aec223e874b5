//! The target `bench_report` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::BENCH_REPORT);
