//! Weights of a Hugging Face checkpoint: one or several memory-mapped safetensors files.

use super::bytes::FileBytes;
use super::file::{FileTensor, FileWeights, TensorBytes, TensorFiles};
use super::mapped::FileState;
use super::{Weight, WeightSource};
use crate::family::Family;
use crate::model::WeightType;
use crate::{Error, ModelConfig, Result};
use layerscope_kernels::matmul::{Layout, WeightFormat};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The safetensors files of a folder.
pub struct SafetensorsFiles {
    folder: PathBuf,
    files: Vec<PathBuf>,
    /// The same, mapped.
    mapped: Vec<Arc<FileBytes>>,
    tensors: HashMap<String, Stored>,
}

/// A tensor as a file has it.
pub(super) struct Stored {
    pub(super) file: Arc<FileBytes>,
    pub(super) range: Range<usize>,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

impl SafetensorsFiles {
    /// Maps the files that `model.safetensors.index.json` lists, or else `model.safetensors`, or else every
    /// `*.safetensors` of the folder.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::MalformedFile`] where there is none, or one is missing, cut short or not a safetensors file.
    pub fn open(folder: &Path) -> Result<Self> {
        let files = list_files(folder)?;
        let (mut mapped, mut tensors) = (vec![], HashMap::new());
        for path in &files {
            let file = Arc::new(FileBytes::map(path)?);
            mapped.push(Arc::clone(&file));
            let (header_len, header) =
                SafeTensors::read_metadata((*file).as_ref()).map_err(|e| open_error(path, &e))?;
            for (name, info) in header.tensors() {
                let start = size_of::<u64>() + header_len;
                let range = start + info.data_offsets.0..start + info.data_offsets.1;
                let stored =
                    Stored { file: Arc::clone(&file), range, dtype: info.dtype, shape: info.shape.clone() };
                tensors.insert(without_wrapper(&name), stored);
            }
        }
        Ok(Self { folder: folder.to_owned(), files, mapped, tensors })
    }

    /// A tensor by its name.
    pub(super) fn stored(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files, in order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The bytes of each.
    pub(crate) fn bytes(&self) -> &[Arc<FileBytes>] {
        &self.mapped
    }

    /// Reads the files into huge pages, where that can be.
    pub(crate) fn reader(&self) -> impl FnOnce() + Send + 'static {
        let files = self.mapped.clone();
        move || files.iter().for_each(|file| file.copy_to_huge_pages(0, vec![]))
    }

    /// Bytes and number of the weights, by type.
    pub(crate) fn weight_types(&self) -> Vec<WeightType> {
        let weights = self.tensors.iter().filter(|(name, _)| !is_no_weight(name));
        WeightType::sums(weights.map(|(_, stored)| {
            let elements = stored.shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim as u64));
            (format!("{:?}", stored.dtype), elements, stored.range.len() as u64)
        }))
    }

    /// The weights, at the places where the family of a config keeps them.
    ///
    /// # Errors
    /// [`Error::UnsupportedFamily`].
    pub fn weights<'a>(&'a self, config: &'a ModelConfig) -> Result<impl WeightSource + 'a> {
        Ok(FileWeights::new(self, config, Family::named(config.family)?.in_hugging_face))
    }

    /// Whether the unembedding has a matrix of its own.
    ///
    /// # Errors
    /// As [`Self::weights`].
    pub fn has_unembedding(&self, config: &ModelConfig) -> Result<bool> {
        Ok(self.weights(config)?.has(Weight::Unembedding))
    }
}

impl TensorFiles for SafetensorsFiles {
    fn mapped(&self) -> Vec<FileState> {
        self.mapped.iter().filter_map(|file| file.state().cloned()).collect()
    }

    fn layout(&self) -> Layout {
        Layout::Rows
    }

    fn path(&self) -> &Path {
        &self.folder
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.tensors.keys().map(String::as_str).filter(|name| !is_no_weight(name)).collect();
        names.sort_unstable();
        names
    }

