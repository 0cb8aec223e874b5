//! The target `gguf` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(gguf::TARGET);
