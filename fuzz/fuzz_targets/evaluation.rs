//! The target `evaluation` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(eval::EVALUATION);
