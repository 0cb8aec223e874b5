//! Mutations that keep the form of a file, so that more than its first check sees them.

pub mod bytes;
pub mod gguf;
pub mod jinja;
pub mod json;
pub mod parquet;
pub mod records;
pub mod safetensors;
pub mod text;

use rand::RngExt;

/// Random numbers; the same seed gives the same.
pub type Random = rand_chacha::ChaCha8Rng;

/// One of the items.
pub(crate) fn pick<T: Clone>(items: &[T], random: &mut Random) -> T {
    items[random.random_range(0..items.len())].clone()
}

/// An index below `len`; 0 where there is none.
pub(crate) fn below(len: usize, random: &mut Random) -> usize {
    if len == 0 { 0 } else { random.random_range(0..len) }
}

/// True once in `n` times.
pub(crate) fn one_in(n: u32, random: &mut Random) -> bool {
    random.random_range(0..n) == 0
}

/// A whole number like `near`, or one at which arithmetic or a check may break.
pub(crate) fn integer(near: u64, random: &mut Random) -> u64 {
    match random.random_range(0..9) {
        0 => near.wrapping_add(1),
        1 => near.wrapping_sub(1),
        2 => near.wrapping_mul(2),
        3 => near ^ (1 << random.random_range(0..64)),
        4 => random.random_range(0..17),
        5 => 1 << random.random_range(0..64),
        6 => (1u64 << random.random_range(0..64)).wrapping_sub(1),
        7 => u64::MAX - random.random_range(0..3),
        _ => random.random(),
    }
}

/// A number like `near`, or one at which arithmetic or a check may break.
pub(crate) fn real(near: f64, random: &mut Random) -> f64 {
    const SPECIAL: [f64; 12] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MAX,
        f64::MIN_POSITIVE,
        5e-324,
        1e38,
        1e-9,
    ];
    match random.random_range(0..5) {
        0 => -near,
        1 => near * 2.0,
        2 => near + 1.0,
        3 => f64::from_bits(random.random()),
        _ => pick(&SPECIAL, random),
    }
}
