//! The target `policies` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(policies::TARGET);
