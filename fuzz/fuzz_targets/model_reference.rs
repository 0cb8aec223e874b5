//! The target `model_reference` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(model_reference::TARGET);
