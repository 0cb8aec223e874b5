//! Tests of the run folder that depend on its layout.

mod continuations;
mod crash;
mod hostile;
mod patches;
mod policies;
mod received;
mod round_trip;
mod sample;
mod spans;
