//! The target `run_patches` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(run_files::PATCHES);
