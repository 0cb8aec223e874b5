//! Weights and metadata of a GGUF file, memory-mapped or embedded in the program.

use super::bytes::FileBytes;
use super::linear::qtensor;
use super::{Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{Device, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;
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

    /// Factors that divide the rotary frequencies, where the file carries them (Llama 3.1).
    ///
    /// # Errors
    /// [`Error::Input`] on a damaged tensor.
    pub fn rope_factors(&self) -> Result<Option<Vec<f32>>> {
        const NAME: &str = "rope_freqs.weight";
        let Some(info) = self.content.tensor_infos.get(NAME) else { return Ok(None) };
        let &[len] = info.shape.dims() else {
            return Err(damaged(&self.path, "`rope_freqs.weight` is not a vector"));
        };
        Ok(Some(self.f32_vector(NAME, len)?.to_vec1()?))
    }

    /// Where the blocks of a tensor of a known shape are, and their type.
    fn blocks(&self, name: &str, shape: &[usize]) -> Result<(Range<usize>, GgmlDType)> {
        let found = self.shape(name)?;
        if found != shape {
            return Err(Error::input(format!(
                "{}: tensor `{name}` has shape {found:?} where {shape:?} is expected; the file may be damaged",
                self.path.display()
            )));
        }
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
            Some(range) => Ok((range, dtype)),
            None => Err(damaged(&self.path, &format!("it ends within tensor `{name}`"))),
        }
    }

    fn f32_vector(&self, name: &str, len: usize) -> Result<Tensor> {
        let (range, dtype) = self.blocks(name, &[len])?;
        Ok(qtensor(&self.bytes()[range], dtype, &[len])?.dequantize(&Device::Cpu)?)
    }

    /// Heads whose rows the file has in paired order: llama.cpp's converter reorders Llama's query and key rows.
    fn paired_heads(&self, weight: Weight) -> Result<Option<usize>> {
        let count = |name: &str| {
            let key = format!("llama.attention.{name}");
            self.metadata().get(&key).and_then(|v| match v {
                Value::I32(v) => usize::try_from(*v).ok(),
                v => v.to_u64().ok().and_then(|v| usize::try_from(v).ok()),
            })
        };
        let heads = match weight {
            Weight::Query(_) => count("head_count"),
            Weight::Key(_) => count("head_count_kv").or_else(|| count("head_count")),
            _ => return Ok(None),
        };
        match heads {
            Some(heads) if heads > 0 => Ok(Some(heads)),
            _ => Err(damaged(&self.path, "its head count is missing")),
        }
    }
}

impl WeightSource for GgufFile {
    fn linear(&self, weight: Weight, shape: (usize, usize), precision: WeightsPrecision) -> Result<Linear> {
        let (range, dtype) = self.blocks(&weight.gguf_name(), &[shape.0, shape.1])?;
        let keep = precision == WeightsPrecision::Native;
        match self.paired_heads(weight)? {
            None => Linear::in_file(Arc::clone(&self.bytes), range, dtype, shape, keep),
            Some(heads) => {
                let blocks = &self.bytes()[range];
                let rows = rotate_half_rows(blocks, blocks.len() / shape.0, shape.0 / heads);
                Linear::from_blocks(&rows, dtype, shape, keep)
            }
        }
    }

    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor> {
        self.f32_vector(&weight.gguf_name(), len)
    }

    fn has(&self, weight: Weight) -> bool {
        self.content.tensor_infos.contains_key(&weight.gguf_name())
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

/// Rows of each head from paired order (2i, 2i+1) to rotate-half order (i, i + head_dim/2).
fn rotate_half_rows(data: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let mut reordered = Vec::with_capacity(data.len());
    for head in data.chunks_exact(row_bytes * head_dim) {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                reordered.extend_from_slice(&head[(2 * pair + half) * row_bytes..][..row_bytes]);
            }
        }
    }
    reordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_out_in_rotate_half_order() {
        let paired: Vec<u8> = (0..12).collect();
        // Two heads of six rows of one byte.
        assert_eq!(rotate_half_rows(&paired, 1, 6), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
