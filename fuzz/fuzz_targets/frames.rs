//! The target `frames` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(frames::TARGET);
