//! Weights and metadata of a GGUF file, memory-mapped or embedded in the program.

mod header;
mod tensor_type;
mod value;

use self::header::{Header, Problem};
use super::bytes::FileBytes;
use super::file::{FileTensor, FileWeights, TensorBytes, TensorFiles};
use super::huge_pages::FileMatrix;
use super::linear::dequantized;
use super::mapped::FileState;
use super::place::{Place, RowOrder};
use super::{Weight, WeightSource};
use crate::config::RopeFactors;
use crate::family::Family;
use crate::model::WeightType;
use crate::{Error, ModelConfig, Result};
use layerscope_kernels::matmul::Layout;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use value::Strings;
pub use value::{Array, Value};

/// An opened GGUF file.
pub struct GgufFile {
    path: PathBuf,
    bytes: Arc<FileBytes>,
    header: Header,
    layout: Layout,
}

impl GgufFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::MalformedFile`] where the file is empty, cut short or not a GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(path.to_owned(), FileBytes::map(path)?)
    }

    /// Reads a file in memory; `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`Error::MalformedFile`].
    pub fn in_memory(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::read(PathBuf::from(name), FileBytes::InMemory(bytes.into()))
    }

    fn read(path: PathBuf, bytes: FileBytes) -> Result<Self> {
        let data = bytes.as_ref();
        if data.len() < 4 || &data[..4] != b"GGUF" {
            let problem = "not a GGUF file (it does not begin with `GGUF`); give a .gguf file or a folder with config.json, \
                           tokenizer.json and safetensors";
            return Err(Error::malformed(&path, problem));
        }
        let header = Header::read(data).map_err(|problem| match problem {
            Problem::Damaged(what) => damaged(&path, &what),
            Problem::Unsupported(what) => Error::malformed(&path, what),
        })?;
        check_not_split(&path, &header.metadata)?;
        Ok(Self { path, bytes: Arc::new(bytes), header, layout: Layout::Rows })
    }

    /// The file, whose matrices are to be brought into a layout in memory, where products are faster from it.
    pub(crate) fn in_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Reads the file into huge pages, where that can be, for a model of this config.
    pub(crate) fn reader(&self, config: &ModelConfig) -> impl FnOnce() + Send + 'static {
        let (file, matrices) = (Arc::clone(&self.bytes), self.matrices(config));
        let header = self.header.data_start;
        move || file.copy_to_huge_pages(header, matrices)
    }

    /// Matrices that products want in another order.
    fn matrices(&self, config: &ModelConfig) -> Vec<FileMatrix> {
        let reordered = reordered(config);
        let matrix = |name: &String| {
            let FileTensor { bytes, format, shape } = self.tensor(name, false).ok()?;
            let (TensorBytes::InFile(_, range), &[outer, .., columns]) = (bytes, &shape[..]) else {
                return None;
            };
            let rows = match reordered.get(name) {
                Some(&RowOrder::InPairs { heads })
                    if shape.len() == 2 && outer > 0 && outer.is_multiple_of(2 * heads) =>
                {
                    RowOrder::InPairs { heads }
                }
                _ => RowOrder::All,
            };
            let layout = if format.prefers_interleaved() { self.layout } else { Layout::Rows };
            let as_in_file = rows == RowOrder::All && layout == Layout::Rows;
            (!as_in_file).then_some(FileMatrix { range, format, columns, rows, layout })
        };
        self.header.tensors.keys().filter_map(matrix).collect()
    }

    /// The file's key–value metadata.
    pub fn metadata(&self) -> &HashMap<String, Value> {
        &self.header.metadata
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> &Arc<FileBytes> {
        &self.bytes
    }

    /// Drops the arrays that only the tokenizer is built from, and what they were read from.
    pub(crate) fn forget_vocabulary(&mut self) {
        self.header
            .metadata
            .retain(|key, value| !(key.starts_with("tokenizer.") && matches!(value, Value::Array(_))));
        self.bytes.release(self.header.data_start);
        crate::return_freed_memory();
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shape of a tensor.
    ///
    /// # Errors
    /// [`Error::Input`] where the file lacks it.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        match self.header.tensors.get(name) {
            Some(info) => Ok(&info.shape),
            None => Err(Error::malformed(&self.path, format_args!("tensor `{name}` is missing"))),
        }
    }

    /// Names of all tensors.
    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// Shape and elements of a tensor.
    ///
    /// # Errors
    /// [`Error::MalformedFile`] where the file lacks it or is damaged.
    pub(crate) fn numbers(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let tensor = self.tensor(name, true)?;
        let elements = tensor.shape.iter().product();
        let numbers = dequantized(&tensor.bytes(), tensor.format, elements);
        Ok((tensor.shape, numbers))
    }

    /// Bytes and number of the weights, by type.
    pub(crate) fn weight_types(&self) -> Vec<WeightType> {
        WeightType::sums(self.header.tensors.values().map(|info| {
            let elements = info.shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim as u64));
            let (block_elements, block_bytes) = info.kind.block();
            let bytes = (elements / block_elements as u64).saturating_mul(block_bytes as u64);
            (info.kind.name.to_owned(), elements, bytes)
        }))
    }

    /// Factors that divide the rotary frequencies, where the file carries them (Llama 3.1, Phi-3).
    ///
    /// # Errors
    /// [`Error::Input`] on a damaged tensor.
    pub fn rope_factors(&self) -> Result<RopeFactors> {
        let vector = |name: &str| -> Result<Option<Vec<f32>>> {
            if !self.header.tensors.contains_key(name) {
                return Ok(None);
            }
            let tensor = self.tensor(name, true)?;
            let &[len] = tensor.shape.as_slice() else {
                return Err(damaged(&self.path, &format!("`{name}` is not a vector")));
            };
            Ok(Some(dequantized(&tensor.bytes(), tensor.format, len)))
        };
        let [all, short, long] = ROPE_FACTORS;
        let short_and_long = match (vector(short)?, vector(long)?) {
            (Some(short), Some(long)) => Some([short, long]),
            _ => None,
        };
        Ok(RopeFactors { all: vector(all)?, short_and_long })
    }

    /// The weights, at the places where the family of a config keeps them.
    ///
    /// # Errors
    /// [`Error::Input`] on a family that is not known.
    pub fn weights<'a>(&'a self, config: &'a ModelConfig) -> Result<impl WeightSource + 'a> {
        Ok(FileWeights::new(self, config, Family::named(config.family)?.in_gguf))
    }
}

