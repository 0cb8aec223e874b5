//! What layerscope reads from others, given hostile bytes: a [`Target`] for each kind of file or text.
//!
//! With the feature `fuzzer` each target is a program of libFuzzer (`fuzz/run.sh`); without it, `tests/seeds.rs` runs every
//! target on its seeds, on what was once found and on a few mutants.

pub mod mutate;
mod recorded;
mod scratch;
pub mod targets;

pub use targets::TARGETS;

use mutate::Random;

/// A reader of foreign bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the program and of the folder of its corpus.
    pub name: &'static str,
    /// Reads an input as the binary would; panics where something is wrong.
    pub read: fn(&[u8]),
    /// Another input of the same form; `None` where the input has no such form.
    pub mutate: fn(&[u8], &mut Random) -> Option<Vec<u8>>,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// The target of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// Panics that the product catches, of libraries on bytes of files, are no findings.
pub fn ignore_guarded_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !layerscope_engine::is_guarded() {
            hook(panic);
        }
    }));
}

/// The program that fuzzes the target of a path within `targets`. It links nothing that only others need.
#[macro_export]
macro_rules! fuzz {
    ($($target:tt)*) => {
        const TARGET: $crate::Target = $crate::targets::$($target)*;

        libfuzzer_sys::fuzz_target!(
            init: $crate::ignore_guarded_panics(),
            |data: &[u8]| (TARGET.read)(data)
        );

        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            match $crate::mutated(&TARGET, &data[..size], seed) {
                Some(mutant) if mutant.len() <= max_size => {
                    data[..mutant.len()].copy_from_slice(&mutant);
                    mutant.len()
                }
                _ => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
            }
        });
    };
}

/// An input of the target's form made of another; `None` where bytes are to be changed blindly, once in ten times at least.
pub fn mutated(target: &Target, input: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut random = <Random as rand::SeedableRng>::seed_from_u64(seed.into());
    if mutate::one_in(10, &mut random) { None } else { (target.mutate)(input, &mut random) }
}
