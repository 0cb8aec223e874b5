//! GGUF files, taken apart and put together again: header, metadata, tensors' table and bytes stay in their places.

use super::{Random, below, bytes, integer, one_in, pick, text};
use rand::RngExt;

/// A file in parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Metadata in file order.
    pub entries: Vec<(Vec<u8>, Value)>,
    /// The tensors' table in file order.
    pub tensors: Vec<Tensor>,
    /// The tensors' bytes.
    pub data: Vec<u8>,
}

/// A value of metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Number or truth: its type and bytes.
    Fixed(u32, Vec<u8>),
    /// A string.
    Text(Vec<u8>),
    /// The type of the elements, and these.
    Array(u32, Vec<Value>),
}

/// An entry of the tensors' table.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    name: Vec<u8>,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const ALIGNMENT: usize = 32;
/// Types of metadata and of tensors, known and not.
const KINDS: u32 = 44;

/// A file with a part or two changed; `None` where the bytes are no GGUF file.
pub fn changed(file: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut gguf = Gguf::parse(file)?;
    for _ in 0..=below(2, random) {
        gguf.change(random);
    }
    Some(gguf.to_bytes())
}

impl Gguf {
    /// Takes a file of version 2 or 3 apart.
    pub fn parse(file: &[u8]) -> Option<Self> {
        let mut reader = Reader(file);
        if reader.take(4)? != b"GGUF" || !(2..=3).contains(&reader.u32()?) {
            return None;
        }
        let (tensors, entries) = (reader.u64()?, reader.u64()?);
        let entries =
            (0..entries).map(|_| Some((reader.text()?, reader.kind_and_value()?))).collect::<Option<_>>()?;
        let tensors = (0..tensors).map(|_| reader.tensor()).collect::<Option<_>>()?;
        let start = (file.len() - reader.0.len()).next_multiple_of(ALIGNMENT);
        Some(Self { entries, tensors, data: file.get(start..).unwrap_or_default().to_vec() })
    }

    /// The file of these parts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        for count in [self.tensors.len(), self.entries.len()] {
            out.extend((count as u64).to_le_bytes());
        }
        for (key, value) in &self.entries {
            write_text(key, &mut out);
            out.extend(value.kind().to_le_bytes());
            value.write(&mut out);
        }
        for tensor in &self.tensors {
            write_text(&tensor.name, &mut out);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            out.extend(tensor.dimensions.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(&self.data);
        out
    }

    /// Sets a string of the metadata.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.entries.retain(|(known, _)| known != key.as_bytes());
        self.entries.push((key.into(), Value::Text(value.into())));
    }

    fn change(&mut self, random: &mut Random) {
        let (entry, other) = (below(self.entries.len(), random), below(self.entries.len(), random));
        match random.random_range(0..12) {
            0..=4 if !self.entries.is_empty() => self.entries[entry].1.change(random),
            5 if !self.entries.is_empty() => drop(self.entries.remove(entry)),
            6 if !self.entries.is_empty() => self.entries[entry].1 = self.entries[other].1.clone(),
            7 if !self.entries.is_empty() => change_name(&mut self.entries[entry].0, random),
            8 => self.change_tensors(random),
            9 | 10 if !self.tensors.is_empty() => {
                let tensor = below(self.tensors.len(), random);
                self.tensors[tensor].change(random);
            }
            _ => bytes::change(&mut self.data, random),
        }
    }

    fn change_tensors(&mut self, random: &mut Random) {
        if self.tensors.is_empty() {
            return;
        }
        let (at, other) = (below(self.tensors.len(), random), below(self.tensors.len(), random));
        match random.random_range(0..4) {
            0 => drop(self.tensors.remove(at)),
            1 => {
                let copy =
                    Tensor { name: [&self.tensors[at].name[..], b"2"].concat(), ..self.tensors[at].clone() };
                self.tensors.push(copy);
            }
            2 => self.tensors[at].dimensions = self.tensors[other].dimensions.clone(),
            _ => self.tensors[at].offset = self.tensors[other].offset,
        }
    }
}

impl Tensor {
    fn change(&mut self, random: &mut Random) {
        let at = below(self.dimensions.len(), random);
        match random.random_range(0..6) {
            0 | 1 if !self.dimensions.is_empty() => {
                self.dimensions[at] = integer(self.dimensions[at], random)
            }
            2 => self.dimensions.reverse(),
            3 => self.kind = random.random_range(0..KINDS),
            4 => self.offset = integer(self.offset, random),
            _ if one_in(2, random) => self.dimensions.push(random.random_range(0..3)),
            _ => change_name(&mut self.name, random),
        }
    }
}