/// The tensors that are read whole but in another order of rows.
fn reordered(config: &ModelConfig) -> HashMap<String, RowOrder> {
    let Ok(family) = Family::named(config.family) else { return HashMap::new() };
    let weights = (0..config.layers).flat_map(|layer| [Weight::Query(layer), Weight::Key(layer)]);
    let places = weights.map(|weight| (family.in_gguf)(weight, config));
    let in_pairs = |place: &Place| !place.transposed && matches!(place.rows, RowOrder::InPairs { .. });
    places.filter(in_pairs).map(|place| (place.name, place.rows)).collect()
}

/// For all sequences, short ones and long ones.
const ROPE_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

impl TensorFiles for GgufFile {
    fn mapped(&self) -> Vec<FileState> {
        self.bytes.state().cloned().into_iter().collect()
    }

    fn layout(&self) -> Layout {
        self.layout
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<&str> {
        let names = self.header.tensors.keys().map(String::as_str);
        let mut names: Vec<&str> = names.filter(|name| !ROPE_FACTORS.contains(name)).collect();
        names.sort_unstable();
        names
    }

    fn name_of(&self, name: &str) -> Option<&str> {
        self.header.tensors.get_key_value(name).map(|(name, _)| name.as_str())
    }

    fn tensor(&self, name: &str, _: bool) -> Result<FileTensor> {
        let shape = self.shape(name)?.to_vec();
        let info = &self.header.tensors[name];
        let Some(format) = info.kind.format() else {
            let problem =
                format_args!("tensor `{name}` is of type {}, which no weights have", info.kind.name);
            return Err(Error::malformed(&self.path, problem));
        };
        let (elements, block_bytes) = info.kind.block();
        let last = shape.last().copied().unwrap_or(0);
        if last == 0 || !last.is_multiple_of(elements) {
            let what = format!("rows of `{name}` are not whole {} blocks", info.kind.name);
            return Err(damaged(&self.path, &what));
        }
        let blocks = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).map(|n| n / elements);
        let start = usize::try_from(info.offset).ok().and_then(|at| at.checked_add(self.header.data_start));
        let range =
            start.and_then(|start| Some(start..start.checked_add(blocks?.checked_mul(block_bytes)?)?));
        match range.filter(|range| (**self.bytes()).as_ref().get(range.clone()).is_some()) {
            Some(range) => {
                let bytes = TensorBytes::InFile(Arc::clone(&self.bytes), range);
                Ok(FileTensor { bytes, format, shape })
            }
            None => Err(damaged(&self.path, &format!("it ends within tensor `{name}`"))),
        }
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::malformed(path, format_args!("damaged or unsupported GGUF file ({what}); fetch it again"))
}

/// That a file is whole rather than one of several parts, which say so themselves or by their names.
fn check_not_split(path: &Path, metadata: &HashMap<String, Value>) -> Result<()> {
    let stated = metadata.get("split.count").and_then(|count| count.as_u64());
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let parts = stated.or_else(|| parts_in_name(&name)).unwrap_or(1);
    if parts <= 1 {
        return Ok(());
    }
    let problem = format_args!(
        "one of {parts} parts of a model; join them with `llama-gguf-split --merge FIRST-PART JOINED.gguf` and give the \
         joined file"
    );
    Err(Error::malformed(path, problem))
}

/// 3 of `NAME-00001-of-00003.gguf`.
fn parts_in_name(name: &str) -> Option<u64> {
    let (rest, parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (_, part) = rest.rsplit_once('-')?;
    let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    if is_number(part) && is_number(parts) { parts.parse().ok() } else { None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::header::tests::{file, tensor};
    use super::*;

    #[test]
    fn types_that_hold_no_weights_known_here_are_refused_by_name() {
        let refused = GgufFile::in_memory("old.gguf", file(&[], &[tensor("blk.0.w", &[32], 4, 0)]));
        let message = refused.err().unwrap().to_string();
        assert!(
            ["old.gguf", "blk.0.w", "Q4_2 (number 4)"].iter().all(|part| message.contains(part)),
            "{message}"
        );
        // Numbers beside the weights do no harm.
        let tensors = [tensor("ids", &[4], 26, 0), tensor("w", &[32], 20, 32), tensor("cut", &[32], 20, 64)];
        let mut bytes = file(&[], &tensors);
        bytes.resize(bytes.len().next_multiple_of(32) + 64, 0);
        let read = GgufFile::in_memory("new.gguf", bytes).unwrap();
        let message = read.tensor("ids", false).err().unwrap().to_string();
        assert!(["new.gguf", "`ids`", "I32"].iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(read.tensor("w", false).unwrap().bytes().len(), 18);
        assert!(read.tensor("cut", false).err().unwrap().to_string().contains("ends within tensor `cut`"));
        let types = read.weight_types();
        assert_eq!((types[0].name.as_str(), types[0].tensors, types[0].bytes), ("IQ4_NL", 2, 36));
    }

    #[test]
    fn parts_of_a_model_are_refused_with_the_way_to_join_them() {
        let metadata = |count: u16| HashMap::from([("split.count".to_owned(), Value::U16(count))]);
        let check =
            |name: &str, metadata: &HashMap<String, Value>| check_not_split(Path::new(name), metadata);
        for (name, metadata) in [("m.gguf", metadata(3)), ("m-00002-of-00003.gguf", HashMap::new())] {
            let message = check(name, &metadata).unwrap_err().to_string();
            assert!(message.contains("one of 3 parts") && message.contains("--merge"), "{message}");
        }
        let whole = ["m-00001-of-00001.gguf", "m.gguf", "state-of-art.gguf", "-of-.gguf", "1-of-2.gguf"];
        assert!(whole.iter().all(|name| check(name, &HashMap::new()).is_ok()));
        assert!(check("m-00001-of-00003.gguf", &metadata(0)).is_ok());
    }
}
