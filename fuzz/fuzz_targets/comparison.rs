//! The target `comparison` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(reports::COMPARISON);
