//! The target `config_json` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(config_json::TARGET);
