//! The target `report` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(reports::REPORT);
