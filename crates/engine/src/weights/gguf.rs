//! Weights and metadata of a GGUF file, memory-mapped or embedded in the program.

use super::WeightSource;
use super::bytes::FileBytes;
use super::file::{FileTensor, FileWeights, TensorBytes, TensorFiles};
use super::linear::dequantized;
use crate::config::RopeFactors;
use crate::family::Family;
use crate::model::WeightType;
use crate::{Error, ModelConfig, Result};
use candle_core::quantized::gguf_file::{Content, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened GGUF file.
pub struct GgufFile {
    path: PathBuf,
    bytes: Arc<FileBytes>,
    content: Content,
}

impl GgufFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Input`] where the file is absent, empty, cut short or no GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(path.to_owned(), FileBytes::map(path)?)
    }

    /// Reads a file that is in memory, as one that is part of the program; `name` stands for its path in messages.
    ///
    /// # Errors
    /// [`Error::Input`] where the bytes are no GGUF file.
    pub fn in_memory(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::read(PathBuf::from(name), FileBytes::InMemory(bytes.into()))
    }

    fn read(path: PathBuf, bytes: FileBytes) -> Result<Self> {
        let data = bytes.as_ref();
        if data.len() < 4 || &data[..4] != b"GGUF" {
            return Err(Error::input(format!(
                "{}: not a GGUF file (it does not begin with `GGUF`); give a .gguf file or a folder with config.json, \
                 tokenizer.json and safetensors",
                path.display()
            )));
        }
        if zero_alignment(data) {
            return Err(damaged(&path, "its alignment is 0"));
        }
        let content =
            Content::read(&mut Cursor::new(data)).map_err(|e| damaged(&path, first_line(&e.to_string())))?;
        Ok(Self { path, bytes: Arc::new(bytes), content })
    }

    /// The file's key–value metadata.
    pub fn metadata(&self) -> &HashMap<String, Value> {
        &self.content.metadata
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
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
        match self.content.tensor_infos.get(name) {
            Some(info) => Ok(info.shape.dims()),
            None => Err(Error::input(format!("{}: tensor `{name}` is missing", self.path.display()))),
        }
    }

    /// Bytes and number of the weights, by type.
    pub(crate) fn weight_types(&self) -> Vec<WeightType> {
        WeightType::sums(self.content.tensor_infos.values().map(|info| {
            let dtype = info.ggml_dtype;
            let dims = info.shape.dims().iter().map(|&dim| dim as u64);
            let elements = dims.fold(1, u64::saturating_mul);
            let bytes = (elements / dtype.block_size() as u64).saturating_mul(dtype.type_size() as u64);
            (format!("{dtype:?}"), elements, bytes)
        }))
    }

    /// Factors that divide the rotary frequencies, where the file carries them (Llama 3.1, Phi-3).
    ///
    /// # Errors
    /// [`Error::Input`] on a damaged tensor.
    pub fn rope_factors(&self) -> Result<RopeFactors> {
        let vector = |name: &str| -> Result<Option<Vec<f32>>> {
            let Some(info) = self.content.tensor_infos.get(name) else { return Ok(None) };
            let &[len] = info.shape.dims() else {
                return Err(damaged(&self.path, &format!("`{name}` is not a vector")));
            };
            let tensor = self.tensor(name, true)?;
            Ok(Some(dequantized(tensor.bytes(), tensor.dtype, len)?))
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

/// For all sequences, short ones and long ones.
const ROPE_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

impl TensorFiles for GgufFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<&str> {
        let names = self.content.tensor_infos.keys().map(String::as_str);
        let mut names: Vec<&str> = names.filter(|name| !ROPE_FACTORS.contains(name)).collect();
        names.sort_unstable();
        names
    }

    fn name_of(&self, name: &str) -> Option<&str> {
        self.content.tensor_infos.get_key_value(name).map(|(name, _)| name.as_str())
    }

    fn tensor(&self, name: &str, _: bool) -> Result<FileTensor> {
        let shape = self.shape(name)?.to_vec();
        let info = &self.content.tensor_infos[name];
        let (dtype, last) = (info.ggml_dtype, shape.last().copied().unwrap_or(0));
        if last == 0 || !last.is_multiple_of(dtype.block_size()) {
            return Err(damaged(&self.path, &format!("rows of `{name}` are not whole {dtype:?} blocks")));
        }
        let row_bytes = last / dtype.block_size() * dtype.type_size();
        let rows = shape[..shape.len() - 1].iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let start = usize::try_from(self.content.tensor_data_offset.saturating_add(info.offset)).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(rows?.checked_mul(row_bytes)?)?));
        match range.filter(|range| self.bytes().get(range.clone()).is_some()) {
            Some(range) => {
                let bytes = TensorBytes::InFile(Arc::clone(&self.bytes), range);
                Ok(FileTensor { bytes, dtype, shape })
            }
            None => Err(damaged(&self.path, &format!("it ends within tensor `{name}`"))),
        }
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::input(format!("{}: damaged or unsupported GGUF file ({what}); fetch it again", path.display()))
}

pub(super) fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or(message)
}

/// Whether `general.alignment` is 0, by which the reader would divide.
fn zero_alignment(data: &[u8]) -> bool {
    const KEY: &[u8] = b"general.alignment";
    // The key stands among the first ones; its type (4 bytes) and value follow.
    let head = &data[..data.len().min(1 << 20)];
    head.windows(KEY.len()).position(|window| window == KEY).is_some_and(|at| {
        head.get(at + KEY.len() + 4..at + KEY.len() + 8).is_some_and(|value| {
            let width = match head[at + KEY.len()] {
                0 | 1 => 1,
                2 | 3 => 2,
                _ => 4,
            };
            value[..width].iter().all(|&byte| byte == 0)
        })
    })
}
