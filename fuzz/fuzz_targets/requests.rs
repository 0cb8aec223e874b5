//! The target `requests` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(requests::TARGET);
