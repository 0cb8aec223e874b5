//! The target `chat_template` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(chat_template::TARGET);
