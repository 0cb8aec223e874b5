//! The target `safetensors` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(safetensors::TARGET);
