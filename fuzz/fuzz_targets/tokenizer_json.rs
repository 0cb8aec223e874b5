//! The target `tokenizer_json` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(tokenizer_json::TARGET);
