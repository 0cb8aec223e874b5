//! The target `tasks` as a program of libFuzzer.

#![no_main]

layerscope_fuzz::fuzz!(eval::TASKS);
