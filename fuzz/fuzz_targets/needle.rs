//! The target `needle` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(needle::TARGET);
