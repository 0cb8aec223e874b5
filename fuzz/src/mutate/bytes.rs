//! Bytes without a form.

use super::{Random, below, integer, one_in};
use rand::RngExt;

/// Changes a place or two of some bytes.
pub fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=below(2, random) {
        change_once(bytes, random);
    }
}

fn change_once(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = below(bytes.len(), random);
    let end = (at + 1 + below(16, random)).min(bytes.len());
    match random.random_range(0..7) {
        _ if bytes.is_empty() => bytes.extend((0..8).map(|_| random.random::<u8>())),
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = random.random(),
        2 => overwrite_with_integer(bytes, at, random),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let copy = bytes[at..end].to_vec();
            let to = below(bytes.len(), random);
            bytes.splice(to..to, copy);
        }
        5 => bytes.insert(at, random.random()),
        _ if one_in(4, random) => bytes.truncate(at),
        _ => bytes[at..end].reverse(),
    }
}

fn overwrite_with_integer(bytes: &mut [u8], at: usize, random: &mut Random) {
    let place = &mut bytes[at..];
    let width = [1, 2, 4, 8][below(4, random)].min(place.len());
    let mut near = [0; 8];
    near[..width].copy_from_slice(&place[..width]);
    let number = integer(u64::from_le_bytes(near), random);
    let number = if one_in(4, random) { number.to_be_bytes() } else { number.to_le_bytes() };
    place[..width].copy_from_slice(&number[..width]);
}
