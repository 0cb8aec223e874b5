//! Tests of the run folder, which need to see its layout.

mod continuations;
mod crash;
mod hostile;
mod received;
mod round_trip;
mod sample;
mod spans;
