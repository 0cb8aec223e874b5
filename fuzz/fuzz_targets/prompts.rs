//! The target `prompts` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(prompts::TARGET);