    fn name_of(&self, name: &str) -> Option<&str> {
        // Some checkpoints leave out the first part of the name.
        let bare = name.split_once('.').map(|(_, rest)| rest);
        [Some(name), bare]
            .into_iter()
            .flatten()
            .find_map(|name| self.tensors.get_key_value(name).map(|(name, _)| name.as_str()))
    }

    fn tensor(&self, name: &str, wide: bool) -> Result<FileTensor> {
        let problem = |what: String| Error::malformed(&self.folder, format_args!("tensor `{name}` {what}"));
        let stored = self.tensors.get(name).ok_or_else(|| problem("is missing".to_owned()))?;
        let shape = stored.shape.clone();
        let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let Some(bytes) = (*stored.file).as_ref().get(stored.range.clone()) else {
            return Err(problem("is cut short; fetch the file again".to_owned()));
        };
        let format = match stored.dtype {
            Dtype::F32 => WeightFormat::F32,
            Dtype::F16 => WeightFormat::F16,
            Dtype::BF16 => WeightFormat::BF16,
            Dtype::F8_E4M3 => return self.float8(name, bytes, shape, wide),
            other => {
                return Err(problem(format!("is of type {other:?}; known: F32, F16, BF16, F8_E4M3")));
            }
        };
        if elements.and_then(|n| n.checked_mul(format.bytes(1))) != Some(bytes.len()) {
            return Err(problem("is cut short; fetch the file again".to_owned()));
        }
        let bytes = TensorBytes::InFile(Arc::clone(&stored.file), stored.range.clone());
        Ok(FileTensor { bytes, format, shape })
    }
}

/// Buffers of older checkpoints, scales of float8 weights, and vision towers.
fn is_no_weight(name: &str) -> bool {
    const ENDS: [&str; 9] = [
        ".rotary_emb.inv_freq",
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
        ".weight_scale",
        ".weight_scale_inv",
        ".input_scale",
        ".activation_scale",
    ];
    const STARTS: [&str; 4] =
        ["vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector."];
    ENDS.iter().any(|end| name.ends_with(end)) || STARTS.iter().any(|start| name.starts_with(start))
}

/// The name of a decoder's tensor in a multimodal checkpoint.
pub(crate) fn without_wrapper(name: &str) -> String {
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.strip_prefix("language_model.").unwrap_or(name).to_owned(),
    }
}

fn open_error(file: &Path, error: &safetensors::SafeTensorError) -> Error {
    let error = error.to_string();
    let reason = error.lines().next().unwrap_or_default();
    Error::malformed(file, format_args!("damaged or unreadable safetensors file ({reason}); fetch it again"))
}

fn list_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        let text = layerscope_files::read_text(&index).map_err(|e| Error::io("read", &index, &e))?;
        let wrong = |what: &str| Error::malformed(&index, what);
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| wrong(&format!("not valid JSON ({e})")))?;
        let map = json.get("weight_map").and_then(|m| m.as_object());
        let map = map.ok_or_else(|| wrong("`weight_map` is missing"))?;
        let mut names = BTreeSet::new();
        for name in map.values() {
            let name = name.as_str().ok_or_else(|| wrong("`weight_map` names no file"))?;
            if Path::new(name).components().count() != 1 || name.starts_with('.') {
                return Err(wrong(&format!(
                    "`weight_map` names `{name}`, which is not a file of this folder"
                )));
            }
            names.insert(name);
        }
        let files: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
        if let Some(missing) = files.iter().find(|file| !file.exists()) {
            let problem = format_args!("named by {} but absent; fetch it", index.display());
            return Err(Error::malformed(missing, problem));
        }
        return Ok(files);
    }
    // The folder may also have the same weights in another layout.
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(vec![single]);
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("read the model folder", folder, &e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::malformed(folder, "no .safetensors file in this folder"));
    }
    Ok(files)
}
