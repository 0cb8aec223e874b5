//! The header of a GGUF file: metadata, and where each tensor is. Nothing in it is trusted: every length is held against what
//! is left of the file before anything is made of that length.

use super::tensor_type::TensorType;
use super::value::{Array, Strings, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What a file says of itself.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: HashMap<String, Value>,
    pub(super) tensors: HashMap<String, TensorInfo>,
    /// Where the tensors' bytes begin.
    pub(super) data_start: usize,
}

/// What a file says of a tensor.
#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) kind: TensorType,
    /// Rows before columns: the reverse of the file's order.
    pub(super) shape: Vec<usize>,
    /// From the beginning of the tensors' bytes.
    pub(super) offset: u64,
}

/// Why a header cannot be read.
#[derive(Debug)]
pub(super) enum Problem {
    /// The file is cut short or was changed: what is wrong with it.
    Damaged(String),
    /// The file may be whole, but is not read: what follows its name in a sentence.
    Unsupported(String),
}

type Result<T> = std::result::Result<T, Problem>;

fn damaged<T>(what: impl Into<String>) -> Result<T> {
    Err(Problem::Damaged(what.into()))
}

/// As `ggml.h` has it.
const MOST_DIMENSIONS: u32 = 4;
/// Far beyond any vocabulary; an element takes up to 32 bytes of memory.
const MOST_ELEMENTS: usize = 1 << 24;
/// How deep arrays may lie in arrays.
const MOST_NESTED: usize = 8;

impl Header {
    /// Reads the header of a whole file, which begins with `GGUF`.
    pub(super) fn read(file: &[u8]) -> Result<Self> {
        let mut reader = Reader { rest: file, narrow_lengths: false };
        reader.take(4)?;
        match reader.u32()? {
            1 => reader.narrow_lengths = true,
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err(Problem::Unsupported(
                    "is big-endian; turn it around with `gguf-convert-endian`".to_owned(),
                ));
            }
            version => {
                let what = format!("is of version {version} of GGUF, which is not read; known: 1, 2, 3");
                return Err(Problem::Unsupported(what));
            }
        }
        let (tensor_count, entry_count) = (reader.length()?, reader.length()?);
        let mut metadata = HashMap::new();
        for _ in 0..entry_count {
            let key = reader.string()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, 0)?;
            match metadata.entry(key) {
                Entry::Occupied(known) => return damaged(format!("key `{}` occurs twice", known.key())),
                Entry::Vacant(free) => free.insert(value),
            };
        }
        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = reader.string()?;
            let info = reader.tensor_info(&name)?;
            match tensors.entry(name) {
                Entry::Occupied(known) => return damaged(format!("tensor `{}` occurs twice", known.key())),
                Entry::Vacant(free) => free.insert(info),
            };
        }
        let end = file.len() - reader.rest.len();
        match end.checked_next_multiple_of(alignment(&metadata)?) {
            Some(data_start) => Ok(Self { metadata, tensors, data_start }),
            None => damaged("its alignment is too large"),
        }
    }
}

