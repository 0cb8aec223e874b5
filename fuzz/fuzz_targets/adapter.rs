//! The target `adapter` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(adapter::ADAPTER);
