//! The target `hub_listing` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(hub_listing::TARGET);