fn change_name(name: &mut Vec<u8>, random: &mut Random) {
    const PARTS: [&str; 6] = ["llama.", "gemma3.", "general.", "tokenizer.", "blk.0.", ".weight"];
    *name = text::changed(&String::from_utf8_lossy(name), &PARTS, random).into_bytes();
}

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Self::Fixed(kind, _) => *kind,
            Self::Text(_) => TEXT,
            Self::Array(..) => ARRAY,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Fixed(_, bytes) => out.extend(bytes),
            Self::Text(text) => write_text(text, out),
            Self::Array(kind, items) => {
                out.extend(kind.to_le_bytes());
                out.extend((items.len() as u64).to_le_bytes());
                items.iter().for_each(|item| item.write(out));
            }
        }
    }

    /// Changes the value, at times to one of another type.
    fn change(&mut self, random: &mut Random) {
        match self {
            _ if one_in(10, random) => *self = Self::invented(random),
            Self::Fixed(_, number) => {
                let mut near = [0; 8];
                near[..number.len()].copy_from_slice(number);
                let changed = integer(u64::from_le_bytes(near), random).to_le_bytes();
                number.iter_mut().zip(changed).for_each(|(old, new)| *old = new);
            }
            Self::Text(words) => {
                *words = text::changed(&String::from_utf8_lossy(words), &[], random).into_bytes()
            }
            Self::Array(_, items) => {
                let (at, to) = (below(items.len(), random), below(items.len(), random));
                match random.random_range(0..6) {
                    _ if items.is_empty() => *self = Self::invented(random),
                    0 => drop(items.remove(at)),
                    1 => items.insert(to, items[at].clone()),
                    2 => items.truncate(at),
                    3 => items.swap(at, to),
                    _ => items[at].change_within(random),
                }
            }
        }
    }

    /// Changes an element of an array, which keeps its type.
    fn change_within(&mut self, random: &mut Random) {
        let kind = self.kind();
        let mut changed = self.clone();
        changed.change(random);
        if changed.kind() == kind {
            *self = changed;
        }
    }

    fn invented(random: &mut Random) -> Self {
        let number = integer(1, random).to_le_bytes();
        match random.random_range(0..14) {
            TEXT => Self::Text(pick(&text::HOSTILE, random).as_bytes().to_vec()),
            ARRAY => Self::Array(4, vec![Self::Fixed(4, number[..4].to_vec()); below(9, random)]),
            kind => Self::Fixed(kind, number[..width(kind).unwrap_or(8)].to_vec()),
        }
    }
}

/// Bytes of a number or truth.
fn width(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.u64()?).ok()?;
        Some(self.take(length)?.to_vec())
    }

    fn kind_and_value(&mut self) -> Option<Value> {
        let kind = self.u32()?;
        self.value(kind, 0)
    }

    fn value(&mut self, kind: u32, depth: usize) -> Option<Value> {
        match kind {
            TEXT => Some(Value::Text(self.text()?)),
            ARRAY if depth < 16 => {
                let (kind, length) = (self.u32()?, self.u64()?);
                Some(Value::Array(
                    kind,
                    (0..length).map(|_| self.value(kind, depth + 1)).collect::<Option<_>>()?,
                ))
            }
            _ => Some(Value::Fixed(kind, self.take(width(kind)?)?.to_vec())),
        }
    }

    fn tensor(&mut self) -> Option<Tensor> {
        let name = self.text()?;
        let dimensions = self.u32()?.min(64);
        let dimensions = (0..dimensions).map(|_| self.u64()).collect::<Option<_>>()?;
        Some(Tensor { name, dimensions, kind: self.u32()?, offset: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_engine::GgufFile;
    use rand::SeedableRng;

    const FILE: &[u8] = include_bytes!("../../../fixtures/families/phi4/model.gguf");

    #[test]
    fn parts_come_together_again() {
        let parts = Gguf::parse(FILE).expect("a file");
        assert_eq!(Gguf::parse(&parts.to_bytes()), Some(parts));
    }

    #[test]
    fn most_mutants_pass_the_header() {
        let passes = |seed: &u64| {
            let mutant = changed(FILE, &mut Random::seed_from_u64(*seed)).expect("a file");
            GgufFile::in_memory("mutant.gguf", mutant).is_ok()
        };
        let passed = (0..200).filter(passes).count();
        assert!(passed > 120, "{passed} of 200");
    }
}
