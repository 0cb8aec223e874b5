//! The target `lm_eval` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(eval::HARNESS);
