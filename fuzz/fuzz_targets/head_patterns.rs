//! The target `head_patterns` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(adapter::HEAD_PATTERNS);
