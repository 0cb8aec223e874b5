//! Several files in one input: of each its number in a list of names, its length and its bytes.

use super::{Random, below};

/// The files of an input; what is cut short is left out.
pub fn split(mut input: &[u8]) -> Vec<(u8, &[u8])> {
    let mut files = vec![];
    while let Some((&[number, a, b, c], rest)) = input.split_first_chunk() {
        let length = u32::from_le_bytes([a, b, c, 0]) as usize;
        let Some((file, rest)) = rest.split_at_checked(length) else { break };
        files.push((number, file));
        input = rest;
    }
    files
}

/// The input of some files.
pub fn joined<'a>(files: impl IntoIterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut input = vec![];
    for (number, file) in files {
        input.push(number);
        input.extend(&(file.len() as u32).to_le_bytes()[..3]);
        input.extend(file);
    }
    input
}

/// One file of an input changed; `None` where there is none or it cannot be.
pub fn changed(
    input: &[u8],
    random: &mut Random,
    change: impl Fn(u8, &[u8], &mut Random) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let files = split(input);
    let chosen = below(files.len(), random);
    let (number, file) = *files.get(chosen)?;
    let file = change(number, file, random)?;
    let files = files.iter().enumerate();
    Some(joined(
        files.map(|(index, &(number, old))| (number, if index == chosen { file.as_slice() } else { old })),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_apart_again() {
        let files: [(u8, &[u8]); 3] = [(3, b"abc"), (0, b""), (9, &[7; 70_000])];
        let input = joined(files);
        assert_eq!(split(&input), files);
        assert_eq!(split(&input[..input.len() - 1]), files[..2]);
    }
}
