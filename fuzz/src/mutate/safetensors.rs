//! Safetensors files: the JSON header is changed as JSON, its length stays right.

use super::{Random, bytes, json, one_in};

/// A file with its header or its bytes changed; `None` where the bytes are no such file.
pub fn changed(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (length, rest) = file.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, data) = rest.split_at_checked(length)?;
    if one_in(4, random) {
        let mut data = data.to_vec();
        bytes::change(&mut data, random);
        return Some(assembled(header, &data));
    }
    Some(assembled(&json::changed(header, random)?, data))
}

/// A file of a header and bytes.
pub fn assembled(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}