/// Tensors' bytes begin at a multiple of this.
fn alignment(metadata: &HashMap<String, Value>) -> Result<usize> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(32) };
    let alignment = value.as_u64().and_then(|alignment| usize::try_from(alignment).ok());
    match alignment.filter(|alignment| alignment.is_power_of_two()) {
        Some(alignment) => Ok(alignment),
        None => damaged("its alignment is no power of two"),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    /// Version 1 has lengths of four bytes, later ones of eight.
    narrow_lengths: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => damaged("it ends within its header"),
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest.split_first_chunk() {
            Some((&taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => damaged("it ends within its header"),
        }
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A count or a size.
    fn length(&mut self) -> Result<usize> {
        let length = if self.narrow_lengths { u64::from(self.u32()?) } else { self.u64()? };
        match usize::try_from(length) {
            Ok(length) => Ok(length),
            Err(_) => damaged(format!("a length is {length}")),
        }
    }

    /// Some files have strings that end in 0, or that are not UTF-8.
    fn text(&mut self) -> Result<Cow<'a, str>> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..end]))
    }

    fn string(&mut self) -> Result<String> {
        self.text().map(Cow::into_owned)
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.bytes()?)),
            1 => Value::I8(i8::from_le_bytes(self.bytes()?)),
            2 => Value::U16(u16::from_le_bytes(self.bytes()?)),
            3 => Value::I16(i16::from_le_bytes(self.bytes()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.bytes()?)),
            6 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            7 => match self.bytes()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return damaged(format!("a truth value is {other}")),
            },
            8 => Value::String(self.string()?),
            9 if depth < MOST_NESTED => Value::Array(self.array(depth)?),
            9 => return damaged("arrays lie too deep within each other"),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.bytes()?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes()?)),
            other => return damaged(format!("a value is of type {other}, which there is not")),
        })
    }

    fn array(&mut self, depth: usize) -> Result<Array> {
        let kind = self.u32()?;
        let length = self.length()?;
        // No element takes less than a byte.
        if length > self.rest.len().min(MOST_ELEMENTS) {
            return damaged(format!("an array is of {length} elements"));
        }
        Ok(match kind {
            5 => {
                Array::I32((0..length).map(|_| Ok(i32::from_le_bytes(self.bytes()?))).collect::<Result<_>>()?)
            }
            6 => {
                Array::F32((0..length).map(|_| Ok(f32::from_le_bytes(self.bytes()?))).collect::<Result<_>>()?)
            }
            8 => {
                let mut texts = Strings::with_capacity(length);
                for _ in 0..length {
                    texts.push(&self.text()?);
                }
                Array::Strings(texts)
            }
            _ => Array::Values((0..length).map(|_| self.value(kind, depth + 1)).collect::<Result<_>>()?),
        })
    }

    fn tensor_info(&mut self, name: &str) -> Result<TensorInfo> {
        let dimensions = self.u32()?;
        if dimensions > MOST_DIMENSIONS {
            return damaged(format!("tensor `{name}` has {dimensions} dimensions"));
        }
        let mut shape = (0..dimensions).map(|_| self.length()).collect::<Result<Vec<usize>>>()?;
        shape.reverse();
        let kind = TensorType::of_number(self.u32()?).map_err(|kind| {
            Problem::Unsupported(format!(
                "tensor `{name}` is of {kind}, which is not read; use a file of another block type"
            ))
        })?;
        Ok(TensorInfo { kind, shape, offset: self.u64()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    }

    fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [&string(key)[..], &kind.to_le_bytes(), value].concat()
    }

    /// An entry of the table of tensors.
    pub(in super::super) fn tensor(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
        let mut bytes = string(name);
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend(shape.iter().flat_map(|dim| dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes
    }

    /// The header of a file.
    pub(in super::super) fn file(entries: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
        let counts = [tensors.len() as u64, entries.len() as u64].map(u64::to_le_bytes).concat();
        [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec(), counts, entries.concat(), tensors.concat()].concat()
    }

    /// An array of two arrays: of three bytes, and of one string.
    fn nested() -> Vec<u8> {
        let mut bytes = [9u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()].concat();
        bytes.extend([&0u32.to_le_bytes()[..], &3u64.to_le_bytes(), &[7, 8, 9]].concat());
        bytes.extend([&8u32.to_le_bytes()[..], &1u64.to_le_bytes(), &string("x\0")].concat());
        bytes
    }

    fn small() -> Vec<u8> {
        let entries = [
            entry("general.architecture", 8, &string("llama")),
            entry("general.alignment", 4, &64u32.to_le_bytes()),
            entry("a.float", 12, &1.5f64.to_le_bytes()),
            entry("a.truth", 7, &[1]),
            entry("nested", 9, &nested()),
        ];
        file(&entries, &[tensor("w", &[256, 3], 23, 0), tensor("ids", &[5], 26, 448)])
    }

    #[test]
    fn metadata_and_tensors_are_read() {
        let bytes = small();
        let header = Header::read(&bytes).unwrap();
        assert_eq!(header.metadata["general.architecture"].as_str(), Some("llama"));
        assert_eq!(header.metadata["a.float"], Value::F64(1.5));
        assert_eq!(header.metadata["a.truth"], Value::Bool(true));
        let bytes_of_it = [7, 8, 9].map(Value::U8).to_vec();
        let mut text = Strings::default();
        text.push("x");
        let nested = vec![Value::from(bytes_of_it), Value::Array(Array::Strings(text))];
        assert_eq!(header.metadata["nested"], Value::from(nested));
        let (w, ids) = (&header.tensors["w"], &header.tensors["ids"]);
        assert_eq!((w.kind.name, w.shape.as_slice(), w.offset), ("IQ4_XS", [3, 256].as_slice(), 0));
        assert_eq!((ids.kind.format(), ids.kind.block(), ids.offset), (None, (1, 4), 448));
        assert_eq!(header.data_start, bytes.len().next_multiple_of(64));
    }

    #[test]
    fn lengths_of_version_1_have_four_bytes() {
        let mut bytes =
            [&b"GGUF"[..], &1u32.to_le_bytes(), &1u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
        bytes.extend([&1u32.to_le_bytes()[..], b"w", &1u32.to_le_bytes(), &8u32.to_le_bytes()].concat());
        bytes.extend([&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
        assert_eq!(Header::read(&bytes).unwrap().tensors["w"].shape, [8]);
    }

    #[test]
    fn every_truncation_is_seen() {
        let bytes = small();
        for length in 4..bytes.len() {
            let problem = Header::read(&bytes[..length]).unwrap_err();
            assert!(matches!(problem, Problem::Damaged(_)), "{length}: {problem:?}");
        }
    }

    #[test]
    fn no_change_of_a_byte_is_fatal() {
        let bytes = small();
        let mut refused = 0;
        for at in 4..bytes.len() {
            for value in [0, 1, 9, 0x7f, 0x80, 0xff, bytes[at] ^ 1, bytes[at] ^ 4] {
                let mut changed = bytes.clone();
                changed[at] = value;
                refused += usize::from(Header::read(&changed).is_err());
            }
        }
        // Most of what is changed are lengths and types.
        assert!(refused > bytes.len(), "{refused} of {}", 8 * bytes.len());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refusal = |entries: &[Vec<u8>], tensors: &[Vec<u8>]| match Header::read(&file(entries, tensors))
            .unwrap_err()
        {
            Problem::Damaged(what) | Problem::Unsupported(what) => what,
        };
        let twice = [tensor("w", &[1], 0, 0), tensor("w", &[1], 0, 0)];
        assert!(refusal(&[], &twice).contains("`w` occurs twice"));
        assert!(refusal(&[], &[tensor("w", &[1; 5], 0, 0)]).contains("5 dimensions"));
        for alignment in [0u32, 48] {
            let entry = entry("general.alignment", 4, &alignment.to_le_bytes());
            assert!(refusal(&[entry], &[]).contains("alignment"));
        }
        let large = [&0u32.to_le_bytes()[..], &(1u64 << 60).to_le_bytes()].concat();
        assert!(refusal(&[entry("a", 9, &large)], &[]).contains("elements"));
        let deep = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat().repeat(40);
        assert!(refusal(&[entry("a", 9, &deep)], &[]).contains("deep"));
    }

    #[test]
    fn types_that_are_not_read_are_named() {
        for (kind, says) in [(4, "Q4_2"), (31, "Q4_0_4_4"), (40, "NVFP4"), (99, "number 99")] {
            let problem = Header::read(&file(&[], &[tensor("blk.0.w", &[32], kind, 0)])).unwrap_err();
            let Problem::Unsupported(what) = problem else { unreachable!() };
            assert!(what.contains(says) && what.contains("blk.0.w"), "{what}");
        }
        let other_endian = [&b"GGUF"[..], &3u32.to_be_bytes(), &[0; 16]].concat();
        assert!(
            matches!(Header::read(&other_endian), Err(Problem::Unsupported(what)) if what.contains("big-endian"))
        );
    }
}
